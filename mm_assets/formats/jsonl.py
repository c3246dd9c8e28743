"""JSON lines: reader and writer of a document per line, with the images in a tar beside the lines.

A file with one JSON array of documents is read, too.

* Names: those of the lines of a partition, and of the tar with their images.
* `Lines`: an index of the lines of a file, gzipped or not. It has the byte range of each in the unpacked
  text.
* `JsonlSamples`: each line is decoded like the JSON member of a tar.
* `InterleavedJsonlReader` reads our lines and those of others, `InterleavedJsonlWriter` writes ours.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import mmap
import os
import posixpath
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import pyarrow as pa
import xxhash

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.document_layouts import LAYOUTS, Layout, layout_of
from mm_assets.formats.names import (
    ARRAY_SUFFIXES,
    LINES_SUFFIXES,
    TAR_SUFFIXES,
    format_of,
    is_lines,
    sample_key,
)
from mm_assets.formats.parquet.reader_writer import ROWS_PREFIX
from mm_assets.formats.partitions import Partition, id_prefix
from mm_assets.formats.reader import FileSource
from mm_assets.formats.tar import TarDamage, TarWriter, damage
from mm_assets.formats.tar.scan import Member, TarIndex, read_member
from mm_assets.formats.tar.spool import open_tar, unpacked_limit
from mm_assets.formats.unfolding import image_fields
from mm_assets.formats.webdataset import IMAGES, SAMPLE_ID, RawLayout, SampleError, is_native_layout
from mm_assets.formats.webdataset.documents import Mint1tDecoder, find_document_layout
from mm_assets.formats.webdataset.folders import tar_samples
from mm_assets.formats.webdataset.native import SampleEncoder, decode_native, folded
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.formats.webdataset.rows import Sample
from mm_assets.formats.webdataset.samples import TarSamples, lines_in, lost_range
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.model.errors import BAD_LAYOUT, ShardError
from mm_assets.model.json_codec import dumps
from mm_assets.storage.files import (
    StagedFile,
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    open_binary,
    remove,
    staged,
)

__all__ = ["InterleavedJsonlReader", "InterleavedJsonlWriter"]


WRITTEN = format_of("jsonl").written
IMAGES_SUFFIX = ".images.tar"
IMAGES_TAR = "images_tar"  # field of a line: name of the tar with its images

_IMAGES = re.compile(rf"(.+)\.[0-9a-f]{{16}}{re.escape(IMAGES_SUFFIX)}")

# Lines of others name no tar: theirs has the same name as the lines, with one of these suffixes.
TARS_OF_OTHERS = (IMAGES_SUFFIX, ".tar")
_FIRST_LINE = 4 << 20  # bytes
_NO_TAR = ": no tar is beside the lines; MM_IMAGES_FROM tells where their images lie"


def stem_of(uri: str) -> str:
    """Return the path of a file of lines without its suffix."""
    suffixes = (*LINES_SUFFIXES, *ARRAY_SUFFIXES)
    return next((uri[: -len(suffix)] for suffix in suffixes if uri.lower().endswith(suffix)), uri)


def images_name(stem: str, digest: str) -> str:
    """Return the name of a tar of images.

    Other bytes have another name, so that no tar is ever overwritten.
    """
    return f"{posixpath.basename(stem)}.{digest}{IMAGES_SUFFIX}"


def lines_of(name: str) -> str | None:
    """Return the name of the lines, without suffix, that a tar of images belongs to; None for other tars."""
    found = _IMAGES.fullmatch(name)
    return None if found is None else found[1]


def tars_beside(uri: str) -> list[str]:
    """Return the names that the tar with the images of lines may have, if they are those of others.

    Lines of ours name their tar. There are none for any other file.
    """
    return [stem_of(uri) + suffix for suffix in TARS_OF_OTHERS] if is_lines(uri) else []


def lines_beside(tar: str) -> set[str]:
    """Return the paths, without suffix, that the lines may have of which a tar has the images."""
    folder, name = posixpath.split(tar)
    found = {tar[: -len(suffix)] for suffix in TARS_OF_OTHERS if tar.endswith(suffix)}
    return found if (ours := lines_of(name)) is None else {*found, posixpath.join(folder, ours)}


def without_images(files: Sequence[str], options: StorageOptions | None = None) -> list[str]:
    """Return raw shards without the tars that have only the images of JSON lines among them.

    Such are ``NAME.images.tar`` beside ``NAME.jsonl``. Any other ``NAME.tar`` is one only if all tars have
    lines beside them, and the first document of these names an image: else the lines are a log of the tars.
    """
    lines = {stem_of(file): file for file in files if is_lines(file)}
    of_tars = {
        file: lines.keys() & lines_beside(file) for file in files if file.lower().endswith(TAR_SUFFIXES)
    }
    others = [tar for tar in of_tars if not tar.endswith(IMAGES_SUFFIX) or not of_tars[tar]]
    if others and all(of_tars[tar] for tar in others):
        others = [] if _names_image(lines[min(of_tars[others[0]])], options) else others
    kept = set(others)
    return [file for file in files if file not in of_tars or file in kept]


def _names_image(lines: str, options: StorageOptions | None) -> bool:
    """Return whether the first line is a document of others that names an image. Ours names its tar."""
    try:
        with open_binary(lines, options) as file:
            text = gzip.GzipFile(fileobj=file) if lines.lower().endswith(".gz") else file
            document = json.loads(text.readline(_FIRST_LINE))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):  # told when it is read
        return False
    is_of_others = isinstance(document, dict) and not is_native_layout(document)
    return is_of_others and bool(image_fields(document, IMAGES))


def is_plain_name(name: object) -> bool:
    """Return whether a value names a tar of images in the same folder, and nothing elsewhere."""
    return (
        isinstance(name, str)
        and name.endswith(IMAGES_SUFFIX)
        and "/" not in name
        and not name.startswith(".")
    )


@dataclass(frozen=True)
class Lines:
    """An open file of lines.

    Args:
        members: its lines, named ``line 1`` and so on, without the empty ones; of one array its entries.
        end: bytes of the unpacked text that can be read.
        damage: why the file cannot be read beyond ``end``. The text after the last whole line is no line
            then.
    """

    descriptor: int
    members: list[Member]
    end: int
    damage: TarDamage | None

    @property
    def nbytes(self) -> int:
        """Bytes of the unpacked text."""
        return os.fstat(self.descriptor).st_size


@contextmanager
def local_lines(uri: str, name: str, options: StorageOptions | None) -> Iterator[Lines]:
    """Open a file and index its lines; no line is kept in memory.

    Raises as `mm_assets.storage.files.open_binary` does.

    Args:
        name: name of the file in errors.
    """
    damaged: list[TarDamage] = []
    with open_tar(uri, name, options, damaged) as descriptor:
        yield _lines(descriptor, name, damaged)


def _lines(descriptor: int, name: str, damaged: list[TarDamage]) -> Lines:
    members: list[Member] = []
    size, end = os.fstat(descriptor).st_size, 0
    begins_array = os.pread(descriptor, _BLANK, 0).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    if begins_array and (found := _entries(descriptor, name, damaged)) is not None:
        return found
    for number, start, stop in lines_in(descriptor, 0, size):
        if stop == size and damaged:  # it is cut, or its line feed is
            break
        members.append(Member(f"line {number}", start, stop - start, None, start))
        end = min(stop + 1, size)
    return Lines(descriptor, members, end, damaged[0] if damaged else None)


_BLANK = 64  # bytes
# A bracket, and before it anything but quotation marks and brackets, and texts.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)
_PLAIN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^\s,"\[\]{}]++', re.DOTALL)
_BLANKS = re.compile(rb"\s*+")
_BETWEEN = re.compile(rb"\s*+([,\]])\s*+")


def _entries(descriptor: int, name: str, damaged: list[TarDamage]) -> Lines | None:
    """Index the entries of a file that is one JSON array; None for one with more behind it: it has lines.

    Brackets and quotation marks tell where they end. Each is parsed when it is read.
    """
    members: list[Member] = []
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
        at = _end(_BLANKS, data, data.find(b"[") + 1) or 0
        while data[at : at + 1] != b"]":
            stop = _end_of_value(data, at)
            between = None if stop is None else _BETWEEN.match(data, stop)
            if stop is None or between is None:
                if stop is not None and data[at] in b'{["' and _end(_BLANKS, data, stop) == len(data):
                    members.append(Member(f"entry {len(members) + 1}", at, stop - at, None, at))
                    at = stop
                reason = "the array is cut here, or goes on with what is no JSON"
                fault = damaged[0] if damaged else damage(name, at, reason, is_cut=True)
                return Lines(descriptor, members, at, fault)
            members.append(Member(f"entry {len(members) + 1}", at, stop - at, None, at))
            at = between.start(1) if between[1] == b"]" else between.end()
        if _end(_BLANKS, data, at + 1) != len(data):
            return None
        return Lines(descriptor, members, len(data), damaged[0] if damaged else None)


def _end(pattern: re.Pattern[bytes], data: mmap.mmap, at: int) -> int | None:
    found = pattern.match(data, at)
    return None if found is None else found.end()


def _end_of_value(data: mmap.mmap, start: int) -> int | None:
    """Return where a value ends; None for one that does not."""
    if data[start : start + 1] not in (b"{", b"["):
        return _end(_PLAIN, data, start)
    depth, at = 0, start
    while (found := _BRACKET.match(data, at)) is not None:
        at = found.end()
        depth += 1 if found[1] in b"{[" else -1
        if depth == 0:
            return at
    return None


_MEMBER = re.compile(r"[^./]+\.\d+\.\w+", re.ASCII)  # as `SampleEncoder` names images
_IMAGES_COLUMN = "images"  # entry of a report: the tar that the lines name
_LEVEL = 6  # of gzip: higher ones take far longer and save a few percent
_STORED = 0  # for text that compresses so well that readers would take it for a decompression bomb


class InterleavedJsonlWriter(InterleavedWriter):
    """Writes ``<partition>.jsonl.gz`` and, where there are images, a tar of them into a folder.

    A ``path`` that ends in ``.jsonl.gz`` is the one file to write. See `InterleavedWriter` for the arguments.
    With a ``layout`` (a name of `mm_assets.formats.document_layouts.LAYOUTS`) the lines are documents as
    others write them, whose images are named as the members of the tar; a sample that such a document cannot
    hold is an error. The lines are published last and name their tar, whose name changes with its bytes: a
    writer killed in between leaves the previous version. The same input makes the same bytes.
    """

    suffix = WRITTEN

    def __init__(self, path: Any, *, layout: str | None = None, **others: Any) -> None:
        super().__init__(path, **others)
        self.layout = layout
        if layout is not None and layout_of(layout) is None:
            raise ValueError(
                f"layout must be one of {', '.join(each.name for each in LAYOUTS)}, not {layout!r}"
            )

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return JsonlSink(self.uri_of(partition), schema, self.storage_options, layout_of(self.layout))

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        """Remove the tars of previous versions, and of writers that were killed."""
        fs, folder = filesystem(self.folder, self.storage_options)
        fs.invalidate_cache()
        if not reports or not fs.exists(folder):
            return
        stems = {posixpath.basename(stem_of(self.uri_of(each.partition))): each for each in reports}
        for path in fs.ls(folder, detail=False):
            name = posixpath.basename(str(path))
            report = stems.get(lines_of(name) or "")
            if report is not None and name != report.extra.get(_IMAGES_COLUMN):
                fs.rm_file(path)


class JsonlSink(Sink):
    """One file of lines and its tar, under construction."""

    def __init__(
        self, uri: str, schema: pa.Schema, options: StorageOptions | None, layout: Layout | None = None
    ) -> None:
        self._uri = uri
        self._layout = layout
        self._options = options
        self._encoder = SampleEncoder(schema)
        self._samples = 0
        # With a layout: names of images in the tar, and of absent ones that look like those, with an id.
        self._written: set[str] = set()
        self._absent: dict[str, str] = {}
        self._images = StagedFile(stem_of(uri), options)
        try:
            self._tar = TarWriter(self._images.path)
            self._lines: IO[bytes] = tempfile.TemporaryFile(prefix="mm-assets-", dir=_folder_of(uri))  # noqa: SIM115 (until published)
        except BaseException:
            self._images.discard()
            raise

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in self._encoder.encode(table):
                *images, (_, line) = sample.members
                if images:
                    self._tar.write_group(images)
                if self._layout is not None:
                    line = self._folded(json.loads(line), self._layout, [name for name, _ in images])
                self._lines.write(line + b"\n")
                self._samples += 1

    def _folded(self, payload: dict[str, Any], layout: Layout, images: list[str]) -> bytes:
        """Return the line of a document of others.

        Raises:
            ValueError: The name of an image that is not there would find an image in the tar, of whatever
                sample: the document would come back with another image.
        """
        document, absent = folded(payload, layout)
        key = str(self._samples + 1)  # lines of others are read with their number as the key
        found = {way for name in absent for way in (name.removeprefix("./"), f"{key}.{name}")}
        added = dict.fromkeys(filter(_MEMBER.fullmatch, found), payload[SAMPLE_ID])
        self._absent |= added
        self._written.update(images)
        if taken := (self._written & added.keys()) | (self._absent.keys() & images):
            name = min(taken)
            raise ValueError(
                f"sample {self._absent[name]!r}: a document of layout {layout.name} cannot hold the name of "
                f"an image that is not there: {name!r} is another image in the tar of these lines"
            )
        return dumps(document).encode()

    def publish(self) -> tuple[str | None, int]:
        self._tar.close()
        if not self._samples:
            self.discard()
            remove(self._uri, self._options)
            return None, 0
        name, nbytes = None, 0
        if self._tar.groups:
            with open(self._images.path, "rb") as images:
                digest = hashlib.file_digest(images, xxhash.xxh3_64).hexdigest()
            name = images_name(stem_of(self._uri), digest)
            self._images.uri = join(posixpath.dirname(self._uri) or ".", name)
            nbytes = self._images.publish()
        with self._lines, staged(self._uri, self._options) as packed:
            if self._pack(packed.path, name, _LEVEL) > unpacked_limit(os.path.getsize(packed.path)):
                self._pack(packed.path, name, _STORED)
            nbytes += packed.publish()
        self._images.discard()
        self.extra = {_IMAGES_COLUMN: name}
        return self._uri, nbytes

    def _pack(self, path: str, images: str | None, level: int) -> int:
        """Write the lines with the name of their tar, which is known only now; return their size in bytes."""
        is_named = images and self._layout is None
        added = f"{{{dumps(IMAGES_TAR)}:{dumps(images)},".encode() if is_named else b"{"
        self._lines.seek(0)
        with open(path, "wb") as file, gzip.GzipFile("", "wb", level, file, mtime=0) as packed:
            for line in self._lines:
                packed.write(added)
                packed.write(memoryview(line)[1:])
            return packed.tell()

    def discard(self) -> None:
        self._tar.abort()
        self._lines.close()
        self._images.discard()


def _folder_of(uri: str) -> str | None:
    return None if is_remote(uri) else os.path.dirname(local_path(uri)) or "."


class JsonlSamples(TarSamples):
    """An opened file of lines, and the tar with its images.

    Args:
        rows_prefix: prefix of the line's number where that is the sample id.
    """

    def __init__(self, *arguments: Any, rows_prefix: str = "") -> None:
        self._rows_prefix = rows_prefix
        self._images: str | None = None  # the tar that the lines name
        super().__init__(*arguments)

    @property
    def entries(self) -> int:
        """Number of the lines, and of the tar's members."""
        return super().entries + len(self._lines.members)

    @property
    def nbytes(self) -> int:
        """Bytes of the unpacked lines, and of the tar."""
        images = os.fstat(self.descriptor).st_size if self.descriptor != self._lines.descriptor else 0
        return self._lines.nbytes + images

    def sound(self) -> Iterator[tuple[Member, Sample]]:
        yield from super().sound()
        if (damage := self._lines.damage) is not None:
            self.losses.append(lost_range(self.path, self._lines.end, self._lines.nbytes, damage))

    def _open(self, uri: str, options: StorageOptions | None, stack: ExitStack) -> tuple[int, TarIndex]:
        self._lines = stack.enter_context(local_lines(uri, self.name, options))
        if (damage := self._lines.damage) is not None and self._ids is None:
            number = len(self._lines.members) + 1
            reason = str(damage).removeprefix(f"{self.name}: ")
            raise ShardError(f"{self.name}: line {number}: {reason}") from damage
        images = self._images_beside(uri, options)
        if images is None:
            return self._lines.descriptor, TarIndex(self.name, [], {}, [], 0)
        name = posixpath.basename(images)
        self.images_path = posixpath.join(posixpath.dirname(self.path), name)
        self.images_name = images if self._ids is None else self.images_path
        return super()._open(images, options, stack)

    def _images_beside(self, uri: str, options: StorageOptions | None) -> str | None:
        """Return the tar with the images; None where there is none. Lines name no file in another folder.

        Raises:
            ShardError: for a named tar that does not exist, unless samples are quarantined.
        """
        for line in self._lines.members:
            try:
                payload = self._payload(line)
            except SampleError:
                continue
            if not is_native_layout(payload) or IMAGES_TAR not in payload:
                break
            if not is_plain_name(name := payload[IMAGES_TAR]):
                continue
            self._images = name
            named = posixpath.join(posixpath.dirname(uri), name)
            if exists(named, options):
                return named
            if self._ids is None:
                raise ShardError(f"{self.name}: {line.name}: its images are in {named}, which is not there")
            return None
        found = [found for found in tars_beside(uri) if exists(found, options)] or _written_beside(
            uri, options
        )
        return found[0] if found else None

    def _documents(self, layout: RawLayout, max_member_bytes: int) -> tuple[Mint1tDecoder, list[Member]]:
        decoder = Mint1tDecoder(
            self.path,
            self.index,
            layout,
            max_member_bytes,
            images_path=self.images_path,
            name=self.name,
        )
        if self.descriptor == self._lines.descriptor and self._images is None and not layout.images_from:
            decoder.hint = _NO_TAR
        decoder.documents = find_document_layout(self._lines.members, decoder, self._payload)
        return decoder, self._lines.members

    def _sample(self, member: Member) -> Sample:
        payload = self._payload(member)
        if is_native_layout(payload):
            named = payload.pop(IMAGES_TAR, self._images)
            if named != self._images:
                where = f"{self.name}: {member.name}: field {IMAGES_TAR!r}"
                raise SampleError(
                    BAD_LAYOUT, f"{where}: {named!r:.200}, where other lines have {self._images!r}"
                )
            return decode_native(payload, member, self.decoder, sample_key(str(payload.get(SAMPLE_ID))))
        number = member.name.rpartition(" ")[2]
        sample = self.decoder.decode(payload, member, number)
        if self._layout.sample_id_field is None and not isinstance(payload.get(SAMPLE_ID), str):
            sample.sample_id = self._rows_prefix + number
        return sample

    def _bytes_of(self, member: Member) -> bytes:
        return read_member(self._lines.descriptor, member, self.name)


