"""Datasets in Python: what is read, filtered and written, and the conversion of all partitions.

* `read` makes a `Dataset` of files. It is lazy: steps are noted, and applied where rows are asked for.
* `DatasetConversion` converts each partition in a worker, for `Dataset.write` and ``mm-assets convert``.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import lost_items_folder, publish_lists
from mm_assets.accounting.erasures import DenyList
from mm_assets.accounting.loss_share import LossShare
from mm_assets.filters import KEYS
from mm_assets.filters.chain import FilterChain
from mm_assets.filters.known_hashes import opened_hash_lists
from mm_assets.filters.readable import ReadableImages
from mm_assets.filters.registry import (
    NONE,
    PRESETS,
    chain_of,
    filters_of,
    known_filters,
    settings_of,
    with_preset,
)
from mm_assets.formats.names import ARRAY_SUFFIXES, SHOWN, format_by_suffix, format_of, output_of
from mm_assets.formats.partitions import Partition, relative_root, root_of_locations
from mm_assets.formats.raw_shards import RawLocations, location_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import (
    DEFAULT_BATCH_BYTES,
    SUFFIXES,
    Conversion,
    detect_format,
    other_formats,
    plan_conversions,
    readable_schema,
    reader_for,
    resolve_duplicates,
    writer_for,
)
from mm_assets.formats.reports import PartitionReport, PartitionsRefused, WriteReport
from mm_assets.formats.writer import ExistingPartitions, InterleavedWriter
from mm_assets.model.errors import (
    DENIED,
    ERASED,
    LISTED_HASH,
    MmAssetsError,
    ShardError,
    counted,
    first_and_more,
    html_text,
    nearest,
    require,
    warn_user,
)
from mm_assets.model.samples import BatchStream, InterleavedBatch, Step
from mm_assets.model.schema import align_table, canonical_schema, unify_schemas
from mm_assets.pool import available_cores
from mm_assets.pool.workers import WorkerPool
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings, load_plugins
from mm_assets.storage.errors import error_line, located, readable_store_errors
from mm_assets.storage.files import (
    absolute,
    is_within,
    no_empty_folders,
    refuse_unwritable,
    sweep,
    sweep_output,
)
from mm_assets.storage.listing import Paths
from mm_assets.storage.stamps import Note
from mm_assets.terminal import Progress

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Dataset", "PartitionsFailed", "read"]

_BYTES = "binary_content"
_MOST_BYTES = 2 << 30


@dataclass(frozen=True, repr=False)
class Dataset:
    """What a reader reads, with steps applied. Nothing is read before rows are asked for.

    Iterated, it gives `InterleavedBatch`es. Sample ids, positions and columns are those of
    `docs/data_model.md`.

    Args:
        reader: of the files.
        steps: applied to each batch, in order; see `filter`.
    """

    reader: InterleavedReader
    steps: tuple[Step, ...] = ()

    def __repr__(self) -> str:
        steps = f", {counted(len(self.steps), 'step')}" if self.steps else ""
        return f"<Dataset: {self.reader!r}{steps}>"

    def _repr_html_(self) -> str:
        note = "<p>These rows are those before its steps.</p>" if self.steps else ""
        return f"<p>{html_text(repr(self))}</p>{self.reader.first_rows_html()}{note}"

    def __iter__(self) -> Iterator[InterleavedBatch]:
        for stream in self.streams():
            yield from stream

    def streams(self) -> Iterator[BatchStream]:
        """Yield one stream per partition. Once it is read, its ``losses`` are what is not among its rows."""
        partitions = self.reader.partitions()
        fitting = fitted(self.steps, self.reader, partitions, self._lists.name)
        steps = (ReadableImages(), *fitting) if fitting else ()
        for partition in partitions:
            yield self.reader.open(partition).through(steps)

    @cached_property
    def _lists(self) -> tempfile.TemporaryDirectory[str]:
        """Where filters keep copies of their lists of ids as long as there is this dataset."""
        return tempfile.TemporaryDirectory(prefix="mm-assets-")

    @cached_property
    def samples(self) -> int:
        """Number of samples, counted when it is first asked for: from ids alone where no filter is."""
        return sum(len(pc.unique(table.column("sample_id"))) for table in self._tables(["sample_id"]))

    def filter(self, *, preset: str = NONE, actions: Sequence[str] = (), **settings: Any) -> Dataset:
        """Return a dataset without the images and samples that filters refuse.

        Args:
            preset: name of settings that are set together; those given come before it.
            actions: what filters do with what they refuse, such as ``"sharpness=flag"``.
            settings: of filters, by their names in ``docs/filters.md``: ``min_aspect_ratio=0.5``.

        Raises:
            ValueError: in one line, for an unknown name, and for values that do not fit.
        """
        filters = known_filters(load_plugins())
        known = {each.name: each.kind for each in settings_of(filters)}
        for name in settings:
            if name not in known:
                raise ValueError(f"filter(): there is no setting {name!r}; {nearest(name, sorted(known))}")
        if preset not in PRESETS:
            raise ValueError(f"filter(): there is no preset {preset!r}; {nearest(preset, PRESETS)}")
        given = {name: _setting(name, known[name], value) for name, value in settings.items()}
        chain = chain_of(filters_of(filters, with_preset(preset, given), actions))
        return self if chain is None else replace(self, steps=(*self.steps, chain))

    def write(
        self,
        path: str | os.PathLike[str],
        to: str | None = None,
        *,
        workers: int = 0,
        max_loss: float | None = None,
        **options: Any,
    ) -> WriteReport:
        """Write all partitions, as ``mm-assets convert`` does, and return the report.

        Args:
            path: folder, URL, or one file or table.
            to: format; None: that of the suffix of ``path``.
            workers: processes; 0: one per core.
            max_loss: share of a file's members and items that may be lost; None: ``MM_MAX_LOSS``.
            options: of the writer, such as ``on_materialize_error="drop_row"`` and ``mode="overwrite"``.

        Raises:
            PartitionsFailed: some could not be written; the others were.
            PartitionsExist: some are there, from another source; nothing was written.
            ValueError: the format is not known, or the output is in its own input.
        """
        target = os.fspath(path)
        named = format_by_suffix(target)
        if to is None and named is None:
            raise ValueError(f"{target}: name its format (to=), or a file of {SHOWN}")
        kind = format_of(to or (named.name if named is not None else "")).name
        for source in self.reader.file_paths:
            refuse_nested(source, target)
        with no_empty_folders(os.path.dirname(target) if format_of(kind).has(target) else target):
            writer = writer_for(kind, target, **{"roots": self.reader.roots, **options})
            conversion = DatasetConversion(self.reader, writer, (ReadableImages(), *self.steps))
            converted = conversion.run(kind, workers, max_loss)
        if converted.failures:
            raise PartitionsFailed(converted.failures, converted.report)
        return converted.report

    def to_table(self, columns: Sequence[str] | None = None, max_bytes: int = _MOST_BYTES) -> pa.Table:
        """Return all rows as one Arrow table.

        Args:
            columns: names; None: all. Without ``binary_content`` no image is read, and any size is taken.
            max_bytes: limit of a table with image bytes: 2 GiB.

        Raises:
            ValueError: the table would be larger, or no partition has one of the columns.
        """
        is_bounded = columns is None or _BYTES in columns
        tables: list[pa.Table] = []
        nbytes = 0
        for table in self._tables(columns):
            nbytes += table.nbytes
            if is_bounded and nbytes > max_bytes:
                raise ValueError(
                    f"{self!r}: the rows are more than {max_bytes} bytes; name columns= without {_BYTES}, "
                    "raise max_bytes=, or take batch by batch"
                )
            tables.append(table)
        if not tables:
            tables = [canonical_schema(pa.schema([])).empty_table()]
        found = unify_schemas(table.schema for table in tables)
        for name in columns or ():
            if name not in found.names:
                raise ValueError(
                    f"{self!r}: there is no column {name!r}; {nearest(name, self._schema().names)}"
                )
        schema = found if columns is None else pa.schema([found.field(name) for name in columns])
        return pa.concat_tables([align_table(table, schema) for table in tables])

    def to_pandas(
        self, columns: Sequence[str] | None = None, max_bytes: int = _MOST_BYTES
    ) -> pandas.DataFrame:
        """Return all rows as a pandas table, integers and booleans as its nullable ones; see `to_table`."""
        require("pandas")
        import pandas

        names = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
        exact: dict[str, Any] = {name.lower(): pandas.api.types.pandas_dtype(name) for name in names}
        exact["bool"] = pandas.BooleanDtype()
        return self.to_table(columns, max_bytes).to_pandas(types_mapper=lambda kind: exact.get(str(kind)))

    def to_polars(
        self, columns: Sequence[str] | None = None, max_bytes: int = _MOST_BYTES
    ) -> polars.DataFrame:
        """Return all rows as a Polars table; see `to_table`."""
        require("polars")
        import polars

        found = polars.from_arrow(self.to_table(columns, max_bytes))
        assert isinstance(found, polars.DataFrame)
        return found

    def sql(self, query: str) -> pa.Table:
        """Return the result of a query by DuckDB, in which the rows are the table ``items``.

        Image bytes are only read if the query names ``binary_content``. What does not fit into memory is
        spooled to a temporary folder.
        """
        require("duckdb")
        import duckdb

        columns = self._schema()
        schema = pa.schema([each for each in columns if each.name != _BYTES or _BYTES in query.lower()])
        rows = (align_table(table, schema) for table in self._tables(schema.names))
        batches = (batch for table in rows for batch in table.to_batches())
        with (
            tempfile.TemporaryDirectory(prefix="mm-assets-") as folder,
            duckdb.connect(config={"temp_directory": folder}) as connection,
        ):
            connection.register("stream", pa.RecordBatchReader.from_batches(schema, batches))
            connection.execute("CREATE TEMP TABLE items AS SELECT * FROM stream")
            connection.unregister("stream")
            if (found := connection.sql(query)) is None:
                raise ValueError("sql(): no query that returns rows")
            return found.to_arrow_table()

    def _schema(self) -> pa.Schema:
        schemas = (stream.schema for stream in self.streams())
        return unify_schemas([canonical_schema(pa.schema([])), *schemas])

    def _tables(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield all rows; no other column is read if there are no steps, which may look at any."""
        if columns is not None and not self.steps:
            for partition in self.reader.partitions():
                yield from self.reader.project(partition, columns)[1]
            return
        for batch in self:
            names = [name for name in columns or () if name in batch.data.column_names]
            yield batch.data if columns is None else batch.data.select(names)


