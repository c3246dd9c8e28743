"""Parquet files of other tools with a row per item, read with quarantine of samples that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.formats.column_integers import ColumnIntegers
from mm_assets.formats.file_survey import FileSurvey, SurveyedSample
from mm_assets.formats.parquet_items import ParquetSource
from mm_assets.formats.parquet_rows import row_name
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved.buffers import is_bytes, take_rows
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.faults import BAD_LAYOUT, BAD_SAMPLE_ID, DUPLICATE_ID, INCOMPLETE_SAMPLE, NOT_UTF8
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.samples import sample_offsets, sort_items
from mm_assets.interleaved.schema import (
    INTERLEAVED_SCHEMA,
    METADATA_POSITION,
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    canonical_schema,
    refuse_misfits,
)
from mm_assets.interleaved.source_ref import build_source_ref
from mm_assets.interleaved.text_validity import broken_rows, with_bytes

_READ_AT_ONCE = 8 << 20  # bytes
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
        self.losses.append(
            Loss(
                sample_id,
                METADATA_POSITION,
                "metadata",
                "quarantined",
                kind,
                reason,
                source_ref=self._ref(first),
            )
        )

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
            self.losses.append(
                Loss(
                    **row,
                    outcome="quarantined",
                    kind=NOT_UTF8 if number in unreadable else INCOMPLETE_SAMPLE,
                    reason=reason,
                    source_ref=self._ref(first + number),
                    is_cause=number == cause,
                )
            )

    def _quarantine_duplicate(self, rows: pa.Table, first: int, reason: str) -> None:
        for number, row in enumerate(rows.select(REQUIRED_COLUMNS).to_pylist()):
            ref = self._ref(first + number)
            self.losses.append(
                Loss(
                    **row,
                    outcome="quarantined",
                    kind=DUPLICATE_ID,
                    reason=reason,
                    source_ref=ref,
                    is_cause=number == 0,
                )
            )

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
        is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
        if not (pa.types.is_integer(plain) if name == "position" else is_text):
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
