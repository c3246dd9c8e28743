"""Samples of a dataset by number, of any format: what they are, how many, and one of them without the others.

A `Source` has shards of numbered samples. It reads only an index when it is opened: offsets of tars, the ids
of tables, the headers of paired tars. A sample is a dictionary, alike for all formats but paired tars: see
`mm_assets.model.samples.document_of`. `open_source` finds the format.

A ``plan.parquet`` beside the data, as ``mm-assets reshard`` writes it, says which samples are of a split, how
often each comes in an epoch, and where they lie in tars.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.formats.names import PLAN_FILE as PLAN
from mm_assets.formats.names import SET_NOTES, format_by_suffix, format_of
from mm_assets.formats.parquet import (
    checked,
    column_chunks,
    open_parquet,
    original_schema,
    read_small_table,
    restore,
)
from mm_assets.formats.parquet.items import ReferencedImages
from mm_assets.formats.registry import detect_format, reader_for
from mm_assets.model.errors import DataError, require
from mm_assets.model.samples import document_of, sample_offsets
from mm_assets.storage.errors import located
from mm_assets.storage.files import absolute, exists, is_remote, join, size_of
from mm_assets.storage.listing import expand, expand_paths
from mm_assets.storage.stamps import parallel_map
from mm_assets.train.order import digest_of
from mm_assets.train.shards import (
    LocalCopies,
    LruCache,
    Numbers,
    OpenFile,
    Shard,
    Source,
    TarSource,
    open_tars,
)

ShardUrls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# As `mm-assets reshard` names shards, perhaps in a folder of their split: no other folder, URL or pattern.
_PLANNED_NAME = re.compile(r"(?:[\w=%-][\w=%.-]*/)?[\w=%-][\w=%.-]*", re.ASCII)
_NUMBERS = ("offset", "bytes", "repeats")
_PLAN_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in ("sample_id", "shard", "split", *_NUMBERS)
    ]
)
_MOST_RUNS = 1 << 22  # of an epoch: some 100 MB
_OF_SETS = ("webdataset", "parquet", "arrow_cache")
_GROUP_BYTES = 256 << 20  # of row groups that one process holds


class TableSource(Source):
    """Rows of items, whose samples are found by the column of ids.

    Args:
        names: the shards, each with the ids of its rows.
        kind: of the tables, for the digest.
    """

    def __init__(self, kind: str, names: Sequence[str], ids: Sequence[pa.ChunkedArray]) -> None:
        self._offsets = [sample_offsets(pa.table({"sample_id": each})) for each in ids]
        shards = [Shard(name, len(found) - 1) for name, found in zip(names, self._offsets, strict=True)]
        super().__init__(shards, digest_of(kind, list(names), [ids_digest(each) for each in ids]))


def ids_digest(ids: pa.ChunkedArray) -> str:
    """Return a digest of the sample ids of some rows."""
    return digest_of(ids.cast(pa.string()).to_pylist())


class ParquetSource(TableSource):
    """Parquet files with a row an item; a shard is a row group, which is read as a whole.

    Args:
        uris: the files.
        copies: gives a local copy of a remote file.
    """

    def __init__(self, uris: Sequence[str], copies: LocalCopies) -> None:
        self._copies = copies
        self._groups: list[tuple[str, int]] = []
        names, ids = [], []
        for uri in uris:
            file = open_parquet(uri, uri, None, {})
            if "sample_id" not in file.schema_arrow.names or "modality" not in file.schema_arrow.names:
                raise DataError(f"{uri}: its rows are no items: convert it with mm-assets convert")
            column = pa.chunked_array(column_chunks(uri, file, uri, "sample_id", None), pa.string())
            row = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if rows and row and column[row] == column[row - 1]:
                    raise DataError(
                        f"{uri}: sample {column[row].as_py()!r:.200} lies in two row groups: "
                        "convert it with mm-assets convert"
                    )
                ids.append(column.slice(row, rows))
                names.append(f"{uri.rpartition('/')[2]}#{group}")
                self._groups.append((uri, group))
                row += rows
            file.close()
        super().__init__("parquet", names, ids)
        self._files = LruCache(self._file)
        self._images = LruCache(self._images_of, most=2)
        self._tables = LruCache(self._table, most_bytes=_GROUP_BYTES, size_of=_nbytes)

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        table, offsets = self._tables.get(shard), self._offsets[shard]
        return [
            document_of(table.slice(start, stop - start).to_batches(), table.schema)
            for start, stop in (offsets[number : number + 2].tolist() for number in numbers)
        ]

    def _file(self, uri: str) -> pq.ParquetFile:
        return self._copies.open(uri, lambda path: open_parquet(path, uri, None, {"memory_map": True}))

    def _images_of(self, uri: str) -> ReferencedImages | None:
        return ReferencedImages.of(uri, self._files.get(uri))

    def _table(self, shard: int) -> pa.Table:
        uri, group = self._groups[shard]
        file = self._files.get(uri)
        table = checked(lambda: file.read_row_group(group, use_threads=False), uri, file)
        if (images := self._images.get(uri)) is not None:
            table = images.filled(table)
        return restore(table, original_schema(file))


def _nbytes(table: pa.Table) -> int:
    return int(table.nbytes)


class LanceSource(TableSource):
    """One version of a Lance table; a shard is a fragment.

    Args:
        uri: the table.
    """

    is_forkable = False  # Lance has threads, which do not survive a fork

    def __init__(self, uri: str) -> None:
        require("lance")
        from mm_assets.formats.lance import from_storage_schema, with_original_names
        from mm_assets.formats.lance.table import LanceTable
        from mm_assets.storage import lance_arguments

        self._uri, self._options = uri, lance_arguments(uri)
        dataset = LanceTable(uri, self._options).dataset()
        self._version = int(dataset.version)
        self._schema = with_original_names(from_storage_schema(dataset.schema))
        names: list[str] = []
        ids: list[pa.ChunkedArray] = []
        self._first = [0]
        for fragment in dataset.get_fragments():
            found = fragment.to_table(columns=["sample_id"]).column(0).cast(pa.string())
            if ids and len(found) and len(ids[-1]) and found[0] == ids[-1][-1]:  # its sample goes on
                names.pop()
                ids[-1] = pa.chunked_array([*ids[-1].chunks, *found.chunks], pa.string())
                self._first[-1] += len(found)
                names.append(f"{fragment.fragment_id}")
                continue
            names.append(f"{fragment.fragment_id}")
            ids.append(found)
            self._first.append(self._first[-1] + len(found))
        super().__init__("lance", names, ids)
        self._datasets = LruCache(self._dataset)

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        from mm_assets.formats.lance import from_storage

        offsets, first = self._offsets[shard], self._first[shard]
        spans = [range(*(offsets[number : number + 2] + first).tolist()) for number in numbers]
        taken = from_storage(self._datasets.get(0).take([row for span in spans for row in span]))
        taken = taken.rename_columns(self._schema.names)
        found, row = [], 0
        for span in spans:
            rows = taken.slice(row, len(span))
            found.append(document_of(rows.to_batches(), self._schema))
            row += len(span)
        return found

    def _dataset(self, _: int) -> Any:
        from mm_assets.formats.lance import opened

        return opened(self._uri, version=self._version, storage_options=self._options or None)


class ArrowCacheSource(Source):
    """Arrow caches on a local disk; each is a shard.

    Args:
        folders: of one cache, or of several, each.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        from mm_assets.formats.arrow_cache.reader_writer import InterleavedArrowDataset

        self._places, partitions = [], []
        for dataset in map(InterleavedArrowDataset, folders):
            first = 0
            for name, samples, digest in dataset.partitions():
                self._places.append((dataset, first))
                partitions.append((name, samples, digest))
                first += samples
        shards = [Shard(name, samples) for name, samples, _ in partitions]
        super().__init__(shards, digest_of("arrow_cache", partitions))

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        dataset, first = self._places[shard]
        return [dataset[first + int(number)] for number in numbers]


