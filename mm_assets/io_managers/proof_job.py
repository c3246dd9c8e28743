"""Worker side of the check `zero_loss`: read one published shard and compare it. Imports no Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical import Derived, derive
from mm_assets.accounting.canonical.accounted_format import OutputProblems, accounted_format
from mm_assets.accounting.comparison import CanonicalSource, compare
from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.shard_proof import ShardProof
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.format_table import format_of
from mm_assets.formats.storage import size_of
from mm_assets.formats.store_errors import is_store_failure
from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.schema_text import schema_from_text

_COUNTS = ("rows", "samples", "images", "texts", "digest")


@dataclass(frozen=True)
class ProofTarget:
    """The published output of one shard of an asset.

    Args:
        kind: name of the format.
        uri: the file, the table or the folder of the cache.
    """

    asset: str
    kind: str
    uri: str


@dataclass(frozen=True)
class ProofJob:
    """One shard of one output to prove.

    When something differs, it is compared with the outputs ``before`` and ``after`` it.

    Args:
        account: what its writer reported.
        before: the output that it was made from.
        after: the outputs that were made from it.
        table_schema: of a table, the columns that all shards share (`schema_to_text`).
        orphan_rows: number of rows in the table that belong to no shard.
    """

    key: str
    output: ProofTarget
    account: Mapping[str, Any]
    root: str
    before: ProofTarget | None = None
    after: tuple[ProofTarget, ...] = ()
    table_schema: str = ""
    orphan_rows: int = 0


def prove_shard(job: ProofJob) -> ShardProof:
    """Read one shard with the library of its users; compare counts, digest and types with those written.

    A shard that the store does not give out is not proven, but it is not damaged either.
    """
    try:
        return _examined(job)
    except (OSError, ValueError) as error:
        if not is_store_failure(error):
            raise
        return _proof(job, Derived(), beside=(f"{job.output.uri}: not examined: {error_line(error)}",))


def _examined(job: ProofJob) -> ShardProof:
    written = job.account["written"]
    expected = schema_from_text(job.account["schema"])
    output = job.output
    try:
        found = derive(output.kind, output.uri, job.key)
    except (OSError, ValueError, TypeError, LookupError) as error:
        if is_store_failure(error):
            raise
        return _proof(job, Derived(), (f"{output.uri}: cannot be read: {error_line(error)}",))
    if job.table_schema and found.digest != written["digest"]:
        # Other shards have widened columns since: compare the rows in the types they were written in.
        planned = schema_from_text(job.table_schema)
        if not type_differences(planned, found.schema):
            found = derive(output.kind, output.uri, job.key, expected)
    size_problems = _size_problems(job)
    orphan_rows = (
        (f"{output.uri}: {counted(job.orphan_rows, 'row belongs', 'rows belong')} to no shard",)
        if job.orphan_rows
        else ()
    )
    differing = [name for name in _COUNTS if written[name] != getattr(found, name)]
    if not differing:
        inspection = (
            OutputProblems()
            if size_problems or not output.uri
            else accounted_format(output.kind).examine(output.uri, found)
        )
        return _proof(job, found, (*size_problems, *orphan_rows, *inspection.problems), inspection.beside)
    problems = [f"{name}: {written[name]} written, {getattr(found, name)} found" for name in differing]
    return _proof(job, found, (*_differences(job), *problems, *size_problems, *orphan_rows))


def _size_problems(job: ProofJob) -> tuple[str, ...]:
    """Return a line for a file of another size than written: readers may ignore what was appended."""
    uri, written = job.output.uri, job.account.get("nbytes")
    if (
        not format_of(job.output.kind).is_file
        or not uri
        or written is None
        or (found := size_of(uri)) == written
    ):
        return ()
    return (f"{uri}: {written} bytes written, {found} found",)


def type_differences(expected: pa.Schema, found: pa.Schema) -> list[str]:
    """Return a line for each column that is missing or of another type.

    Columns without values may be missing.
    """
    lines = []
    for column in expected:
        if pa.types.is_null(column.type):
            continue
        if column.name not in found.names:
            lines.append(f"column {column.name!r} is missing")
        elif found.field(column.name).type != column.type:
            lines.append(
                f"column {column.name!r}: {column.type} written, {found.field(column.name).type} found"
            )
    return lines


def _differences(job: ProofJob) -> list[str]:
    """Return sample, position and column of what differs.

    They are found by comparing with the outputs of the same shard before and after this one.
    """
    pairs = [(job.before, job.output, job.before)] if job.before is not None else []
    pairs += [(job.output, other, other) for other in job.after]
    lines: list[str] = []
    for left, right, other in pairs:
        lost = (
            Ledger(job.root)
            .items(right.asset, job.key)
            .select(["sample_id", "position", "modality"])
            .to_pylist()
        )
        places = {(item["sample_id"], item["position"], item["modality"]) for item in lost}
        try:
            result = compare(
                CanonicalSource(left.kind, left.uri, job.key),
                CanonicalSource(right.kind, right.uri, job.key),
                lost=places,
                names=(left.asset, right.asset),
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            if is_store_failure(error):
                raise
            lines.append(f"cannot be compared with {other.asset}: {error_line(error)}")
            continue
        lines.extend(str(difference) for difference in result.differences)
        if result.differences:
            break
    return lines


def _proof(
    job: ProofJob, found: Derived, problems: tuple[str, ...] = (), beside: tuple[str, ...] = ()
) -> ShardProof:
    root_prefix = f"{job.root.rstrip('/')}/"  # proofs are published: no paths of this machine in them
    problems, beside = (
        tuple(line.replace(root_prefix, "") for line in lines) for lines in (problems, beside)
    )
    derived = {name: getattr(found, name) for name in _COUNTS}
    return ShardProof(
        job.output.asset,
        job.key,
        accounted_format(job.output.kind).library,
        job.account["written"],
        derived,
        job.account["lost"],
        job.account["made_by"],
        problems=(*problems, *beside),
        beside=beside,
        examined_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