def _setting(name: str, kind: type, value: Any) -> Any:
    """Return the value of a setting, of its kind."""
    if kind is tuple and isinstance(value, str):
        return (value,)
    kinds: tuple[type, ...] = {float: (int, float), tuple: (list, tuple)}.get(kind, (kind,))
    if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
        raise ValueError(f"filter(): {name} must be {kind.__name__}, not {value!r:.100}")
    return value


def read(source: Paths | InterleavedReader, **options: Any) -> Dataset:
    """Return the dataset of some files; their format is found by their names.

    Args:
        source: path, folder, glob, brace list or URL, or a list of them; PDFs; ``plugin:NAME``; or a reader,
            such as that of `documents`.
        options: of the reader of that format, such as ``fields=["url"]``.

    Raises:
        FileNotFoundError: there are no data.
        ValueError: there are several formats.
        TypeError: the reader has no such option.
    """
    if isinstance(source, InterleavedReader):
        if options:
            raise TypeError(f"read(): a reader has its options already: {first_and_more(list(options))}")
        return Dataset(source)
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    places = [location_of(os.fspath(place)) for place in given]
    kinds = sorted({detect_format(place, options.get("storage_options")) for place in places})
    if len(kinds) != 1:
        raise ValueError(f"read(): {first_and_more(places)}: {' and '.join(kinds) or 'no location'}")
    return Dataset(reader_for(kinds[0], places, **{**arguments_of(kinds[0], places), **options}))