class PairedSource(Source):
    """Tars of single modalities, joined by key, as `MultiModalWebDataset` joins them; a shard is a group.

    A sample is what that gives: ``__key__``, the URLs of its tars, and the bytes by extension.

    Args:
        modalities: URLs of the tars of each modality.
        copies: gives a local copy of a remote tar.

    Raises:
        DataError: a modality lacks a key of another.
    """

    def __init__(self, modalities: Mapping[str, ShardUrls], copies: LocalCopies) -> None:
        from mm_assets.formats.paired.joined_tars import PairedShardList

        self._groups = PairedShardList(modalities).groups
        self._copies = copies
        self._joined = LruCache(self._join)
        self._keys = [list(self._joined.get(at)[0].keys) for at in range(len(self._groups))]
        names = [" ".join(group.values()) for group in self._groups]
        shards = [Shard(name, len(keys)) for name, keys in zip(names, self._keys, strict=True)]
        files = [[url.rpartition("/")[2] for url in group.values()] for group in self._groups]
        super().__init__(shards, digest_of("paired", files, self._keys))

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        keys = self._keys[shard]
        return list(self._joined.get(shard)[0].read([keys[number] for number in numbers]))

    def _join(self, shard: int) -> tuple[Any, list[OpenFile]]:
        from mm_assets.formats.paired.joined_tars import JoinedTars, index_samples

        urls = self._groups[shard]
        files = {name: self._copies.open(url, OpenFile) for name, url in urls.items()}
        joined = JoinedTars(
            {name: index_samples(file.descriptor, urls[name]) for name, file in files.items()}
        )
        joined.check_alignment()
        joined.check_extensions(joined.keys)
        return joined, list(files.values())  # which stay open as long as they are joined


