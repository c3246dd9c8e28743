"""One sample: its history in the storage of the graph, and its documents there or in a dataset of any format.

* `history_of`: the shards that it came from, and the fate of each of its items in every output.
* `search` looks in a dataset and needs no ledger.
* `documents_in_storage` joins the content of the outputs with what the ledger says of each item.
* `described` shows bytes from quarantine as text for people.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import (
    CURATED,
    DERIVED_FOLDERS,
    FILTERED,
    OUTPUTS,
    Output,
    locator_columns,
    statistics_folder,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.canonical import Rows, SampleQuery
from mm_assets.accounting.formats import accounted_format, find_sample
from mm_assets.accounting.lookup import in_accounts, in_lance, sample_tar
from mm_assets.filters.duplicates import DEDUP, verdicts_uri
from mm_assets.filters.minhash import MinHash
from mm_assets.filters.texts import TextPosition
from mm_assets.formats.names import format_of, partition_filename
from mm_assets.formats.parquet import UnreadableFile
from mm_assets.formats.parquet.reader_writer import DOCUMENTS, rows_of
from mm_assets.formats.partitions import Partition
from mm_assets.formats.registry import reader_for
from mm_assets.model.errors import ShardError, counted
from mm_assets.model.losses import Loss
from mm_assets.model.samples import BatchStream
from mm_assets.model.schema import METADATA_POSITION, MODALITIES
from mm_assets.storage.errors import error_line, located
from mm_assets.storage.files import exists, join
from mm_assets.storage.listing import expand_paths
from mm_assets.view.sample import (
    Document,
    Item,
    Locator,
    Look,
    Mark,
    alike,
    items_of,
    lance_rows,
    look_at,
    origin_of,
    parquet_ids,
    parquet_rows,
)

ABSENT, NOT_MADE = "absent", "not made"
_LOCATOR = ("source", "member", "byte_offset", "byte_size", "frame_index")


@dataclass
class ItemHistory:
    """One item of a shard, with its fate in each asset, and what the ledger says of it, as rows."""

    position: int
    modality: str
    locator: Locator
    fates: dict[str, str] = field(default_factory=dict)
    records: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass
class ShardHistory:
    """The items of a sample in one shard.

    ``partition`` is None in a Lance table that does not record it.
    """

    partition: str | None
    items: list[ItemHistory] = field(default_factory=list)

    @property
    def locator(self) -> Locator:
        """Locator of the sample's first item that has one."""
        return next((item.locator for item in self.items if any(item.locator)), (None,) * len(_LOCATOR))

    def note(self, asset: str, row: Mapping[str, Any], fate: str) -> ItemHistory:
        """Record the fate of an item in an asset, and return the item.

        Two items of one position are told apart by their locators: a sample id may occur twice.
        """
        locator = tuple(row[name] for name in _LOCATOR)
        open_items = [
            i
            for i in self.items
            if (i.position, i.modality) == (row["position"], row["modality"]) and asset not in i.fates
        ]
        known = next((i for i in open_items if i.locator == locator), None)
        known = known or next((i for i in open_items if not any(i.locator) or not any(locator)), None)
        if known is None:
            known = ItemHistory(row["position"], row["modality"], locator)
            self.items.append(known)
        elif not any(known.locator):
            known.locator = locator
        known.fates[asset] = fate
        return known

    def flag(self, asset: str, row: Mapping[str, Any]) -> None:
        """Record that a filter marked an item that is kept."""
        locator = tuple(row[name] for name in _LOCATOR)
        kept = [i for i in self.items if (i.position, i.modality) == (row["position"], row["modality"])]
        flagged = next((i for i in kept if i.locator == locator), kept[0] if kept else None)
        if flagged is None:  # the output is gone
            flagged = self.note(asset, row, _loss(row))
        else:
            flagged.fates[asset] = f"{flagged.fates.get(asset, ABSENT)}; {_loss(row)}"
        flagged.records.append(row)