def arguments_of(kind: str, places: Sequence[str]) -> dict[str, Any]:
    """Return arguments of a reader of files: the size of its batches, and where locators may point.

    That is into these files' folder, or where the raw shards of the graph are. Local documents of others are
    located relative to the folder, so that no path of this machine leaks.
    """
    root = root_of_locations(places, (*SUFFIXES, *ARRAY_SUFFIXES))
    roots = [*RawLocations(given_settings().get("MM_RAW_SHARDS", "")).roots(), root]
    found: dict[str, Any] = {"max_batch_bytes": DEFAULT_BATCH_BYTES, "roots": roots}
    if format_of(kind).raw_options:
        found["relative_to"] = relative_root([root])
    return found


class PartitionsFailed(MmAssetsError, ValueError):
    """Some partitions could not be written; the others were.

    ``reasons`` has the reason of each, ``report`` what was written.
    """

    def __init__(self, reasons: Sequence[str], report: WriteReport) -> None:
        self.reasons = tuple(reasons)
        self.report = report
        total = len(reasons) + len(report.partitions)
        super().__init__(f"{len(reasons)} of {counted(total, 'partition')} not written: {reasons[0]}")


@dataclass(frozen=True)
class Converted:
    """What became of a conversion: the report, a line for each failure, and partitions left alone."""

    report: WriteReport
    failures: Sequence[str]
    skipped: frozenset[str]


