"""Parquet files with a row per item, as sources of tables.

`ParquetSource` is any such file. `QuarantiningParquetSource` reads files of other tools, and quarantines
samples that cannot be used. `ReferencedImages` are those that a file of ours has elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.formats.batching import SampleIds, SampleSpans, cut_by_bytes, cut_rows, grouped
from mm_assets.formats.parquet import (
    IMAGE_REF,
    IMAGE_REFS,
    ROWS_AT_ONCE,
    ColumnIntegers,
    checked,
    column_chunks,
    image_keys,
    open_parquet,
    original_schema,
    place_of_images,
    read_batches,
    refers,
    restore,
    row_name,
    rows_within,
    unpacked_bytes,
)
from mm_assets.formats.parquet.document_file import WrittenOut
from mm_assets.formats.reader import FileSource, FileSurvey, SurveyedSample
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import (
    BAD_LAYOUT,
    BAD_SAMPLE_ID,
    DUPLICATE_ID,
    INCOMPLETE_SAMPLE,
    NOT_UTF8,
    ShardError,
)
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import (
    binary_views,
    blob_array,
    broken_rows,
    is_bytes,
    is_text,
    take_rows,
    with_bytes,
)
from mm_assets.model.samples import Offsets, build_source_ref, sample_offsets, sort_items
from mm_assets.model.schema import (
    INTERLEAVED_SCHEMA,
    METADATA_POSITION,
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    canonical_schema,
    refuse_misfits,
)
from mm_assets.storage.files import StorageOptions, size_of

# Arguments of each read; all others are of opening the file.
PER_READ = ("use_threads", "use_pandas_metadata")

_READ_AT_ONCE, _FILLED_AT_ONCE = 8 << 20, 32 << 20  # bytes; one larger sample is filled alone


class ReferencedImages:
    """Images of a file that lie in another one (`place_of_images`), which is open from the first use on.

    An image there is that of the same sample and position, with the bytes whose digest the reference has.
    No other bytes are ever put in its place.

    Args:
        uri: the file with the references.
        name: the file in messages.
        options: for the file system.
    """

    def __init__(self, uri: str, name: str, options: StorageOptions | None = None) -> None:
        self._name, self._options = name, options
        self._place = place_of_images(uri)
        self._last = 0  # row group that an image was in
        self._held: tuple[int, pa.Array] | None = None  # a row group, and its images

    @classmethod
    def of(
        cls, uri: str, file: pq.ParquetFile, name: str = "", options: StorageOptions | None = None
    ) -> Self | None:
        """Return the images of an open file; None if it has them all itself."""
        return cls(uri, name or uri, options) if refers(file) else None

    def parts(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows as `filled` returns them, a few megabytes of images at a time."""
        nbytes = pc.fill_null(self._refs(table).field("bytes"), 0).to_numpy(zero_copy_only=False)
        for part in cut_rows(table, sample_offsets(table), nbytes, _FILLED_AT_ONCE):
            yield self.filled(part)

    def filled(self, table: pa.Table) -> pa.Table:
        """Return rows with their images, and without the references.

        Args:
            table: rows as they are in the file, with the columns of `columns_for`.

        Raises:
            ShardError: an image is not there, or is not the one that was meant. The message names both
                files, the sample and the position.
        """
        refs, at = self._refs(table), table.schema.get_field_index(BLOBS)
        rest = table.drop_columns(IMAGE_REFS)
        rows = np.flatnonzero(refs.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return rest
        wanted = table.select(_KEY_COLUMNS).take(pa.array(rows))
        refs = refs.take(pa.array(rows))
        images = self._found(wanted, pc.sum(refs.field("bytes")).as_py() or 0)
        sizes, digests = (refs.field(name).to_pylist() for name in ("bytes", "digest"))
        for row, (view, size, digest) in enumerate(zip(binary_views(images), sizes, digests, strict=True)):
            if view is None or len(view) != size or xxhash.xxh3_128_hexdigest(view) != digest:
                raise self._fault(wanted, row, "is another image than was filtered")
        column = rest.column(BLOBS)
        offsets = np.frombuffer(images.buffers()[1], np.int64, len(images) + 1, images.offset * 8)
        ends = np.full(len(column) + 1, -1, np.int64)
        ends[0], ends[rows + 1] = offsets[0], offsets[1:]
        is_filled = np.isin(np.arange(len(column)), rows)
        filled = blob_array(np.maximum.accumulate(ends), images.buffers()[2], is_filled.tolist())
        if column.null_count < len(column):
            filled = pc.if_else(pa.array(is_filled), filled, column.cast(pa.large_binary()))
        field = rest.schema.field(at)
        return rest.set_column(at, field, filled.cast(field.type))

    @staticmethod
    def columns_for(names: Iterable[str]) -> list[str]:
        """Return the columns to read of the file for these with their images."""
        return list(dict.fromkeys([*names, *_KEY_COLUMNS, IMAGE_REFS]))

    def close(self) -> None:
        """Close the file with the images."""
        if "_file" in self.__dict__:
            self._file.close(force=True)

    def _refs(self, table: pa.Table) -> pa.StructArray:
        refs = [*table.column(IMAGE_REFS).chunks, pa.array([], IMAGE_REF)]
        return checked(lambda: pa.concat_arrays(refs), self._name)

    def _open(self, **opening: Any) -> pq.ParquetFile:
        return open_parquet(self._place, self._place, self._options, opening)

    @cached_property
    def _file(self) -> pq.ParquetFile:
        try:
            file = self._open()
        except FileNotFoundError as error:
            raise ShardError(f"{self._name}: its images lie in {self._place}: no such file") from error
        names = [*_KEY_COLUMNS, BLOBS]
        written = WrittenOut(
            file,
            lambda: size_of(self._place, self._options),
            self._place,
            lambda n: self._open(metadata=file.metadata, read_dictionary=n),
        )
        unfolds = any(written.rows(group, names) is not None for group in range(file.num_row_groups))
        if unfolds or refers(file) or not {*names} <= {*file.schema_arrow.names}:
            file.close(force=True)
            raise ShardError(f"{self._name}: its images lie in {self._place}: no file of images")
        return file

    @cached_property
    def _keys(self) -> list[pa.Array]:
        """The `image_keys` of each row group."""
        columns = [
            pa.chunked_array(column_chunks(self._place, self._file, self._place, name, self._options))
            for name in _KEY_COLUMNS
        ]
        table = pa.table(columns, _KEY_COLUMNS)
        keys = checked(lambda: image_keys(table), self._place).combine_chunks()
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        ends = np.cumsum([0, *(group.num_rows for group in groups)]).tolist()
        return [keys.slice(start, end - start) for start, end in pairwise(ends)]

    def _found(self, wanted: pa.Table, nbytes: int) -> pa.Array:
        """Return the images of rows, which are all images, in their order; ``nbytes`` together."""
        keys, groups = image_keys(wanted).combine_chunks(), len(self._keys)
        if nbytes > size_of(self._place, self._options):
            raise self._fault(wanted, 0, "is another: those of this file were larger than that is")
        rows, parts, order = np.arange(len(keys)), [], []
        for group in [*range(self._last, groups), *range(self._last)]:  # the order of rows is the same
            if not len(rows):
                break
            places = pc.index_in(keys.take(pa.array(rows)), value_set=self._keys[group])
            here = pc.is_valid(places).to_numpy(zero_copy_only=False)
            if here.any():
                self._last = group
                parts.append(self._taken(group, places.drop_null()))
                order.append(rows[here])
                rows = rows[~here]
        if len(rows):
            raise self._fault(wanted, int(rows[0]), "is not there")
        return _in_order(parts, np.concatenate(order))

    def _taken(self, group: int, places: pa.Array) -> pa.Array:
        """Return the images at these rows of a row group."""
        metadata = self._file.metadata.row_group(group)
        nbytes = checked(lambda: unpacked_bytes(metadata, [BLOBS]), self._place)
        if nbytes <= _FILLED_AT_ONCE:
            if self._held is None or self._held[0] != group:
                self._held = None  # before the next one is read
                read = partial(self._file.read_row_group, group, columns=[BLOBS], use_threads=False)
                images = checked(read, self._place, self._file).column(0).cast(pa.large_binary())
                # To combine one chunk would copy it.
                self._held = group, images.chunk(0) if images.num_chunks == 1 else images.combine_chunks()
            return self._held[1].take(places)
        numbers, first, parts, order = places.to_numpy(), 0, [], []
        rows = rows_within(_READ_AT_ONCE, nbytes // max(metadata.num_rows, 1))
        for batch in read_batches(self._file, group, [BLOBS], rows, self._place, use_threads=False):
            here = np.flatnonzero((numbers >= first) & (numbers < first + batch.num_rows))
            images = batch.column(0).cast(pa.large_binary())
            parts.append(images.take(pa.array(numbers[here] - first)))
            order.append(here)
            first += batch.num_rows
        return _in_order(parts, np.concatenate(order))

    def _fault(self, wanted: pa.Table, row: int, what: str) -> ShardError:
        sample_id, position = (wanted.column(name)[row].as_py() for name in ("sample_id", "position"))
        return ShardError(
            f"{self._name}: sample {sample_id!r:.200}, position {position}: {BLOBS}: the image in "
            f"{self._place} {what}; mm-assets run makes again what differs"
        )


_KEY_COLUMNS = ["sample_id", "position", "modality"]


def _in_order(parts: Sequence[pa.Array], order: Offsets) -> pa.Array:
    """Return values in the order of the numbers that they have in ``order``."""
    values = pa.concat_arrays(parts)
    return values if (np.diff(order) > 0).all() else values.take(pa.array(np.argsort(order)))


class ParquetSource(FileSource):
    """One open Parquet file; only the requested columns are read, a few megabytes at a time.

    Args:
        uri: path or URL.
        file: the open file.
        read_kwargs: arguments of each read (``PER_READ``), and ``filters``.
        id_prefix: put in front of each sample id.
        name: the file in messages; ``uri`` by default.
        options: for the file system.
    """

    def __init__(
        self,
        uri: str,
        file: pq.ParquetFile,
        read_kwargs: Mapping[str, Any],
        id_prefix: str = "",
        name: str = "",
        options: StorageOptions | None = None,
    ) -> None:
        self._read_kwargs = {
            "use_threads": False,
            **{name: value for name, value in read_kwargs.items() if name in PER_READ},
        }
        filters = read_kwargs.get("filters")
        self._filter = None if filters is None else pq.filters_to_expression(filters)
        self._file = file
        self._options = options
        self._name = name or uri
        self._id_prefix = id_prefix
        self._images = ReferencedImages.of(uri, file, self._name, options)
        self._blob_columns = [at for at, column in enumerate(file.schema) if column.path == BLOBS]
        super().__init__(uri, original_schema(file), file.metadata.num_rows if filters is None else None)

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        # Selected by name again: to Parquet, "x.y" also means the child "y" of "x".
        target = pa.schema([self.schema.field(name) for name in columns])
        found = (
            restore(table.select(target.names), target) for table in self._passing(target.names, max_bytes)
        )
        return cut_by_bytes(
            (self._prefixed(table) for table in found) if self._id_prefix else found, max_bytes
        )

    def _prefixed(self, table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("sample_id")
        field = table.schema.field(index)
        ids = pc.binary_join_element_wise(self._id_prefix, table.column(index).cast(pa.string()), "")
        return table.set_column(index, field, ids.cast(field.type))

    def _passing(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        if self._filter is None:
            yield from grouped(self._slices(columns, max_bytes), self._spans, max_bytes, self._name)
            return
        # The filter may need a column that is not read otherwise.
        slices = self._slices(self.schema.names, max_bytes)
        for table in grouped(slices, self._spans, max_bytes, self._name):
            yield table.filter(self._filter)

    @cached_property
    def _spans(self) -> SampleSpans | None:
        written, groups = self._written_out(), range(self._file.num_row_groups)
        if all(written.rows(group, ["sample_id"]) is None for group in groups):
            ids = column_chunks(self.uri, self._file, self._name, "sample_id", self._options)
        else:
            ids = [chunk for table in self._slices(["sample_id"], None) for chunk in table.column(0).chunks]
        return SampleSpans.of(ids)

    def _written_out(self) -> WrittenOut:
        return WrittenOut(self._file, lambda: size_of(self.uri, self._options), self._name, self._reopened)

    def _reopened(self, dictionaries: list[str]) -> pq.ParquetFile:
        opening = {"metadata": self._file.metadata, "read_dictionary": dictionaries}
        return open_parquet(self.uri, self._name, self._options, opening)

    def _slices(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        written = self._written_out()
        images = self._images if BLOBS in columns else None
        names = columns if images is None else images.columns_for(columns)
        for group in range(self._file.num_row_groups):
            for table in self._group(group, names, max_bytes, written.rows(group, names)):
                written.count(table)
                if images is None:
                    yield table
                else:
                    yield from images.parts(table)

    def _group(
        self, group: int, columns: list[str], max_bytes: int | None, most_rows: int | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of a row group, at most ``most_rows`` at a time."""
        row_group = self._file.metadata.row_group(group)
        nbytes = row_group.total_byte_size
        if BLOBS not in columns:  # most of the bytes are not read
            nbytes = checked(lambda: unpacked_bytes(row_group, columns), self._name)
        mean = nbytes // max(row_group.num_rows, 1)
        if most_rows is None and (max_bytes is None or nbytes <= max_bytes // 2):
            yield self._checked(
                partial(self._file.read_row_group, group, columns=columns, **self._read_kwargs)
            )
            return
        budget = max_bytes or 8 * row_group.total_byte_size
        blobs = sum(row_group.column(at).total_uncompressed_size for at in self._blob_columns)
        if (
            most_rows is None
            and blobs
            and BLOBS in columns
            and row_group.num_rows <= ROWS_AT_ONCE
            and row_group.total_byte_size - blobs <= budget // 8
        ):
            yield from self._images_separately(
                group, [name for name in columns if name != BLOBS], blobs // row_group.num_rows, budget
            )
            return
        rows = min(rows_within(budget // 8, mean), most_rows or ROWS_AT_ONCE)
        for batch in read_batches(self._file, group, columns, rows, self._name, **self._read_kwargs):
            yield pa.Table.from_batches([batch])

    def _images_separately(
        self, group: int, others: list[str], mean: int, max_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a group with large images: images a few at a time, all other columns at once."""
        table = self._checked(lambda: self._file.read_row_group(group, columns=others, **self._read_kwargs))
        field = self._file.schema_arrow.field(BLOBS)
        pieces: list[pa.Array] = []
        start = rows = filled = 0
        rows_at_once = rows_within(max_bytes // 8, mean)
        for batch in read_batches(self._file, group, [BLOBS], rows_at_once, self._name, **self._read_kwargs):
            pieces.append(batch.column(BLOBS))
            rows += batch.num_rows
            filled += pieces[-1].nbytes
            if filled > max_bytes // 4 or start + rows == table.num_rows:
                yield table.slice(start, rows).append_column(field, pa.chunked_array(pieces))
                start, rows, filled, pieces = start + rows, 0, 0, []

    def _checked(self, read: Callable[[], pa.Table]) -> pa.Table:
        return checked(read, self._name, self._file)

    def close(self) -> None:
        if self._images is not None:
            self._images.close()
        self._file.close(force=True)  # a remote file was opened here, not by pyarrow


_ERROR = "materialize_error"


class QuarantiningParquetSource(ParquetSource):
    """A Parquet file whose rows are all checked when it is opened, without the bytes of the images.

    Samples that cannot be used become ``losses``. Messages and locators call the file ``path``.
    """

    def __init__(
        self,
        uri: str,
        file: pq.ParquetFile,
        path: str,
        ids: SampleIds,
        id_prefix: str,
        options: StorageOptions | None = None,
    ) -> None:
        super().__init__(uri, file, {}, id_prefix, path, options)
        _check_required_types(self.schema, path)
        self._path, self._ids = path, ids
        self._is_kept = np.ones(file.metadata.num_rows, bool)
        self._samples: list[SurveyedSample] = []
        self._unresolved: list[tuple[str, int, str]] = []
        self._passthrough = pa.schema(
            [field for field in canonical_schema(self.schema) if field.name not in RESERVED_COLUMNS]
        )
        self._integers = ColumnIntegers(self._passthrough)
        self._numbers = None if self._spans is None else self._spans.row_order()
        first = 0
        for table in self.tables([name for name in self.schema.names if name != BLOBS], _READ_AT_ONCE):
            self._inspect(table, first)
            first += table.num_rows
        self.items = int(self._is_kept.sum()) + sum(loss.is_item for loss in self.losses)

    def survey(self) -> FileSurvey:
        """Return the survey of the file."""
        return FileSurvey(
            samples=tuple(self._samples),
            losses=tuple(self.losses),
            unresolved=tuple(self._unresolved),
            declared=(self._passthrough,),
            declared_ints=self._integers.tallies,
            members=len(self._is_kept),
        )

    def _passing(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        first = 0
        for table in super()._passing(columns, max_bytes):
            is_kept = self._is_kept[first : first + table.num_rows]
            first += table.num_rows
            yield table if is_kept.all() else take_rows(table, np.flatnonzero(is_kept))

    def _inspect(self, table: pa.Table, first: int) -> None:
        """Find the samples in some rows; ``first`` is the number of the first row in reading order."""
        self._integers.observe(table)
        broken = broken_rows(_with_text(table))
        is_orderly = not broken and _disorder(table) is None
        runs = sample_offsets(table).tolist()
        pending = list(zip(runs, runs[1:], strict=False))[::-1]
        while pending:
            start, end = pending.pop()
            rows = table.slice(start, end - start)
            fault = (
                None
                if is_orderly
                else _fault(rows, [broken[row] for row in range(start, end) if row in broken])
            )
            if fault is not None and (runs_apart := self._runs(first, start, end)):
                pending += runs_apart[::-1]
                continue
            if fault is not None:
                unreadable = {row - start: broken[row] for row in range(start, end) if row in broken}
                self._quarantine_unusable(rows, first + start, *fault, unreadable)
            else:
                sample_id = rows.column("sample_id")[0].as_py()
                collision = self._ids.register(sample_id, self._row_name(first + start), self._path)
                if collision is None:
                    self._add_sample(rows, sample_id, first + start)
                    continue
                self._quarantine_duplicate(rows, first + start, collision)
            self._is_kept[first + start : first + end] = False

    def _runs(self, first: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the runs of rows that are consecutive in the file; none if all rows are.

        Rows that form no valid sample together may belong to several samples with one id.
        """
        if self._numbers is None:
            return []
        cuts = (start + 1 + np.flatnonzero(np.diff(self._numbers[first + start : first + end]) != 1)).tolist()
        return list(zip([start, *cuts], [*cuts, end], strict=True)) if cuts else []

    def _add_sample(self, rows: pa.Table, sample_id: str, first: int) -> None:
        images = pc.sum(pc.equal(rows.column("modality"), "image")).as_py()
        self._samples.append(
            SurveyedSample(sample_id, self._row_name(first), None, None, rows.num_rows, images)
        )
        if _ERROR in rows.column_names and rows.column(_ERROR).null_count < rows.num_rows:
            for row in rows.select(["position", "modality", _ERROR]).to_pylist():
                if row["modality"] == "image" and row[_ERROR] is not None:
                    self._unresolved.append((sample_id, row["position"], row[_ERROR]))

    def _quarantine_unusable(
        self, rows: pa.Table, first: int, kind: str, message: str, unreadable: Mapping[int, str]
    ) -> None:
        """Quarantine an unusable sample: as one item, if its rows cannot be told apart.

        ``unreadable`` has the rows with text that is not UTF-8, and the column of each.
        """
        if unreadable and _are_items(rows, unreadable.values()):
            self._quarantine_unreadable(rows, first, unreadable)
            return
        ids = with_bytes(rows.column("sample_id").combine_chunks())
        sample_id = None if ids[0].as_py() is None else ids[0].as_py().decode("utf-8", "backslashreplace")
        reason = f"{self._path}: {self._row_name(first)}: {message}"
        item = sample_id, METADATA_POSITION, "metadata"
        self.losses.append(Loss.quarantined(*item, kind, reason, self._ref(first)))

    def _quarantine_unreadable(self, rows: pa.Table, first: int, unreadable: Mapping[int, str]) -> None:
        cause = min(unreadable)
        where = f"{self._path}: {self._row_name(first + cause)}"
        for number, row in enumerate(rows.select(REQUIRED_COLUMNS).to_pylist()):
            place = f"{self._path}: {self._row_name(first + number)}"
            reason = (
                f"{place}: column {unreadable[number]!r}: not UTF-8"
                if number in unreadable
                else f"its sample has an error: {where}: column {unreadable[cause]!r}: not UTF-8"
            )
            kind = NOT_UTF8 if number in unreadable else INCOMPLETE_SAMPLE
            ref = self._ref(first + number)
            self.losses.append(
                Loss.quarantined(**row, kind=kind, reason=reason, source_ref=ref, is_cause=number == cause)
            )

    def _quarantine_duplicate(self, rows: pa.Table, first: int, reason: str) -> None:
        for number, row in enumerate(rows.select(REQUIRED_COLUMNS).to_pylist()):
            ref = self._ref(first + number)
            item = Loss.quarantined(
                **row, kind=DUPLICATE_ID, reason=reason, source_ref=ref, is_cause=number == 0
            )
            self.losses.append(item)

    def _ref(self, row: int) -> str:
        return build_source_ref(self._path, self._row_name(row))

    def _row_name(self, row: int) -> str:
        return row_name(row if self._numbers is None else int(self._numbers[row]))


def _with_text(table: pa.Table) -> pa.Table:
    """Return the rows with bytes in reserved columns of text as text, without any check."""
    for index, field in enumerate(table.schema):
        canonical = (
            field.name in RESERVED_COLUMNS and INTERLEAVED_SCHEMA.field(field.name).type == pa.string()
        )
        if canonical and is_bytes(field.type):
            type_ = pa.large_string() if pa.types.is_large_binary(field.type) else pa.string()
            table = table.set_column(index, field.name, table.column(index).cast(type_, safe=False))
    return table


def _check_required_types(schema: pa.Schema, path: str) -> None:
    for name in REQUIRED_COLUMNS:
        type_ = schema.field(name).type
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not (pa.types.is_integer(plain) if name == "position" else is_text(plain)):
            raise ShardError(f"{path}: not interleaved data: column {name!r} is {type_!s:.100}")


def _fault(rows: pa.Table, broken: Sequence[str]) -> tuple[str, str] | None:
    if broken:
        return NOT_UTF8, f"column {broken[0]!r}: not UTF-8"
    if rows.column("sample_id").null_count:
        return BAD_SAMPLE_ID, "column 'sample_id' is null"
    disorder = _disorder(rows)
    return None if disorder is None else (BAD_LAYOUT, disorder)


def _are_items(rows: pa.Table, unreadable: Iterable[str]) -> bool:
    """Return whether rows are items of one sample, whatever their text is."""
    if not set(unreadable).isdisjoint(REQUIRED_COLUMNS) or rows.column("sample_id").null_count:
        return False
    try:
        sort_items(rows.select(REQUIRED_COLUMNS))
    except ValueError:
        return False
    return True


def _disorder(rows: pa.Table) -> str | None:
    """Return why some rows are no items of interleaved samples; None if they are."""
    try:
        sort_items(rows.select(REQUIRED_COLUMNS))
        refuse_misfits(rows)
    except ValueError as error:
        return str(error)
    return None