class Selection:
    """Samples that an epoch has, in runs: each is some samples of one shard.

    A sample that comes twice in an epoch is in two runs, which are shuffled apart. A run takes
    some bytes, since its numbers are made when it is read.

    Args:
        source: where the samples are.
        repeats: by shard, how often each of its samples comes.

    Attributes:
        counts: samples of each run.
    """

    def __init__(self, source: Source, repeats: Sequence[Numbers]) -> None:
        self.source, self._repeats = source, list(repeats)
        turns = [int(each.max(initial=not len(each))) for each in repeats]
        self._ends = np.cumsum(turns)
        counts = [
            len(each) - np.searchsorted(np.sort(each), np.arange(most), "right")
            for each, most in zip(repeats, turns, strict=True)
        ]
        self.counts: Numbers = np.concatenate([np.zeros(0, np.int64), *counts])
        self._runs = LruCache(self._run)

    @property
    def digest(self) -> str:
        """Digest of which samples there are, and how often each comes."""
        first = [(shard, _digest(np.flatnonzero(each))) for shard, each in enumerate(self._repeats)]
        more = [_digest(each) for each in self._repeats if each.max(initial=0) > 1]
        return digest_of(self.source.digest, first, more)

    def read(self, run: int, numbers: Numbers) -> list[Any]:
        """Return samples of a run, by their numbers in it."""
        shard, of_run = self._runs.get(run)
        return self.source.read(shard, of_run[numbers].tolist())

    def _run(self, run: int) -> tuple[int, Numbers]:
        """Return the shard of a run, and the numbers in it."""
        shard = int(np.searchsorted(self._ends, run, "right"))
        turn = run - (self._ends[shard - 1] if shard else 0)
        return shard, np.flatnonzero(self._repeats[shard] > turn)


def _digest(numbers: Numbers) -> str:
    return xxhash.xxh3_64_hexdigest(numbers.astype("<i8").tobytes())


def open_source(
    path: str | os.PathLike[str] | Mapping[str, ShardUrls], split: str | None, copies: LocalCopies
) -> Selection:
    """Open a dataset of any format.

    Args:
        path: a folder, file, pattern or URL; or the tars of each modality.
        split: one of the plan's; None if it has one at most.
        copies: gives local copies of remote files.

    Raises:
        DataError: there is no plan for a split, or it has no such split, or several and none is named; a part
            of a training set is named, or the set is not complete; or the data is none to train from.
    """
    if isinstance(path, Mapping):
        return _whole(PairedSource(path, copies), split, "paired tars")
    place = os.fspath(path)
    with located(place):
        if exists(join(place, PLAN)):
            return _planned(place, split, copies)
        if exists(join(place, SET_NOTES)):
            raise _incomplete(place)
        kind = detect_format(place)
        if kind in _OF_SETS:
            _refuse_parts_of_sets(place, kind, split)
        return _whole(_opened(kind, [place], copies), split, place)