def history_of(root: str, sample_id: str) -> list[ShardHistory]:
    """Return the history of a sample in each shard that has or had it; none for an unknown id.

    It is read from the outputs and the ledger below a storage root. The cost is a read of the footer of every
    Parquet file and account. Tars and caches are opened only for shards found there, and the Lance table is
    queried by its index. No image is read.
    """
    ledger = Ledger(root)
    lost = {output.asset: _lost(ledger, output.asset, sample_id) for output in OUTPUTS}
    kept = _kept(root, sample_id, {row["partition"] for rows in lost.values() for row in rows})
    shards: dict[str | None, ShardHistory] = {}
    for asset, by_partition in kept.items():
        for partition, rows in by_partition.items():
            for row in rows:
                error = row["materialize_error"]
                fate = f"kept with an error: {error}" if error else "kept"
                shards.setdefault(partition, ShardHistory(partition)).note(
                    asset, row | locator_columns(row["source_ref"]), fate
                )
    for asset, rows in lost.items():
        for row in rows:
            shard = shards.setdefault(row["partition"], ShardHistory(row["partition"]))
            if row["outcome"] == "flagged":
                shard.flag(asset, row)
            else:
                shard.note(asset, row, _loss(row)).records.append(row)
    for shard in shards.values():
        for output in OUTPUTS:
            fate = ABSENT if _is_made(root, output, shard.partition, ledger) else NOT_MADE
            for item in shard.items:
                item.fates.setdefault(output.asset, fate)
        shard.items.sort(key=_order)
    return [shards[name] for name in sorted(shards, key=lambda name: (name is None, name))]


def _lost(ledger: Ledger, asset: str, sample_id: str) -> Rows:
    """Return rows of the sample among the lost items of an asset."""
    accounts, *earlier = ledger.item_folders(asset)
    found = in_accounts(accounts, sample_id)
    rows = [row for of_partition in found.values() for row in of_partition]
    for folder in earlier:
        for of_partition in in_accounts(folder, sample_id).values():
            # A run that was killed may have left both.
            replaced = exists(ledger.uri(asset, of_partition[0]["partition"]))
            rows += [] if replaced else of_partition
    return rows


def _kept(root: str, sample_id: str, lost_in: Set[str]) -> dict[str, Mapping[str | None, Rows]]:
    """Return rows of the sample by asset and partition, first from formats that need no partitions."""
    kept: dict[str, Mapping[str | None, Rows]] = {}
    partitions = set(lost_in)
    for output in sorted(OUTPUTS, key=lambda output: not accounted_format(output.kind).finds_partitions):
        query = SampleQuery(
            join(root, output.folder), partial(output.uri, root), sample_id, sorted(partitions)
        )
        kept[output.asset] = find_sample(output.kind, query)
        partitions |= {name for name in kept[output.asset] if name is not None}
    return kept


def _loss(row: Mapping[str, Any]) -> str:
    if row["outcome"] == "quarantined":
        return f"quarantined: {row['kind']}: {row['reason']}"
    score = "" if row["score"] is None else f" (score {row['score']:g}, asked for {row['threshold']})"
    verb = "flagged" if row["outcome"] == "flagged" else "filtered"
    return f"{verb} by {row['kind']}: {row['reason']}{score}"


def _is_made(root: str, output: Output, partition: str | None, ledger: Ledger) -> bool:
    """Return whether an asset was made from a shard, even if nothing of it was left to write."""
    if partition is None:
        return True
    uris = (*ledger.uris(output.asset, partition), output.uri(root, partition))
    return any(exists(uri) for uri in uris)


def _order(item: ItemHistory) -> tuple[int, int, int]:
    return item.position, MODALITIES.index(item.modality), item.locator[2] or -1


_BYTES_AT_ONCE = 8 << 20


@dataclass
class Search:
    """What was found in a dataset.

    Attributes:
        documents: the sample, once for each partition that has it.
        failures: a line for each partition that cannot be read, or not to its end.
        unsearched: number of partitions that were not looked in, as the sample was found before.
        alike: a few ids that contain the one that was looked for, if it was not found.
    """

    documents: list[Document] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unsearched: int = 0
    alike: list[str] = field(default_factory=list)


def search(source: str, kind: str, layout: Mapping[str, Any], sample_id: str, look: Look) -> Search:
    """Return a sample of a dataset.

    Parquet with a row per item and Lance are asked by their statistics and index, so all partitions are
    looked in. Of other formats one partition after the other is read, ids first, until one has the sample.
    At most a few megabytes of rows are in memory.

    Args:
        source: path, folder, glob or URL.
        kind: its format.
        layout: arguments of the reader that describe documents of others.
        sample_id: the sample.
        look: renders an image.
    """
    result = Search()
    with located(source):
        finder = _Finder(source, kind, layout, sample_id, look)
        partitions = finder.partitions()
    for number, partition in enumerate(partitions, 1):
        try:
            documents = finder.documents(partition)
        except (OSError, ValueError, pa.ArrowException) as error:
            result.failures.append(error_line(error))
            continue
        result.documents += documents
        if documents and not finder.is_indexed(partition):
            result.unsearched = len(partitions) - number
            break
    result.failures += finder.damages
    if not result.documents:
        result.alike = alike(finder.ids(partitions), sample_id)
    return result