class DatasetConversion:
    """Conversion of all partitions of a dataset; ``existing`` tells what the output has already.

    Raises:
        ValueError: the output would overwrite the input, or several partitions would become one file.
        OSError: the output cannot be written.
    """

    def __init__(self, reader: InterleavedReader, writer: InterleavedWriter, steps: Sequence[Step]) -> None:
        refuse_unwritable(os.path.dirname(lost_items_folder(writer)))
        self._conversions = plan_conversions(reader, writer, steps)
        self.writer = self._conversions[0].writer if self._conversions else writer
        _refuse_overwriting(self._conversions)
        with readable_store_errors(), located(writer.path):
            self.existing = ExistingPartitions(
                self.writer, {each.partition.name: each.sources for each in self._conversions}
            )

    def run(
        self, kind: str, workers: int, max_loss: float | None = None, may_fork: bool = False
    ) -> Converted:
        """Convert every partition; a bad one fails alone.

        Args:
            kind: format of the output.
            workers: processes; 0: one per core.
            max_loss: share of a file's members and items that may be lost; None: as set.
            may_fork: see `WorkerPool`.

        Raises:
            PartitionsExist: the mode refuses to replace existing partitions; nothing is written.
        """
        writer, existing = self.writer, self.existing
        with readable_store_errors(), located(writer.path):
            skipped = existing.skipped()
            if others := other_formats(writer.path, kind):
                warn_user(
                    f"{writer.path}: holds {' and '.join(others)}, too: "
                    "who reads the folder has to name the files of one"
                )
            conversions = [each for each in self._conversions if each.partition.name not in skipped]
            sweep_output(writer.path)
            sweep(lost_items_folder(writer))
        settings = Settings.load()
        limit = settings.max_loss if max_loss is None else max_loss
        processes = min(workers or available_cores(), max(len(conversions), 1))
        reports: list[PartitionReport] = []
        with (
            tempfile.TemporaryDirectory() as lists,
            WorkerPool(processes, may_fork=may_fork, time_limit=settings.shard_timeout) as pool,
        ):
            deny = deny_list_of(settings, lists)
            partitions = [each.partition for each in conversions]
            if partitions:
                steps = fitted(conversions[0].steps, conversions[0].reader, partitions, lists)
                if deny:
                    steps = (deny.step(writer.on_materialize_error, writer.roots), *steps)
                conversions = [replace(each, steps=steps) for each in conversions]
            conversions, failures = resolve_duplicates(conversions, pool.map, deny.hides_sample)
            jobs = [_Job(each, existing.note_of(each.partition.name)) for each in conversions]
            with Progress(len(jobs)) as progress:
                for (conversion, _), result in pool.map(partial(_convert, max_loss=limit), jobs):
                    if isinstance(result, PartitionReport):
                        reports.append(result)
                        progress.add(result.samples, result.nbytes)
                    else:
                        failures.append(_named(conversion, result.message))
                        progress.add(0, 0)
        reports.sort(key=lambda report: report.partition)
        try:
            with readable_store_errors(), located(writer.path):
                writer.finish(reports)
        except PartitionsRefused as error:  # the other partitions are reported all the same
            failures += error.reasons
            reports = [report for report in reports if report.partition not in error.complaints]
        except (OSError, ValueError) as error:  # none of them has landed
            failures.append(error_line(error))
            reports = []
        with readable_store_errors(), located(writer.path):
            existing.note_published([report.partition for report in reports])
        publish_lists(writer, reports)
        kinds = Counter(loss.kind for report in reports for loss in report.losses if loss.kind in DENIED)
        if kinds:
            places = {ERASED: f"erased on request in {settings.storage}", LISTED_HASH: "in MM_HASH_LISTS"}
            of_kind = ", ".join(f"{kinds[kind]} {place}" for kind, place in places.items() if kinds[kind])
            warn_user(f"{counted(kinds.total(), 'item')} refused: {of_kind}")
        return Converted(WriteReport(writer.path, tuple(reports)), failures, frozenset(skipped))