def _written_beside(uri: str, options: StorageOptions | None) -> list[str]:
    """Return the tar that we wrote for lines of a layout of others, which do not name it; none of several."""
    folder, stem = posixpath.dirname(uri), posixpath.basename(stem_of(uri))
    fs, path = filesystem(folder or ".", options)
    names: list[str] = []
    with suppress(FileNotFoundError, NotImplementedError):  # of a store that lists nothing
        names = [posixpath.basename(str(name)) for name in fs.ls(path, detail=False)]
    found = [name for name in names if lines_of(name) == stem]
    return [posixpath.join(folder, found[0])] if len(found) == 1 else []


def samples_of(uri: str, partition: Partition) -> Callable[..., TarSamples]:
    """Return what opens the samples of a file of lines, or of any other but a Parquet file."""
    if not is_lines(uri):
        return tar_samples(uri, partition)
    return partial(JsonlSamples, rows_prefix=id_prefix(ROWS_PREFIX, partition.name, partition.files, uri))


class InterleavedJsonlReader(InterleavedWebdatasetReader):
    """Reads files with a JSON document per line, and their images from the tar beside them.

    The arguments are those of `InterleavedWebdatasetReader`. A line without ``sample_id`` gets the
    partition's name and the line's number as sample id.
    """

    suffixes = LINES_SUFFIXES

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        return self._opened(uri, partition, ids, samples_of(uri, partition))
