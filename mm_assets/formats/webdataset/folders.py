"""Folders of images, and zips, as raw shards: lines that name images, or images with texts of their name.

* `FolderAddress`, `FolderFileSystem`: ``folder://``, in which each folder of images appears as one tar.
* `FolderSamples`: the samples of such a tar, or of a zip.
"""

from __future__ import annotations

import csv
import io
import os
import posixpath
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.names import (
    LINES_SUFFIXES,
    PACKED_TAR_SUFFIXES,
    PDF_SUFFIXES,
    RAW_SUFFIXES,
    format_by_suffix,
    is_line,
    is_system_file,
    is_zip,
)
from mm_assets.formats.partitions import Partition, id_prefix, root_of_locations
from mm_assets.formats.tar import END_BLOCKS, add_member
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.webdataset import (
    DEFAULT_IMAGE_EXTENSIONS,
    FOLDER_PROTOCOL,
    SAMPLE_ID,
    SAMPLE_ID_PREFIXES,
    RawLayout,
    SampleError,
    extension,
    naming_sample,
    sample_stem,
)
from mm_assets.formats.webdataset.documents import (
    ImageTextPairs,
    Mint1tDecoder,
    find_document_layout,
    is_document,
)
from mm_assets.formats.webdataset.rows import Sample
from mm_assets.formats.webdataset.samples import TarSamples, lines_in
from mm_assets.formats.webdataset.virtual_tars import (
    FolderedAddress,
    VirtualTars,
    by_shard,
    name_of_folder,
    plain_path,
    virtual_info,
)
from mm_assets.model.errors import BAD_LAYOUT, NOT_UTF8
from mm_assets.storage.errors import is_utf8, not_utf8
from mm_assets.storage.files import StorageOptions, absolute, is_remote, open_binary, size_of
from mm_assets.storage.listing import expand, is_metadata_folder

_SCHEME = f"{FOLDER_PROTOCOL}://"
_REVISION = "1"  # of the content of these tars: part of their identity, so a new one makes outputs again
_METADATA = ("metadata.jsonl", "metadata.csv")
_ANY = ("",)
_OTHER_DATA = (*PACKED_TAR_SUFFIXES, *PDF_SUFFIXES)
_NOT_READ = tuple(s for s in (*RAW_SUFFIXES, *PDF_SUFFIXES) if s not in LINES_SUFFIXES)


@dataclass(frozen=True)
class FolderAddress(FolderedAddress):
    """Locations of images: files, folders (at any depth), patterns, brace lists or URLs.

    Each folder with images in it is a shard; one with a file of metadata is, with all folders below it.
    """

    protocol = FOLDER_PROTOCOL

    def names(self) -> dict[str, list[tuple[str, str]]]:
        """Return the files of each shard by its name, sorted: their names in locators, and their locations.

        A folder is called as its path below the locations' common folder, and that folder itself by its own
        name.

        Raises:
            FileNotFoundError: the locations have no images.
            DataError: two folders would have the same name.
        """
        files, _ = self._found()
        root = plain_path(root_of_locations(self.places, _ANY))
        paths = {file: plain_path(file) for file in files}
        described = {
            posixpath.dirname(path) for path in paths.values() if posixpath.basename(path) in _METADATA
        }

        def folder_of(path: str) -> str:
            folder = above = posixpath.dirname(path)
            while above not in described and above.startswith(f"{root}/"):
                above = posixpath.dirname(above)
            return above if above in described else folder

        folders = {file: folder_of(path) for file, path in paths.items()}
        kept = {folders[file] for file in files if extension(file) in DEFAULT_IMAGE_EXTENSIONS} | described

        def named(file: str) -> tuple[str, str, tuple[str, str]]:
            folder = folders[file]
            name = name_of_folder(folder, root)
            return name, folder, (f"{name}/{paths[file][len(folder) + 1 :]}", file)

        shards = by_shard(named(file) for file in files if folders[file] in kept)
        if not shards:
            raise FileNotFoundError(f"{' '.join(self.places)}: no images")
        return shards

    def originals(self, shard: str) -> list[str]:
        return [name for name, _ in self.names().get(shard, [])]

    def passed_over(self) -> list[str]:
        return self._found()[1]

    def _found(self) -> tuple[list[str], list[str]]:
        """Return all files that belong to shards, and a line for what else is there."""
        files: dict[str, None] = {}
        lines: list[str] = []
        for place in self.places:
            try:
                found = expand(place, _ANY)
            except FileNotFoundError:
                if is_remote(place) or not os.path.isdir(place):
                    raise
                continue
            lines += [*found.passed_over, *(not_utf8(file) for file in found.files if not is_utf8(file))]
            named = [
                file for file in found.files if is_utf8(file) and not is_system_file(os.path.basename(file))
            ]
            others = [file for file in named if file.lower().endswith(_NOT_READ)]
            if others:
                lines.append(
                    f"{others[0]}: not read among images; name raw shards without {FOLDER_PROTOCOL}="
                )
            inside = _Inside(place)
            for file in sorted(set(named).difference(others)):
                if inside.has(file):
                    files[file] = None
                else:
                    lines.append(f"{file}: not read: a link out of {place}, or no regular file")
        return list(files), lines