def _opened(kind: str, places: Sequence[str], copies: LocalCopies) -> Source:
    if kind == "webdataset":
        return open_tars(expand_paths(list(places), format_of(kind).suffixes), copies)
    if kind == "parquet":
        return ParquetSource(expand_paths(list(places), format_of(kind).suffixes), copies)
    if kind == "lance":
        tables = sorted({each.files[0] for each in reader_for(kind, list(places)).partitions()})
        if len(tables) > 1:
            raise DataError(f"{places[0]}: {len(tables)} Lance tables: name one, or mix them")
        return LanceSource(tables[0])
    if kind == "arrow_cache":
        return ArrowCacheSource(places)
    raise DataError(f"{places[0]}: {kind} is not read for training: convert it to tars or an Arrow cache")


def _incomplete(folder: str) -> DataError:
    return DataError(f"{folder}: this training set is not complete: run mm-assets reshard again")


def _refuse_parts_of_sets(place: str, kind: str, split: str | None) -> None:
    """Refuse shards of a training set that are named without it: its plan has their splits and repeats.

    Tars lie beside the plan; other formats have a folder for each split.
    """
    entry = format_of(kind)
    files = {absolute(file) for file in expand(place, entry.suffixes).files}
    folders = {entry.output(file).rpartition("/")[0] for file in files}
    if kind != "webdataset":
        folders |= {folder.rpartition("/")[0] for folder in folders}

    named = split or "train"

    def check(folder: str) -> None:
        plan = join(folder, PLAN)
        with suppress(PermissionError):  # a store may show its users some folders only
            if exists(plan):
                if any(f"{folder}/{shard}" in files for shard in _shards_of(plan)):
                    raise DataError(
                        f"{place}: of the training set {folder}: name that folder, and split={named!r}"
                    )
            elif exists(join(folder, SET_NOTES)):
                raise _incomplete(folder)

    parallel_map(check, sorted(folder for folder in folders if folder.strip("/").rpartition(":")[2]), place)


def _shards_of(plan: str) -> list[str]:
    """Return the main files of the shards that a plan names; none if it is other data."""
    with closing(open_parquet(plan, plan, None, {})) as file:
        if not set(_PLAN_SCHEMA.names) <= set(file.schema_arrow.names):
            return []
    return read_small_table(plan, ("shard",)).column(0).unique().drop_null().to_pylist()  # type: ignore[no-any-return]


def _whole(source: Source, split: str | None, place: str) -> Selection:
    if split is not None:
        raise DataError(f"{place}: no {PLAN} here that could tell the split {split!r}")
    return Selection(source, [np.ones(shard.samples, np.int64) for shard in source.shards])


def _planned(folder: str, split: str | None, copies: LocalCopies) -> Selection:
    """Return the samples that a plan chooses; those that it leaves out are in no shard."""
    file = join(folder, PLAN)
    plan = _read_plan(file)
    places = plan.column("shard").to_pylist()
    order = {place: at for at, place in enumerate(dict.fromkeys(places))}
    kind, uris = _files_of(folder, list(order), file)
    of_shard = np.array([order[place] for place in places], np.int64)
    rows = [np.flatnonzero(of_shard == at) for at in range(len(order))]
    if kind == "webdataset":
        source: Source = TarSource(uris, _spans(plan, uris, rows, file), copies)
    else:
        source = _opened(kind, uris, copies)
        rows = _by_shard(source, np.concatenate(rows), file)
    splits = plan.column("split").to_pylist()
    _refuse_split(split, splits, file)
    repeats = plan.column("repeats").to_numpy() * np.array(
        [split is None or each == split for each in splits], np.int64
    )
    of_shards = [repeats[at] for at in rows]
    if (runs := sum(int(each.max(initial=0)) for each in of_shards)) > _MOST_RUNS:
        most = plan.column("sample_id")[int(repeats.argmax())]
        raise DataError(
            f"{file}: sample {most.as_py()!r:.200} comes {repeats.max()} times; all shards together come "
            f"{runs} times, and {_MOST_RUNS} at most"
        )
    return Selection(source, of_shards)