def deny_list_of(settings: Settings, folder: str = "") -> DenyList:
    """Return what may not come in: by the erasures of ``MM_STORAGE``, and by ``MM_HASH_LISTS``.

    Args:
        settings: with both.
        folder: where copies of hash lists are written, which every worker reads.

    Raises:
        ValueError: in one line, a list cannot be used, or no picture compared.
    """
    with located(settings.storage):
        lists = opened_hash_lists(settings.hash_lists, folder)
        deny = DenyList.read(absolute(settings.storage), lists=lists)
    deny.refuse_missing_extra()
    return deny


def holds_denied(reader: InterleavedReader, deny: DenyList, workers: int) -> bool:
    """Return whether anything in a dataset is denied; images are read only if the list names their bytes.

    What cannot be read counts as denied: a conversion tells what is wrong.

    Args:
        reader: of the files.
        deny: what may not come in.
        workers: processes; 0: one per core.
    """
    jobs = [_Looked(reader, partition) for partition in reader.partitions()]
    processes = min(workers or available_cores(), max(len(jobs), 1))
    with WorkerPool(processes, may_fork=True) as pool:
        return any(answer is not False for _, answer in pool.map(partial(_is_denied, deny=deny), jobs))


class _Looked(NamedTuple):
    """A partition that a worker looks through."""

    reader: InterleavedReader
    partition: Partition

    @property
    def place(self) -> str:
        """What its warnings are about."""
        return output_of(self.partition.files[0])


def _is_denied(job: _Looked, deny: DenyList) -> bool:
    stream = job.reader.open(job.partition)
    if deny.needs_bytes:
        return any(deny.denials(batch.data, job.reader.roots) for batch in stream)
    columns = [name for name in stream.schema.names if name != _BYTES]
    return any(map(deny.denials, job.reader.project(job.partition, columns)[1]))


def fitted(
    steps: Sequence[Step], reader: InterleavedReader, partitions: Iterable[Partition], folder: str
) -> tuple[Step, ...]:
    """Return steps whose filters fit the columns of all inputs, see `Filter.fitted`.

    Args:
        folder: a folder for the copies of their lists of ids.

    Raises:
        ValueError: in one line, a filter does not.
    """
    chains = [step for step in steps if isinstance(step, FilterChain)]
    for chain in chains:
        chain.refuse_missing_statistics()
    if not any(chain.columns for chain in chains):
        return tuple(steps)
    schemas = {}
    if any(chain.columns.difference(KEYS) for chain in chains):  # reading them takes a while
        found = {output_of(each.files[0]): readable_schema(reader, each) for each in partitions}
        schemas = {place: schema for place, schema in found.items() if schema is not None}
    return tuple(
        step.fitted(schemas, (), folder) if isinstance(step, FilterChain) else step for step in steps
    )


def _named(conversion: Any, message: str) -> str:
    """Return the message with the partition's first file, unless it names that or the output already."""
    place = conversion.place
    return message if place in message or conversion.writer.path in message else f"{place}: {message}"


class _Job(NamedTuple):
    """A conversion for a worker, and the note of its source, if that is to be written first."""

    conversion: Conversion
    note: Note | None

    @property
    def place(self) -> str:
        """What its warnings are about."""
        return self.conversion.place


def _convert(job: _Job, max_loss: float) -> PartitionReport:
    """Convert one partition in a worker; it is not published if it would lose more than ``max_loss``."""

    def check(report: PartitionReport) -> None:
        if (refusal := LossShare.of_report(report).refusal(max_loss)) is not None:
            raise ShardError(f"{', '.join(report.source_files[:3])}: {refusal}")
        if job.note is not None:
            job.note.write()

    return job.conversion.run(check)


def refuse_nested(source: str, target: str) -> None:
    """Refuse an output inside its own input: it would be read as input the next time, or overwrite it."""
    if is_within(target, source):
        raise ValueError(f"{target}: the output cannot be inside the input {source}")


def _refuse_overwriting(conversions: list[Any]) -> None:
    files = {file for conversion in conversions for file in conversion.partition.files}
    inputs = {os.path.realpath(output_of(file)) for file in files}
    for conversion in conversions:
        output = conversion.writer.uri_of(conversion.partition.name)
        if os.path.realpath(output) in inputs:
            raise ValueError(f"{output}: the output would overwrite the input; name another folder")
