"""Whether stored scores are those of the rows as they are now, by the records of their making."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mm_assets.accounting.file_digests import digest_files, recorded_files
from mm_assets.accounting.outputs import CURATED, DERIVED_FOLDERS
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.formats.storage import join

WITHOUT_RECORD: Final = "whose {} have no record"
OTHER_BYTES: Final = "whose {} are not as they were written"
OTHER_ROWS: Final = "whose {} are not those of its curated rows"
RAW_CHANGED: Final = "whose raw shard has changed since"
_RAW: Final = "raw_shards"  # input of curated rows in their record

RawVersions = Callable[[str], str | None]
"""The version of a raw shard as it is now, by partition key; None where that is not known."""


def outdated_scores(
    root: str, assets: Sequence[str], files: Sequence[str], raw_version: RawVersions
) -> dict[str, str]:
    """Return why the scores of some shards do not count, by file name; nothing of those that do.

    The next run would measure them again.

    Args:
        root: storage root.
        assets: those of scores.
        files: names of the files of shards, with suffix.
        raw_version: what raw shards are now.
    """
    stems = {file.rpartition(".")[0]: file for file in files}
    records = ShardRecords(root)
    curated = records.by_file_name(CURATED.asset, stems)
    found: dict[str, str] = {}
    for asset in assets:
        scored = records.by_file_name(asset, stems)
        intact = _intact(root, asset, stems, scored)
        for stem, file in stems.items():
            reason = _reason(scored.get(stem), curated.get(stem), intact.get(stem, True))
            if reason is not None:
                found.setdefault(file, reason.format(asset))
    for stem, record in curated.items():
        made_of = record.account.get("inputs", {}).get(_RAW)
        if made_of is not None and raw_version(record.key) not in (made_of, None):
            found.setdefault(stems[stem], RAW_CHANGED)
    return found


def _reason(scored: ShardRecord | None, curated: ShardRecord | None, is_intact: bool) -> str | None:
    if scored is None:
        return WITHOUT_RECORD
    if not is_intact:
        return OTHER_BYTES
    of_rows = scored.account.get("inputs", {}).get(CURATED.asset)
    return OTHER_ROWS if curated is None or of_rows != curated.version else None


def _intact(
    root: str, asset: str, stems: Mapping[str, str], scored: Mapping[str, ShardRecord]
) -> dict[str, bool]:
    """Return whether the file of each shard has the digest in its record; old records have none."""
    uris = {stem: join(root, DERIVED_FOLDERS[asset], stems[stem]) for stem in scored}
    written = {stem: recorded_files(record, uris[stem]) for stem, record in scored.items()}
    present = digest_files(root, [uris[stem] for stem, digests in written.items() if digests])
    return {
        stem: all(present.get(path) == digest for path, digest in digests.items())
        for stem, digests in written.items()
    }