class _Finder:
    """A lookup of one sample in partitions of a dataset."""

    def __init__(self, source: str, kind: str, layout: Mapping[str, Any], sample_id: str, look: Look) -> None:
        self.damages: list[str] = []  # lines about damaged ranges, in which more samples may have been
        self._kind = kind
        self._sample_id = sample_id
        self._observe = look
        self._has_prefixes = bool(layout.get("sample_id_prefix"))
        # What cannot be read of a raw shard is told, as in a run, and does not end the search.
        tolerant = {"quarantine_errors": True} if format_of(kind).raw_options else {}
        arguments = {"max_batch_bytes": _BYTES_AT_ONCE, **tolerant, **layout}
        self._reader = reader_for(kind, source, **arguments)
        self._is_raw = "image_extensions" in format_of(kind).raw_options
        self._scout = reader_for(kind, source, materialize=False, **arguments)

    def partitions(self) -> list[Partition]:
        """Return the partitions of the dataset; of Lance the tables."""
        found = self._reader.partitions()
        if self._kind != "lance":
            return found
        return [Partition(table, (table,)) for table in dict.fromkeys(p.files[0] for p in found)]

    def is_indexed(self, partition: Partition) -> bool:
        """Return whether a lookup in other partitions is cheap."""
        return self._kind == "lance" or self._has_item_rows(partition) or self._has_index(partition)

    def documents(self, partition: Partition) -> list[Document]:
        """Return the sample of a partition; none if it is not there."""
        if self._kind == "lance":
            return self._in_table(partition)
        if self._has_item_rows(partition):
            with located(partition.files[0]):
                return self._document(partition, parquet_rows(partition.files[0], [self._sample_id]), [])
        if self._has_index(partition):
            return self._in_indexed_tar(partition)
        scouted = self._scout.open(partition)
        losses = [loss for loss in scouted.losses if loss.sample_id == self._sample_id]
        self.damages += [
            loss.reason for loss in scouted.losses if not loss.is_item and loss.sample_id is None
        ]
        found = self._is_in(self._scouted_ids(scouted, partition))
        rows = self._streamed(partition) if found else iter(())
        return self._document(partition, rows, losses) if found or losses else []

    def ids(self, partitions: list[Partition]) -> Iterator[pa.ChunkedArray]:
        """Yield the ids of partitions, as far as they can be read."""
        for partition in partitions:
            try:
                if self._has_item_rows(partition):
                    yield parquet_ids(partition.files[0])
                else:
                    yield from self._projected_ids(partition)
            except (OSError, ValueError, pa.ArrowException):  # told before
                continue

    def _scouted_ids(self, scouted: BatchStream, partition: Partition) -> Iterator[pa.ChunkedArray]:
        if self._is_raw:  # opening it has read the documents: they are not read again
            return (batch.data.column("sample_id") for batch in scouted)
        return self._projected_ids(partition)

    def _projected_ids(self, partition: Partition) -> Iterator[pa.ChunkedArray]:
        for table in self._scout.project(partition, ["sample_id"])[1]:
            yield table.column("sample_id")

    def _is_in(self, ids: Iterator[pa.ChunkedArray]) -> bool:
        return any(pc.any(pc.equal(column, self._sample_id)).as_py() for column in ids)

    def _streamed(self, partition: Partition) -> Iterator[pa.Table]:
        """Yield the rows of the sample, reading the partition up to it."""
        was_found = False
        for batch in self._reader.open(partition):
            found = batch.data.filter(pc.equal(batch.data.column("sample_id"), self._sample_id))
            if found.num_rows:
                was_found = True
                yield found
            elif was_found:
                return

    def _in_indexed_tar(self, partition: Partition) -> list[Document]:
        with located(partition.files[0]), sample_tar(partition.files[0], self._sample_id) as tar:
            if tar is None:
                return []
            cut = Partition(partition.name, (tar,))
            rows = self._streamed(cut)
            return self._document(partition, rows, [])

    def _in_table(self, partition: Partition) -> list[Document]:
        (uri,) = partition.files
        found = in_lance(uri, self._sample_id, ())
        documents = []
        for name in found:
            documents += self._document(
                dataclasses.replace(partition, name=name or ""), lance_rows(uri, self._sample_id), []
            )
        return documents

    def _has_item_rows(self, partition: Partition) -> bool:
        return self._kind == "parquet" and not self._has_prefixes and rows_of(partition.files[0]) != DOCUMENTS

    def _has_index(self, partition: Partition) -> bool:
        """Return whether a tar is ours and has an index beside it: others put other keys into theirs."""
        uri = partition.files[0]
        is_tar = self._kind == "webdataset" and not self._has_prefixes
        return is_tar and exists(f"{uri}.idx") and accounted_format(self._kind).is_ours(uri)

    def _document(
        self, partition: Partition, tables: Iterator[pa.Table], losses: list[Loss]
    ) -> list[Document]:
        items = items_of(tables, self._observe)
        items += [_lost_item(loss) for loss in losses]
        if not items:
            return []
        document = Document(self._sample_id, partition.name or None, "", items)
        document.sort()
        first = next((item.locator for item in document.items if any(item.locator)), (None,) * 5)
        file = format_of(self._kind).output(partition.files[0])
        is_own = not first[0] or file.endswith(str(first[0]))
        document.origin = file if is_own else f"{file}, which has it from {origin_of(first)}"
        return [document]


