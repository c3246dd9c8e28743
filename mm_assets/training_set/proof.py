"""Proof of a training set: its splits together hold what its sources hold, but for what the plan leaves out.

Canonical readers, which share no code with what copies, read sources and shards. Sums of row digests are
compared, whatever the order of the samples is. Where the sums differ, the items that differ are named.

What was proven is known by its files afterwards (`as_written`, `problem_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import TARS, TRAINING_FOLDER, TRAINING_NOTE, digest_files
from mm_assets.accounting.canonical import CanonicalSource, Derived, DigestTally, derive
from mm_assets.accounting.comparison import Dataset, compare
from mm_assets.formats.webdataset.writer import CARD
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import DataError
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.files import join, read_bytes, remove
from mm_assets.storage.small_files import unseal
from mm_assets.storage.stamps import files_in, parallel_map
from mm_assets.training_set import Source, present_version
from mm_assets.training_set.build import MadeSet, TrainingSet, content_of
from mm_assets.training_set.plan import Recipe


@dataclass(frozen=True)
class Proof:
    """Result of a proof.

    Attributes:
        samples: samples in the shards.
        digest: sum of the digests of their rows.
        left_out: samples that the plan leaves out.
        differences: lines on items that differ; none if the set is proven.
        stamps: of `stamps_of`, before anything was read.
    """

    samples: int
    digest: str
    left_out: int
    differences: tuple[str, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Rows(CanonicalSource):
    """The rows of a file without those of samples that the plan leaves out."""

    left_out: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    is_shard: bool = False
    place: str = ""  # what warnings and errors are about

    def states_types(self) -> bool:
        """Return whether columns have the types of their samples; else those of all in the shard."""
        return not self.is_shard or self.kind == "webdataset"

    def tables(self) -> Iterator[pa.Table]:
        for table in super().tables():
            yield table.filter(pc.invert(pc.is_in(table.column("sample_id"), self.left_out)))


def _derived(rows: _Rows) -> Derived:
    """Return counts and digest of a file."""
    if not len(rows.left_out):
        return derive(rows.kind, rows.uri)
    tally = DigestTally()
    for table in rows.tables():
        tally.observe(table)
    return tally.derived()


def make_proven(
    made: TrainingSet, sources: Sequence[Source], recipe: Recipe, pool: MapsJobs, overwrite: bool = False
) -> tuple[MadeSet, Proof | None]:
    """Make a set, read sources and shards, and compare them.

    Shards that were there already, and are not as they were written, are written again.

    Returns:
        The set, and its proof; None if a shard could not be made.

    Raises:
        SetExists: as `TrainingSet.make`.
        DataError: a source or a shard cannot be read.
    """
    report = made.make(sources, recipe, pool, overwrite)
    if report.failures:
        return report, None
    try:
        proof = prove(made, report.plan, sources, pool)
    except DataError:
        if not forget_damaged(made):
            raise
    else:
        if not proof.differences:
            return report, proof
        kept = [shard.name for shard in report.shards if shard.is_kept]
        if not forget_damaged(made):  # so a source has changed that does not look so
            for name in kept:
                remove(made.note_uri(name))
            if not kept:
                return report, proof
    again = made.make(sources, recipe, pool, overwrite)
    return again, None if again.failures else prove(made, again.plan, sources, pool)


def prove(made: TrainingSet, plan: pa.Table, sources: Sequence[Source], pool: MapsJobs) -> Proof:
    """Read sources and shards of a finished set, and compare them.

    Raises:
        DataError: one of them cannot be read.
    """
    stamps = stamps_of(made)  # a file that changes while it is read has another one then
    dropped = plan.filter(pc.is_null(plan.column("shard")))
    files = [
        *_rows_of(sources, dropped),
        *(_Rows(made.kind, uri, is_shard=True, place=uri) for uri in made.uris(plan)),
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
        if not lines and made.kind == "webdataset":  # whose samples were copied with their types
            lines = ("columns of samples have other types in the set than in the sources",)
    return Proof(counts[1], digests[1].hexdigest(), len(dropped), lines, stamps)


def _rows_of(sources: Sequence[Source], dropped: pa.Table) -> Iterator[_Rows]:
    for source in sources:
        of_source = dropped.filter(pc.equal(dropped.column("source"), source.name))
        for tar in source.tars:
            is_here = pc.equal(of_source.column("source_shard"), tar.name)
            ids = of_source.column("sample_id").filter(is_here).combine_chunks()
            yield _Rows("webdataset", tar.uri, left_out=ids, place=tar.place)


def stamps_of(made: TrainingSet) -> dict[str, str]:
    """Return a stamp of each shard, index and plan that is here, by path; of a set in tars."""
    found = files_in(made.folder)
    return {name: file.stamp for name, file in found.items() if name != CARD and not name.startswith(".")}


WrittenFiles = Mapping[str, Sequence[str | None]]
"""By name, the stamp of a file when it was proven, and the digest of what was written."""


def as_written(made: TrainingSet, stamps: Mapping[str, str]) -> WrittenFiles:
    """Return these files with their digests: of tars those of what was written, whatever is there now."""
    tars = {f"{name}.tar": note.get("content") for name, note in made.notes().items()}
    others = digest_files(made.folder, [join(made.folder, name) for name in stamps if name not in tars])
    digests = {**{name: found["digest"] for name, found in others.items() if found}, **tars}
    return {name: (stamp, digests.get(name)) for name, stamp in stamps.items()}


def problem_of(made: TrainingSet, digest: str, files: WrittenFiles) -> str:
    """Return in words what keeps a set from being one that was proven; empty: it is.

    Args:
        digest: of its plan.
        files: of `as_written`. What has another stamp now is read, and its digest compared.
    """
    if made.digest() != digest:
        return "its plan is another one"
    present = stamps_of(made)
    changed = [name for name, (stamp, _) in files.items() if present.get(name) != stamp]
    found = digest_files(made.folder, [join(made.folder, name) for name in changed])
    for name in changed:
        if not (now := found[name]) or now["digest"] != files[name][1]:
            return f"{name} is not as it was written"
    return ""


def training_state(root: str, recipe: Recipe | None = None) -> str:
    """Return what the training set of a storage root is: ``none``, ``current``, or ``stale`` and why.

    Args:
        root: storage root.
        recipe: what it is to be; None: only its tars count.
    """
    try:
        note = unseal(read_bytes(join(root, TRAINING_NOTE)) or b"")
    except ValueError:
        return "none"
    if TrainingSet(join(root, TRAINING_FOLDER)).digest() != note.get("plan_digest"):
        return "none: it is not complete"
    if note.get("made_of") != present_version(join(root, TARS.folder)):
        return "stale: its tars are others now"
    if recipe is not None and note.get("recipe") != recipe.to_json():
        return "stale: its settings are others now"
    return "current"


def forget_damaged(made: TrainingSet) -> list[str]:
    """Have `make` write the shards again that are not as they were written; return their names."""
    notes = made.notes()
    found = parallel_map(
        lambda name: content_of(made.kind, made.uri(name, notes[name]["split"])),
        notes,
        made.folder,
    )
    damaged = [
        name for name, digest in zip(notes, found, strict=True) if digest != notes[name].get("content")
    ]
    for name in damaged:
        remove(made.note_uri(name))
    return damaged
