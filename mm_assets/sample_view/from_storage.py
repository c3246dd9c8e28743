"""Documents of a sample in the storage of the graph: content of the outputs, and what the ledger says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from mm_assets.accounting.history import ItemHistory, ShardHistory, history_of, origin_of
from mm_assets.accounting.outputs import CURATED, DERIVED_FOLDERS, FILTERED, OUTPUTS
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.listing import expand_paths
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.formats.storage import exists, join
from mm_assets.interleaved.errors import ShardError
from mm_assets.sample_view.document import Document, Item, Look, Mark, items_of, look_at
from mm_assets.sample_view.raw_bytes import described
from mm_assets.sample_view.sample_rows import alike, parquet_ids, parquet_rows

_IMAGE_SCORES = DERIVED_FOLDERS["image_scores"]
_SAMPLE_SCORES = "sample_scores"
_KEYS = ("sample_id", "position")


def documents_in_storage(root: str, sample_id: str, look: Look) -> list[Document]:
    """Return a sample as it was curated, once for each shard that has or had it; none for an unknown id.

    Of images that filters dropped later the content is there, too: curated Parquet has every item that is not
    in quarantine. Without that file the content comes from filtered Parquet, and a note says so.

    Args:
        root: storage root of the graph.
        sample_id: the sample.
        look: renders an image.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    return [_document(root, sample_id, shard, look) for shard in history_of(root, sample_id)]


def ids_alike(root: str, sample_id: str) -> list[str]:
    """Return a few sample ids of curated Parquet that contain the given one."""
    return alike(_curated_ids(root), sample_id)


def _curated_ids(root: str) -> Iterator[pa.ChunkedArray]:
    try:
        files = expand_paths(join(root, CURATED.folder), (".parquet",))
    except FileNotFoundError:
        return
    for uri in files:
        with suppress(ValueError):  # damage: a hint is no check
            yield parquet_ids(uri)


def _document(root: str, sample_id: str, shard: ShardHistory, look: Look) -> Document:
    document = Document(
        sample_id, shard.partition, origin_of(shard.locator), assets=tuple(output.asset for output in OUTPUTS)
    )
    document.items = _contents(root, document, look)
    for history in shard.items:
        _note_fate(document, history)
    document.sort()
    if shard.partition is not None:
        for row in _rows(root, DERIVED_FOLDERS["quarantine"], document):
            _note_raw_bytes(document, row, look)
        try:
            _note_scores(root, document)
        except (UnreadableFile, ShardError) as error:
            document.notes.append(f"some scores are not shown: {error}")
    return document


def _note_scores(root: str, document: Document) -> None:
    for row in _rows(root, _IMAGE_SCORES, document):
        for item in document.items:
            if item.modality == "image" and item.position == row["position"] and item.has_content:
                item.scores |= _scores(row)
    for row in _rows(root, _SAMPLE_SCORES, document):
        document.scores |= _scores(row)


def _contents(root: str, document: Document, look: Look) -> list[Item]:
    """Return the items of the first output that has their content."""
    for output in (CURATED, FILTERED) if document.partition is not None else ():
        uri = output.uri(root, str(document.partition))
        if exists(uri):
            if output is not CURATED:
                document.notes.append(f"{CURATED.asset} is not there: the content is that of {output.asset}")
            return items_of(parquet_rows(uri, [document.sample_id]), look)
    document.notes.append(f"neither {CURATED.asset} nor {FILTERED.asset} is there: no content can be shown")
    return []


def _note_fate(document: Document, history: ItemHistory) -> None:
    """Join the history of an item to its content; an item that no output has gets a place of its own."""
    # A duplicate has the position of another item, and no content.
    lost_at_once = CURATED.asset in {row["asset"] for row in history.records if row["outcome"] != "flagged"}
    candidates = [
        item
        for item in document.items
        if (item.position, item.modality) == (history.position, history.modality) and not item.fates
    ]
    known = next((item for item in candidates if item.locator == history.locator), None)
    if known is None and not lost_at_once:
        known = next(iter(candidates), None)
    if known is None:
        known = Item(history.position, history.modality or "metadata", history.locator)
        document.items.append(known)
    known.fates = history.fates
    known.marks += [Mark.of(row, row["asset"]) for row in history.records]


def _note_raw_bytes(document: Document, row: Mapping[str, Any], look: Look) -> None:
    """Show the bytes that quarantine kept of an item, as far as they can be shown."""
    for item in document.items:
        is_it = (item.position, item.modality) == (row["position"], row["modality"])
        if not is_it or item.raw is not None or item.state != "quarantined":
            continue
        if not any(mark.reason == row["message"] for mark in item.marks):
            continue
        raw: bytes | None = row["raw"]
        if raw is not None and item.modality == "image" and row["raw_note"] is None:
            look_at(item, memoryview(raw), look)
        item.raw = described(raw, row["raw_note"])
        return


def _rows(root: str, folder: str, document: Document) -> Iterable[dict[str, Any]]:
    """Yield the rows of the sample in the file that a folder has for its shard; none without the file."""
    uri = join(root, folder, f"{partition_filename(str(document.partition))}.parquet")
    if exists(uri):
        for table in parquet_rows(uri, [document.sample_id]):
            yield from table.to_pylist()


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _KEYS and value is not None}
