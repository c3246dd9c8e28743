"""A format of your own, as docs/guides/add_a_format.md describes it: one zip for each partition.

    part.arrows
        schema.arrow                    the columns, in order
        00000000.rows.arrow             the rows of the first sample, without image bytes
        00000000.images.arrow           its image bytes, one value a row
        00000001.rows.arrow             ...

Each member is an Arrow IPC stream. None is compressed. The comment of the zip is the number of rows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from mm_assets.extend import (
    AccountedFormat,
    CanonicalLocation,
    FileSource,
    InterleavedReader,
    InterleavedWriter,
    Partition,
    RowPart,
    ShardError,
    Sink,
    StagedFile,
    StorageOptions,
    cut_by_bytes,
    open_binary,
    remove,
)

SUFFIX = ".arrows"
SCHEMA = "schema.arrow"
BLOBS = "binary_content"
DAMAGE = (zipfile.BadZipFile, pa.ArrowException, ValueError, LookupError, EOFError, RuntimeError)


@contextmanager
def naming(uri: str) -> Iterator[None]:
    """Say in one line that begins with the file what is wrong with it."""
    try:
        yield
    except DAMAGE as error:
        raise ShardError(f"{uri}: no zip of documents: {str(error).split(chr(10))[0]}") from error


def rows_name(sample: int) -> str:
    """Return the name of the member with the rows of a sample."""
    return f"{sample:08d}.rows.arrow"


def images_name(sample: int) -> str:
    """Return the name of the member with its image bytes."""
    return f"{sample:08d}.images.arrow"


class ZipSource(FileSource):
    """An open zip."""

    def __init__(self, uri: str, options: StorageOptions | None) -> None:
        with ExitStack() as opened:
            file = opened.enter_context(open_binary(uri, options))
            with naming(uri):
                self._zip = opened.enter_context(zipfile.ZipFile(file))
                members = self._zip.infolist()
                if any(member.file_size != member.compress_size for member in members):
                    raise ValueError("it has compressed members")  # which may unpack to any size
                self._samples = sum(member.filename.endswith(".rows.arrow") for member in members)
                super().__init__(uri, self._table(SCHEMA).schema, items=int(self._zip.comment))
            self._opened = opened.pop_all()

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        with naming(self.uri):
            yield from cut_by_bytes((self._sample(n, columns) for n in range(self._samples)), max_bytes)

    def close(self) -> None:
        self._opened.close()

    def _sample(self, number: int, columns: Sequence[str]) -> pa.Table:
        table = self._table(rows_name(number)).select([name for name in columns if name != BLOBS])
        if BLOBS in columns:
            images = self._table(images_name(number))
            table = table.append_column(images.schema.field(0), images.column(0))
        return table

    def _table(self, name: str) -> pa.Table:
        data = self._zip.read(name)
        try:
            return pa.ipc.open_stream(data).read_all()
        except OSError as error:  # of the bytes at hand, not of the file
            raise ValueError(f"{name}: {error}") from error


class ZipReader(InterleavedReader):
    """Reads zips of documents."""

    suffixes = (SUFFIX,)

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return ZipSource(uri, self.storage_options)


class ZipSink(Sink):
    """A zip under construction."""

    def __init__(self, uri: str, schema: pa.Schema, options: StorageOptions | None) -> None:
        self._uri, self._options = uri, options
        self._samples = self._rows = 0
        self._staged = StagedFile(uri, options)
        self._zip = zipfile.ZipFile(self._staged.path, "w")
        self._add(SCHEMA, pa.Table.from_batches([], schema))

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in cut_by_bytes([table], 1):  # one sample at a time
                if BLOBS in sample.column_names:
                    self._add(images_name(self._samples), sample.select([BLOBS]))
                    sample = sample.drop_columns([BLOBS])
                self._add(rows_name(self._samples), sample)
                self._samples += 1
                self._rows += sample.num_rows

    def publish(self) -> tuple[str | None, int]:
        if not self._samples:  # a partition without rows has no file
            self.discard()
            remove(self._uri, self._options)
            return None, 0
        self._zip.comment = b"%d" % self._rows
        self._zip.close()
        return self._uri, self._staged.publish()

    def discard(self) -> None:
        self._zip.close()
        self._staged.discard()

    def _add(self, name: str, table: pa.Table) -> None:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        self._zip.writestr(zipfile.ZipInfo(name), buffer.getvalue().to_pybytes())  # dated 1980, always


class ZipWriter(InterleavedWriter):
    """Writes zips of documents."""

    suffix = SUFFIX

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return ZipSink(self.uri_of(partition), schema, self.storage_options)


def parts(source: CanonicalLocation) -> Iterator[RowPart]:
    """Read a zip as its users would: for `verify` and the proof of zero loss."""
    uri = source.uri or ""
    with open_binary(uri, source.options) as file, naming(uri), zipfile.ZipFile(file) as archive:

        def table(name: str) -> pa.Table:
            return pa.ipc.open_stream(archive.read(name)).read_all()

        schema = table(SCHEMA).schema
        yield RowPart(pa.Table.from_batches([], schema))
        index = schema.get_field_index(BLOBS)
        names = sorted(archive.namelist())
        for rows in (name for name in names if name.endswith(".rows.arrow")):
            if index < 0:
                yield RowPart(table(rows))
            else:
                images = table(rows.replace(".rows.", ".images."))
                yield RowPart(table(rows), iter(images.column(0).chunks), index, schema.field(index))


ACCOUNTED = AccountedFormat(library="zipfile, pyarrow.ipc", parts=parts)
