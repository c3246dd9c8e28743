"""Proof of a training set: its splits together hold what its sources hold, but for what the plan leaves out.

Canonical readers, which share no code with what copies, read sources and shards. Sums of row digests are
compared, whatever the order of the samples is. Where the sums differ, the items that differ are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.canonical import Derived
from mm_assets.accounting.canonical.derive import CanonicalSource, DigestTally, derive
from mm_assets.accounting.comparison import Dataset, compare
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import DataError
from mm_assets.pool.workers import MapsJobs, WorkerFailure
from mm_assets.storage.files import StorageOptions
from mm_assets.training_set.build import TrainingSet
from mm_assets.training_set.sources import Source


@dataclass(frozen=True)
class Proof:
    """Result of a proof.

    Attributes:
        samples: samples in the shards.
        digest: sum of the digests of their rows.
        left_out: samples that the plan leaves out.
        differences: lines on items that differ; none if the set is proven.
    """

    samples: int
    digest: str
    left_out: int
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows(CanonicalSource):
    """The rows of a file without those of samples that the plan leaves out."""

    left_out: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    is_shard: bool = False

    @property
    def place(self) -> str:
        """What warnings are about."""
        return str(self.uri)

    def tables(self) -> Iterator[pa.Table]:
        for table in super().tables():
            yield table.filter(pc.invert(pc.is_in(table.column("sample_id"), self.left_out)))


def _derived(rows: _Rows) -> Derived:
    """Return counts and digest of a file."""
    if not len(rows.left_out):
        return derive(rows.kind, rows.uri, options=rows.options)
    tally = DigestTally()
    for table in rows.tables():
        tally.observe(table)
    return tally.derived()


def prove(made: TrainingSet, plan: pa.Table, sources: Sequence[Source], pool: MapsJobs) -> Proof:
    """Read sources and shards of a finished set, and compare them. What is damaged is made again next time.

    Raises:
        DataError: one of them cannot be read.
    """
    try:
        proof = _compared(made, plan, sources, pool)
    except DataError:
        made.forget_damaged()
        raise
    if proof.differences:
        made.forget_damaged()
    return proof


def _compared(made: TrainingSet, plan: pa.Table, sources: Sequence[Source], pool: MapsJobs) -> Proof:
    dropped = plan.filter(pc.is_null(plan.column("shard")))
    files = [
        *_rows_of(sources, dropped, made.options),
        *(_Rows(made.kind, uri, options=made.options, is_shard=True) for uri in made.uris(plan)),
    ]
    counts, digests = [0, 0], [ContentDigest(), ContentDigest()]  # of sources, of shards
    for rows, found in pool.map(_derived, files):
        if isinstance(found, WorkerFailure):
            raise DataError(found.at(rows.place))
        counts[rows.is_shard] += found.samples
        digests[rows.is_shard] = digests[rows.is_shard].plus(ContentDigest.of(found.digest))
    lines: tuple[str, ...] = ()
    if digests[0].hexdigest() != digests[1].hexdigest():
        mine, shards = (
            Dataset([rows for rows in files if rows.is_shard == is_shard]) for is_shard in (False, True)
        )
        compared = compare(mine, shards, names=("the sources", "the set"))
        lines = tuple(map(str, compared.differences))
    return Proof(counts[1], digests[1].hexdigest(), len(dropped), lines)


def _rows_of(sources: Sequence[Source], dropped: pa.Table, options: StorageOptions | None) -> Iterator[_Rows]:
    for source in sources:
        of_source = dropped.filter(pc.equal(dropped.column("source"), source.name))
        for tar in source.tars:
            is_here = pc.equal(of_source.column("source_shard"), tar.name)
            ids = of_source.column("sample_id").filter(is_here).combine_chunks()
            yield _Rows("webdataset", tar.uri, options=options, left_out=ids)