def folder_location(item: str) -> str | None:
    """Return the location of images of an item: ``folder=photos``, or a local folder of nothing else."""
    if (named := FolderAddress.location(item)) is not None:
        return named
    return absolute(item) if not is_remote(item) and _has_images_alone(absolute(item)) else None


def _has_images_alone(folder: str) -> bool:
    has_images = False
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_metadata_folder(name)]
        if any(format_by_suffix(name) for name in folders):
            return False
        for name in files:
            if is_system_file(name) or name in _METADATA:
                continue
            if name.lower().endswith(_OTHER_DATA) or format_by_suffix(name) is not None:
                return False
            has_images |= extension(name) in DEFAULT_IMAGE_EXTENSIONS
    return has_images


class _Inside:
    """Check that local files lie in a location, and not only links to them."""

    def __init__(self, place: str) -> None:
        self._root = "" if is_remote(place) else os.path.realpath(root_of_locations([place], _ANY))
        self._folders: dict[str, bool] = {}

    def has(self, file: str) -> bool:
        """Return whether a file is a regular one, and inside."""
        if is_remote(file):
            return True
        folder = os.path.dirname(file)
        if folder not in self._folders:
            self._folders[folder] = self._contains(folder)
        is_inside = self._contains(file) if os.path.islink(file) else self._folders[folder]
        return is_inside and os.path.isfile(file)

    def _contains(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real == self._root or real.startswith(self._root.rstrip("/") + "/")


class FolderFileSystem(VirtualTars[list[tuple[str, str]]]):
    """``folder://ADDRESS``: a folder with a tar ``NAME.tar`` for each shard, of the files of its folder.

    ``folder://ADDRESS/NAME/FILE`` is an original file, as named by locators. See `FolderAddress`.
    """

    protocol = FOLDER_PROTOCOL
    called = "folder of images"

    def shards(self, token: str) -> Mapping[str, list[tuple[str, str]]]:
        return FolderAddress.parse(token).names()

    def shard_info(self, path: str, shard: list[tuple[str, str]]) -> dict[str, Any]:
        return virtual_info(path, (_REVISION,), shard)

    def write(self, token: str, name: str, shard: list[tuple[str, str]], target: str) -> None:
        with open(target, "wb") as tar:
            for file, uri in sorted(shard):
                with open_binary(uri) as payload:
                    add_member(tar, file[len(name) + 1 :], size_of(uri), payload)
            tar.write(bytes(END_BLOCKS))

    def original(self, shards: Mapping[str, list[tuple[str, str]]], name: str) -> str | None:
        folder = name
        while folder := posixpath.dirname(folder):
            if (found := dict(shards.get(folder, ())).get(name)) is not None:
                return found
        return None


_TEXTS = ("txt", "caption")
_FILE_NAMES = ("_file_name", "_file_names")  # what a field is called that names images, or ends in
_TEXT_FIELDS = ("text", "caption")

_Line = tuple[int, int, int]  # number, start and end
_MAX_ROW_BYTES = 16 << 20  # of a row of CSV, and of a value
_MAX_ROW_LINES = 1 << 16
_MAX_READ_AGAIN = 256 << 20  # bytes behind lines that begin no row; then each line is taken for a row
_LINE_COST = 100  # bytes that take as long as a line


class FolderSamples(TarSamples):
    """The samples of a folder of images, or of a zip.

    They are its lines of JSON, or the rows of a ``metadata.csv``; without any, its jsons if one of them is a
    document; else its images, each with the text and json of its name.

    Args:
        rows_prefix: prefix of a line's number, or an image's name, where that is the sample id.
    """

    def __init__(
        self,
        uri: str,
        path: str,
        layout: RawLayout,
        max_member_bytes: int,
        ids: SampleIds | None,
        options: StorageOptions | None,
        id_prefix: str = "",
        rows_prefix: str = "",
    ) -> None:
        self._rows_prefix = "" if layout.sample_id_prefix else rows_prefix  # once is enough
        self._header: dict[str, list[str]] = {}  # of each file of rows, by its name
        self._tables: list[Member] = []
        # Locators name the files of a folder, not the members of the tar that is made of them.
        path = f"{path.removesuffix('.tar')}/" if uri.startswith(_SCHEME) else path
        super().__init__(uri, path, layout, max_member_bytes, ids, options, id_prefix)

    def _documents(self, layout: RawLayout, max_member_bytes: int) -> tuple[Mint1tDecoder, list[Member]]:
        self._tables = [member for member in self.index.members if _is_table(member)]
        if self._tables:
            decoder = Mint1tDecoder(self.path, self.index, layout, max_member_bytes)
            decoder.referenced.update(member.name for member in self._tables)
            decoder.tells_urls = True
            lines = [line for table in self._tables for line in self._lines(table)]
            decoder.documents = find_document_layout(lines, decoder, self._payload)
            return decoder, lines
        jsons = [member for member in self.index.members if layout.is_json(member.name)]
        decoder, documents = super()._documents(layout, max_member_bytes)
        if decoder.documents is not None or any(map(self._is_document, jsons)):
            return decoder, documents
        images: dict[str, list[Member]] = {}
        texts: dict[str, list[Member]] = {}
        for member in self.index.members:
            kind = (
                images
                if layout.is_image(member.name)
                else texts
                if extension(member.name) in _TEXTS
                else None
            )
            if kind is not None:
                kind.setdefault(sample_stem(member.name), []).append(member)
        pairs = ImageTextPairs(self.index, images, texts, self._read_text)
        known = {sample_stem(member.name) for member in pairs.documents(jsons)}
        alone = [found[0] for key, found in images.items() if key not in known]
        documents = [*pairs.documents(jsons), *alone]
        decoder = Mint1tDecoder(self.path, self.index, layout, max_member_bytes, pairs)
        return decoder, sorted(documents, key=lambda member: member.header_offset)

    def _is_document(self, member: Member) -> bool:
        try:
            return is_document(self._payload(member), self._layout)
        except SampleError:
            return False

    def _lines(self, table: Member) -> Iterator[Member]:
        """Yield the lines, or rows, of a file; ``header_offset`` is where they begin in that file."""
        places = lines_in(self.descriptor, table.offset, table.offset + table.size)
        for number, start, end in self._rows(table) if extension(table.name) == "csv" else places:
            name = f"{table.name}: line {number}"
            yield Member(name, start, end - start, None, start - table.offset)

    def _rows(self, table: Member) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and end of the lines that each row of a CSV file consists of.

        A line that begins no row is yielded alone, and reading goes on behind it.
        """
        lines = lines_in(self.descriptor, table.offset, table.offset + table.size)
        again: deque[_Line] = deque()  # lines that have been read, and are in no row yet
        row: deque[_Line] = deque()  # those of the row that is being read
        budget = _MAX_READ_AGAIN

        def texts() -> Iterator[str]:
            while line := again.popleft() if again else next(lines, None):
                row.append(line)
                if len(row) > 1 and (len(row) > _MAX_ROW_LINES or line[2] - row[0][1] > _MAX_ROW_BYTES):
                    return
                yield self._line_of_row(line[1], line[2])

        def rows() -> Iterator[_Line]:
            nonlocal budget
            csv.field_size_limit(max(csv.field_size_limit(), _MAX_ROW_BYTES))
            while True:
                try:
                    for _ in csv.reader(texts(), strict=True):
                        found = row[0][0], row[0][1], row[-1][2]
                        row.clear()
                        yield found
                    return
                except csv.Error:
                    first = row.popleft()
                again.extendleft(reversed(row))
                budget -= _LINE_COST * len(row) + (row[-1][2] - row[0][1] if row else 0)
                row.clear()
                yield first
                if budget < 0:  # else such a file takes time without end
                    yield from again
                    yield from lines
                    return

        found = rows()
        for _, start, end in islice(found, 1):
            try:
                names = _values_of_row(self._line_of_row(start, end))
            except csv.Error:
                names = []
            self._header[table.name] = [_utf8(name).removeprefix("\ufeff") for name in names]
        yield from found

    def _line_of_row(self, start: int, end: int) -> str:
        # Latin 1 has a character for each byte; what ends a row is the same in UTF-8.
        return os.pread(self.descriptor, min(end - start, _MAX_ROW_BYTES + 1), start).decode("latin-1") + "\n"

    def _payload(self, member: Member) -> dict[str, Any]:
        if not is_line(member.name):
            return super()._payload(member)
        table = member.name.rpartition(": line ")[0]
        payload = self._row(member, table) if extension(table) == "csv" else super()._payload(member)
        return _described(payload, posixpath.dirname(table), self._layout)

    def _row(self, member: Member, table: str) -> dict[str, Any]:
        place = f"{self.name}: {member.name}"
        try:
            text = self._read(member, "row").decode()
            row = _values_of_row(text)
        except UnicodeDecodeError as error:
            raise SampleError(NOT_UTF8, f"{place}: not UTF-8: {error}") from error
        except csv.Error as error:
            raise SampleError(BAD_LAYOUT, f"{place}: no row of CSV: {error}") from error
        header = self._header[table]
        if len(row) != len(header) or len(set(header)) != len(header):
            raise SampleError(BAD_LAYOUT, f"{place}: {len(row)} values in {len(set(header))} columns")
        return dict(zip(header, row, strict=True))

    def _sample(self, member: Member) -> Sample:
        if is_line(member.name):
            table, _, number = member.name.rpartition(": line ")
            folder = posixpath.dirname(table)
            label = number if len(self._tables) == 1 else f"{sample_stem(table)}/{number}"
            with naming_sample(self._rows_prefix + label):
                payload = self._payload(member)
            sample = self.decoder.decode(payload, member, posixpath.join(folder, number))
            states_id = isinstance(payload.get(SAMPLE_ID), str)
        else:
            sample = super()._sample(member)
            label = sample_stem(member.name)
            states_id = self.decoder.pairs is None or sample.sample_id != label
        if self._layout.sample_id_field is None and not states_id:
            sample.sample_id = self._rows_prefix + label
        return sample


def _is_table(member: Member) -> bool:
    is_rows = posixpath.basename(member.name).lower() in _METADATA
    return (is_rows or extension(member.name) == "jsonl") and member.broken is None


def _values_of_row(text: str) -> list[str]:
    """Return the values of a row of CSV. Quotation marks inside of a value need not be doubled.

    Raises:
        csv.Error: a value is not ended, or has a carriage return outside of quotation marks.
    """
    found, *others = csv.reader(io.StringIO(f"{text}\n.", newline="\n"))
    if not others:
        raise csv.Error("a quotation mark has no end")
    return found


def _utf8(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _described(payload: dict[str, Any], folder: str, layout: RawLayout) -> dict[str, Any]:
    """Return a line that names images, as Hugging Face's imagefolder has them, as a document.

    Its fields stay. A text comes before the images.
    """
    named = [value for field, value in payload.items() if f"_{field}".endswith(_FILE_NAMES)]
    if not named or is_document(payload, layout):
        return payload
    tokens: list[Any] = []
    for value in named:
        tokens += value if isinstance(value, list) else [] if value in (None, "") else [value]
    tokens = [
        posixpath.normpath(posixpath.join(folder, token))
        if isinstance(token, str) and token and "://" not in token
        else token
        for token in tokens
    ]
    field = next((field for field in _TEXT_FIELDS if isinstance(payload.get(field), str)), None)
    texts = [] if field is None else [payload[field]]
    rest = {name: value for name, value in payload.items() if name != field}
    images = {layout.images_field: [*[None] * len(texts), *tokens]}
    return {**rest, **images, **({layout.texts_field: [*texts, *[None] * len(tokens)]} if texts else {})}


def tar_samples(uri: str, partition: Partition) -> Callable[..., TarSamples]:
    """Return what opens the samples of a tar, of a folder of images, or of a zip."""
    if not (is_zip(uri) or uri.startswith(_SCHEME)):
        return TarSamples
    prefix = id_prefix(SAMPLE_ID_PREFIXES[0], partition.name, partition.files, uri)
    return partial(FolderSamples, rows_prefix=prefix)
