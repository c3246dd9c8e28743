"""Capture of one partition for a tag, in a worker: digests of its files and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mm_assets.accounting.canonical.accounted_format import accounted_format
from mm_assets.accounting.canonical.source import CanonicalSource
from mm_assets.accounting.file_digests import digest_files, file_problems, recorded_files
from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.records import ShardRecord, stat_outputs
from mm_assets.formats.storage import StorageOptions, join
from mm_assets.interleaved.errors import DataError
from mm_assets.interleaved.schema_text import schema_from_text
from mm_assets.versions.current_state import state_of
from mm_assets.versions.output_state import FileState, OutputState
from mm_assets.versions.sample_store import SampleStore, sample_digests

FOLDER = "versions"


@dataclass(frozen=True)
class CaptureJob:
    """Records of one partition, and what is known of its files already.

    Args:
        root: storage root.
        records: its records, in the order of the graph.
        known: files of an earlier tag, by path.
        table_files: data files of its rows in the table, as paths below the root.
        store: folder of the sample digests.
        reads_files: whether files are digested and lost items copied, for a tag.
    """

    root: str
    records: Sequence[ShardRecord]
    store: str
    known: Mapping[str, FileState] = field(default_factory=dict)
    table_files: Sequence[str] = ()
    reads_files: bool = True
    options: StorageOptions | None = None


def capture(job: CaptureJob) -> tuple[OutputState, ...]:
    """Return the states of one partition, after its sample digests were put into the store.

    Sample digests are read from the first output with the data version, if the store does not have them, or
    the output is not as it was published.

    Raises:
        DataError: an output is not what its record says.
    """
    store, ledger = SampleStore(job.store, job.options), Ledger(job.root, job.options)
    stats = stat_outputs({record.uri for record in job.records if record.uri and not _is_table(record)})
    states = []
    for record in job.records:
        state = state_of(job.root, record)
        is_intact = _is_table(record) or not record.uri or stats[record.uri] == record.stat
        if not is_intact and stats[record.uri] is None:
            raise _other(job, record, "is gone")
        if record.asset in BY_ASSET and not (is_intact and store.has(record.version)):
            store.write_samples(record.version, _samples(job, record))
        elif not is_intact and file_problems(job.root, recorded_files(record), job.options):
            raise _other(job, record, "is not as it was written")
        if job.reads_files:
            if state.losses:
                store.copy_losses(state.losses, ledger.items_uri(record.asset, record.key))
            state = replace(state, files=_files(job, record))
        states.append(state)
    return tuple(states)


def file_states(
    root: str, uris: Sequence[str], known: Mapping[str, FileState], options: StorageOptions | None = None
) -> list[FileState]:
    """Return the states of those files that exist; one with a known size and mark is not read again."""
    stats = {uri: stat for uri, stat in stat_outputs(uris).items() if stat is not None}
    prefix = join(root, "")
    unread = [uri for uri in stats if not _is_known(known.get(uri.removeprefix(prefix)), stats[uri])]
    digests = digest_files(root, unread, options)
    found = []
    for uri, stat in stats.items():
        path = uri.removeprefix(prefix)
        digest = digests.get(path)
        found.append(
            known[path]
            if digest is None
            else FileState(path, int(digest["bytes"]), str(digest["digest"]), _mark(stat))
        )
    return found


def _samples(job: CaptureJob, record: ShardRecord) -> dict[str, int]:
    output = BY_ASSET[record.asset]
    source = CanonicalSource(output.kind, record.uri, record.key, options=job.options)
    schema = schema_from_text(record.account["schema"]) if output.format.is_table else None
    samples, digest = sample_digests(source, schema)
    if digest != record.version:
        raise _other(job, record, "has other rows than were written")
    return samples


def _files(job: CaptureJob, record: ShardRecord) -> tuple[FileState, ...]:
    small = {path: found for path, found in recorded_files(record).items() if found is not None}
    if _is_table(record):
        uris = [join(job.root, path) for path in job.table_files]
    elif record.asset in BY_ASSET:
        kind = BY_ASSET[record.asset].kind
        uris = list(accounted_format(kind).files(record.uri, job.options)) if record.uri else []
    else:
        uris = []  # their one file is among the small ones
    states = file_states(job.root, uris, job.known, job.options)
    states += [FileState(path, int(found["bytes"]), str(found["digest"])) for path, found in small.items()]
    return tuple(sorted(states, key=lambda state: state.path))


def _is_table(record: ShardRecord) -> bool:
    return record.asset in BY_ASSET and BY_ASSET[record.asset].format.is_table


def _is_known(known: FileState | None, stat: Mapping[str, Any]) -> bool:
    return known is not None and known.mark == _mark(stat) and known.bytes == stat["size"]


def _mark(stat: Mapping[str, Any]) -> str:
    return str(stat["mtime_ns"] if "mtime_ns" in stat else stat["mark"])


def _other(job: CaptureJob, record: ShardRecord, what: str) -> DataError:
    place = record.uri.removeprefix(join(job.root, ""))
    return DataError(
        f"{record.asset}, shard {record.key!r}: {place} {what}; materialize the shard again, "
        "or wait for the run that is making it"
    )