def _lost_item(loss: Loss) -> Item:
    return Item(
        -1 if loss.position is None else loss.position,
        loss.modality or "metadata",
        tuple(locator_columns(loss.source_ref).values()),
        marks=[Mark.of(vars(loss), "")],
    )


_SHOWN: Final = 2000  # bytes of a text
_DUMPED: Final = 32  # bytes of anything else


def described(raw: bytes | None, note: str | None) -> tuple[str, str]:
    """Return the bytes as text, and what they are.

    Args:
        raw: the bytes; None where there are none.
        note: what they are if they are not the item itself, or why there are none.
    """
    if raw is None:
        return "", note or "no bytes were kept"
    what = f"{counted(len(raw), 'byte')}{f' of {note}' if note else ''}"
    try:
        shown = raw[:_SHOWN].decode()
    except UnicodeDecodeError as error:
        is_cut = error.start >= _SHOWN - 3 and len(raw) > _SHOWN  # inside a character
        shown = raw[: error.start].decode() if is_cut else "\0"
    if "\0" in shown:
        return raw[:_DUMPED].hex(" "), f"{what}, beginning with" if len(raw) > _DUMPED else what
    return shown, f"{what}, beginning with" if len(raw) > len(shown.encode()) else what


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
        _note_originals(root, document, look)
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
        of_texts = {name: values for name, values in row.items() if isinstance(values, list)}
        for index, position in enumerate(of_texts.pop(TextPosition.name, ())):
            values = {name: values[index] for name, values in of_texts.items()}
            for item in document.items:
                if item.modality == "text" and item.position == position and item.has_content:
                    item.scores |= _scores(values)
        document.scores |= _scores(
            {name: value for name, value in row.items() if not isinstance(value, list)}
        )


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


def _note_originals(root: str, document: Document, look: Look) -> None:
    """Show what stays in the place of the sample, or of its images, where these were dropped as copies."""
    uri = verdicts_uri(statistics_folder(root), str(document.partition))
    tables = parquet_rows(uri, [document.sample_id]) if exists(uri) else ()
    for row in (row for table in tables for row in table.to_pylist()):
        of_image = row["position"] is not None
        copies = [
            item
            for item in document.items
            if item.position == (row["position"] if of_image else METADATA_POSITION)
            and any(mark.kind in DEDUP and row["original_id"] in mark.reason for mark in item.marks)
        ]
        curated = CURATED.uri(root, row["original_shard"])
        if not copies or not exists(curated):
            continue
        found = items_of(parquet_rows(curated, [row["original_id"]]), look)
        found.sort(key=lambda item: item.position)
        if not of_image:
            document.original = row["original_id"], found
        for original in (item for item in found if of_image and item.position == row["original_position"]):
            copies[0].original = f"{row['original_id']} [{original.position}]", original


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
    return {
        name: value for name, value in row.items() if name not in (*_KEYS, MinHash.name) and value is not None
    }