def _read_plan(file: str) -> pa.Table:
    """Return the rows of a plan that have a shard, with numbers from 0 on, all of which are there.

    Raises:
        DataError: the file has no such columns, or a row has no such number; the message names its sample.
    """
    plan = read_small_table(file, _PLAN_SCHEMA.names)
    try:
        for name in _NUMBERS:
            if not pa.types.is_integer(plan.schema.field(name).type) and plan.column(name).null_count < len(
                plan
            ):
                raise TypeError(f"{name} is of {plan.schema.field(name).type}")
        plan = plan.select(_PLAN_SCHEMA.names).cast(_PLAN_SCHEMA)
    except (TypeError, pa.ArrowException) as error:
        raise DataError(f"{file}: not the plan of a training set: {' '.join(str(error).split())}") from error
    plan = plan.filter(pc.is_valid(plan.column("shard")))
    repeats = plan.schema.get_field_index("repeats")
    plan = plan.set_column(repeats, "repeats", plan.column("repeats").fill_null(1))
    for name in _NUMBERS:
        _refuse_row(file, plan, pc.less(plan.column(name), 0), f"a negative number in column {name}")
    return plan


def _spans(
    plan: pa.Table, uris: Sequence[str], rows: Sequence[Numbers], file: str
) -> list[tuple[Numbers, Numbers]]:
    """Return the first byte of each sample of each tar, and that behind its last.

    Raises:
        DataError: a sample has no place, or one outside of its tar if this is a local file. What a remote one
            does not have is found when it is read.
    """
    for name in ("offset", "bytes"):
        _refuse_row(file, plan, pc.is_null(plan.column(name)), f"no number in column {name}")
    starts, sizes = plan.column("offset").to_numpy(), plan.column("bytes").to_numpy()
    for uri, of_tar in zip(uris, rows, strict=True):
        most = np.iinfo(np.int64).max if is_remote(uri) or not exists(uri) else size_of(uri)
        is_outside = np.zeros(len(plan), bool)
        is_outside[of_tar] = (sizes[of_tar] == 0) | (sizes[of_tar] > most - starts[of_tar])
        _refuse_row(file, plan, pa.array(is_outside), f"its bytes are not in {uri}")
    stops = starts + sizes
    return [(starts[of_tar], stops[of_tar]) for of_tar in rows]


def _refuse_row(file: str, plan: pa.Table, is_wrong: Any, problem: str) -> None:
    """Refuse a plan with a wrong row; null is none."""
    if (row := pc.index(is_wrong, True).as_py()) >= 0:
        raise DataError(f"{file}: sample {plan.column('sample_id')[row].as_py()!r:.200}: {problem}")


def _refuse_split(split: str | None, splits: Sequence[str | None], file: str) -> None:
    names = list(filter(None, dict.fromkeys(splits)))
    if split is None and len(names) > 1:
        raise DataError(f"{file}: splits {', '.join(names)}: name one, as split={names[0]!r}")
    if split is not None and split not in names:
        raise DataError(f"{file}: no split {split!r}, but {', '.join(names)}")


def _files_of(folder: str, files: Sequence[str], plan: str) -> tuple[str, list[str]]:
    """Return the format of the shards of a plan, which names their main files, and where they lie."""
    found = format_by_suffix(files[0]) if files else None
    for file in files:
        if found is None or not _PLANNED_NAME.fullmatch(found.output(file)) or not found.has(file):
            raise DataError(f"{plan}: {file!r:.200} is no shard as mm-assets reshard names them")
    uris = [join(folder, file) for file in files]
    if found is None or not exists(uris[0]):
        raise DataError(f"{plan}: none of its shards is beside it")
    return found.name, [found.output(uri) for uri in uris]


def _by_shard(source: Source, rows: Numbers, file: str) -> list[Numbers]:
    """Return the plan's rows of each shard of a table, whose samples are in the plan's order."""
    ends = np.cumsum([0, *(shard.samples for shard in source.shards)])
    if ends[-1] != len(rows):
        raise DataError(f"{file}: a plan of {len(rows)} samples, and there are {ends[-1]}")
    return [rows[start:stop] for start, stop in zip(ends[:-1], ends[1:], strict=True)]
