"""Documents that code gives, and the tars in our layout that are made of them.

* `Document`: an id, items and metadata. `write_documents` writes a tar of some; what cannot be written as it
  is becomes a refused sample there.
* `documents`: a reader of an iterable, spooled to temporary tars.
* `DocumentSource`: what a plugin has in its list ``SOURCES``. Its shards are raw shards: tars of the file
  system ``plugin://``, made when they are opened.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Union

import pyarrow as pa
import xxhash

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.images import sniff
from mm_assets.formats.images.decode import lossless_file
from mm_assets.formats.names import sample_key
from mm_assets.formats.partitions import Partition, parse_bytes
from mm_assets.formats.reader import FileSource
from mm_assets.formats.registry import DEFAULT_BATCH_BYTES
from mm_assets.formats.tar import TarWriter
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.webdataset import (
    IMAGES,
    MAX_FIELDS,
    MAX_JSON_BYTES,
    MAX_MEMBER_BYTES,
    MAX_POSITION,
    PLUGIN_PROTOCOL,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXTS,
    SampleError,
    native_payload,
)
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.formats.webdataset.rows import Sample
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets.formats.webdataset.virtual_tars import VirtualTars, refusal, version_info
from mm_assets.model import json_codec
from mm_assets.model.errors import (
    BAD_LAYOUT,
    BAD_SAMPLE_ID,
    DUPLICATE_ID,
    LONE_SURROGATE,
    UNREADABLE_MEMBER,
    ShardError,
    counted,
    nearest,
)
from mm_assets.model.json_codec import FieldTally, build_column, dumps, is_too_deep
from mm_assets.model.samples import BatchStream, InterleavedBatch
from mm_assets.model.schema import RESERVED_COLUMNS, schema_to_text
from mm_assets.settings_file import listed, load_plugins, plugin_fault
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import regular_file

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Document", "DocumentSource", "documents"]

Item = Union[str, bytes, bytearray, memoryview, "Image", "os.PathLike[str]", None]


@dataclass(frozen=True)
class Document:
    """One document, as code gives it.

    Args:
        id: its sample id, unique among all.
        items: what it consists of, in order. A text (``str``), an image (its file as bytes, a PIL image, or
            the ``pathlib.Path`` of its file), or None for a gap: positions are those of the list.
        metadata: values of JSON, of Arrow (``pa.scalar``), or that Arrow makes a column of: dates, decimals,
            bytes, NumPy's. They become columns of the metadata row.

    A PIL image that comes from a file, and whose pixels are still those of the file, gives the file's bytes.
    Any other is encoded without loss: PNG, or TIFF for a mode that PNG does not have.
    """

    id: str
    items: Sequence[Item]
    metadata: Mapping[str, Any] = field(default_factory=dict)


MATERIALIZE_ERROR = "materialize_error"
AnyDocument = Document | tuple[Any, ...] | Mapping[str, Any]
_FIELDS = ("id", "items", "metadata")
_NO_DOCUMENT = "a document is a Document, a tuple (id, items, metadata), or a mapping of these names"


def _document(given: object) -> Document:
    if isinstance(given, Document):
        return given
    if isinstance(given, Mapping):
        for name in given:
            if name not in _FIELDS:
                raise SampleError(BAD_LAYOUT, f"no field of a document: {_shown(name)}; {_NO_DOCUMENT}")
        return Document(given.get("id"), given.get("items"), given.get("metadata") or {})  # type: ignore[arg-type]
    if isinstance(given, tuple) and 2 <= len(given) <= len(_FIELDS):
        return Document(given[0], given[1], (given[2] if len(given) > 2 else None) or {})
    raise SampleError(BAD_LAYOUT, f"a {type(given).__name__}: {_NO_DOCUMENT}")


Members = list[tuple[str, Any]]


class _Encoder:
    """Encoder of documents as groups of tar members. Of all ids, a digest is kept.

    With ``quarantines``, a document that cannot be encoded becomes a refused sample, and an image that cannot
    be read an error row; otherwise both raise.
    """

    def __init__(self, quarantines: bool) -> None:
        self._quarantines = quarantines
        self._seen: set[int] = set()
        self._number = 0

    def encode(self, given: Iterable[AnyDocument]) -> Iterator[Members]:
        """Yield the members of each document.

        Raises:
            ShardError: a document cannot be encoded; the message names it, and the item.
        """
        for one in given:
            self._number += 1
            place = f"document {self._number}"
            sample_id = None
            try:
                document = _document(one)
                digest = _digest_of(document.id)
                sample_id, place = document.id, f"document {document.id!r:.200}"
                if digest in self._seen:
                    reason = f"its id is that of an earlier one; this is number {self._number}"
                    raise SampleError(DUPLICATE_ID, reason)
                self._seen.add(digest)
                yield self._members(document)
            except (SampleError, RecursionError) as error:
                kind = error.kind if isinstance(error, SampleError) else BAD_LAYOUT
                reason = str(error) if isinstance(error, SampleError) else "it is nested too deeply"
                line = f"{place}: {reason}"
                if not self._quarantines:
                    raise ShardError(line) from error
                # No `sample_key` is like this name.
                payload = refusal(sample_id or self._made_up_id(), kind, line, None)
                yield [(f"=refused-{self._number}.json", dumps(payload).encode())]

    def _made_up_id(self) -> str:
        """Return an id for a document that has none; no document before it has this one."""
        made = f"refused document {self._number}"
        while _digest_of(made) in self._seen:
            made = f"refused {made}"
        return made

    def _members(self, document: Document) -> Members:
        items = document.items
        if not isinstance(items, list | tuple):
            raise SampleError(BAD_LAYOUT, f"items must be a list, not {type(items).__name__}")
        if len(items) > MAX_POSITION:
            raise SampleError(BAD_LAYOUT, f"{len(items)} items, at most {MAX_POSITION}")
        key = sample_key(document.id)
        texts: list[str | None] = [None] * len(items)
        images: list[str | None] = [None] * len(items)
        errors: list[dict[str, Any]] = []
        members: Members = []
        for position, item in enumerate(items):
            if item is None:
                continue
            if isinstance(item, str):
                texts[position] = item
                continue
            try:
                data = _image_bytes(item)
            except (OSError, ValueError) as error:
                line = f"item {position}: {error_line(error)}"
                if isinstance(error, SampleError):
                    raise SampleError(error.kind, line) from error
                if not self._quarantines:
                    raise SampleError(UNREADABLE_MEMBER, line) from error
                fault = {MATERIALIZE_ERROR: f"unreadable image: {error_line(error)}"}
                errors.append({"modality": "image", "position": position, **fault})
                continue
            images[position] = f"{position}.{sniff(data) or 'bin'}"
            members.append((f"{key}.{images[position]}", data))
        text = dumps(_payload(document, key, texts, images, errors))
        try:
            payload = text.encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                LONE_SURROGATE, "a text of it has lone surrogates, and no UTF-8 form"
            ) from error
        if is_too_deep(text):
            raise RecursionError
        if len(payload) > MAX_JSON_BYTES:
            reason = f"texts and metadata of {len(payload)} bytes, at most {MAX_JSON_BYTES}"
            raise SampleError(BAD_LAYOUT, reason)
        return [*members, (f"{key}.json", payload)]


def _shown(value: object) -> str:
    """Return a value for people: of one that may be shown by its address, the type."""
    is_plain = value is None or type(value) in (str, bytes, bool, int, float)
    return f"{value!r:.100}" if is_plain else f"a value of type {type(value).__name__}"


def _digest_of(sample_id: object) -> int:
    if not isinstance(sample_id, str) or not sample_id:
        hint = f": write str({sample_id!r})" if isinstance(sample_id, int) else ""
        raise SampleError(BAD_SAMPLE_ID, f"its id is no text, or empty: {_shown(sample_id)}{hint}")
    try:
        return xxhash.xxh3_128_intdigest(sample_id.encode())
    except UnicodeEncodeError as error:
        raise SampleError(LONE_SURROGATE, f"its id has lone surrogates: {sample_id!a:.200}") from error


def _image_bytes(item: object) -> bytes | bytearray | memoryview:
    """Return the image file that an item stands for.

    Raises:
        SampleError: no item is of this type.
        OSError, ValueError: the file cannot be read, or the picture not be encoded.
    """
    if isinstance(item, bytes | bytearray | memoryview):
        return item
    if isinstance(item, os.PathLike):
        path = regular_file(os.fspath(item))
        if (size := os.stat(path).st_size) > MAX_MEMBER_BYTES:
            raise ValueError(f"{path}: {size} bytes, at most {MAX_MEMBER_BYTES}")
        with open(path, "rb") as file:
            return file.read()
    pillow = sys.modules.get("PIL.Image")  # who has a picture has loaded it
    if pillow is not None and isinstance(item, pillow.Image):
        return lossless_file(item)
    hint = "; a text is str, an image bytes, a PIL image or a pathlib.Path"
    raise SampleError(BAD_LAYOUT, f"of type {type(item).__name__}{hint}")


def _payload(
    document: Document,
    key: str,
    texts: list[str | None],
    images: list[str | None],
    errors: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the json of a document. It states types only where values are of others than JSON's."""
    metadata = _metadata(document.metadata)
    if all(map(_is_json, metadata.values())):
        lists = {SAMPLE_ID: document.id, TEXTS: texts, IMAGES: images, ROW_EXTRA: {"metadata": metadata}}
        return {**lists, ROW_ERRORS: errors} if errors else lists
    last = max((position for position, item in enumerate(document.items) if item is not None), default=-1)
    if (length := len(texts)) > last + 1:  # gaps at the end; without stated types, readers note them
        metadata[SOURCE] = {**metadata.get(SOURCE, {}), "lengths": {TEXTS: length, IMAGES: length}}
    fields: list[pa.Field] = []
    values: dict[str, Any] = {}
    for name, value in metadata.items():
        try:
            array, column = _column(name, value)
            json_codec.check_type(column)
            (values[name],) = json_codec.encode(array, column)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SampleError(BAD_LAYOUT, f"metadata {name!r:.100}: {error_line(error)}") from error
        fields.append(column)
    rows: dict[str, Any] = {"metadata": {}, "text": {}, "image": {}}
    extra: dict[str, Any] = {"text": [None] * len(texts), "image": [None] * len(images), "metadata": values}
    types = schema_to_text(pa.schema(fields))
    return native_payload(document.id, key, texts, images, extra, errors, types, [], rows)


def _metadata(given: object) -> dict[str, Any]:
    """Return metadata by the names of their columns; values under reserved names go to ``_source``."""
    if not isinstance(given, Mapping):
        raise SampleError(BAD_LAYOUT, f"metadata must be a mapping, not {type(given).__name__}")
    if len(given) > MAX_FIELDS:
        raise SampleError(BAD_LAYOUT, f"{len(given)} fields of metadata, at most {MAX_FIELDS}")
    for name in given:
        if not isinstance(name, str):
            raise SampleError(BAD_LAYOUT, f"a name in metadata is no text: {_shown(name)}")
    found = {name: value for name, value in given.items() if name not in RESERVED_COLUMNS}
    if clash := {name: given[name] for name in RESERVED_COLUMNS if name in given}:
        if not isinstance(found.get(SOURCE, {}), dict):
            clash[SOURCE] = found.pop(SOURCE)
        if not _is_json(clash):
            raise SampleError(BAD_LAYOUT, f"metadata {min(clash)!r}: the name is reserved")
        found[SOURCE] = {**found.get(SOURCE, {}), "fields": clash}
    return found


def _is_json(value: object) -> bool:
    if value is None or isinstance(value, str | int | float):
        return True
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    return isinstance(value, list | tuple) and all(map(_is_json, value))


def _column(name: str, value: Any) -> tuple[pa.Array, pa.Field]:
    """Return a column of one value, in the type that the value has."""
    if _is_json(value):
        tally = FieldTally()
        value = json.loads(dumps(value))  # a tuple is a list, a number of a class of its own is one
        tally.observe(value)
        column = tally.field(name)
        return build_column([value], column), column
    array = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value])
    return array, pa.field(name, array.type)


def write_documents(target: str, given: Iterable[AnyDocument]) -> None:
    """Write a tar of documents; one that cannot be written becomes a refused sample."""
    with TarWriter(target) as tar:
        for members in _Encoder(quarantines=True).encode(given):
            tar.write_group(members)


def documents(
    given: Iterable[AnyDocument],
    *,
    blocksize: int | str = "512MiB",
    max_batch_bytes: int | None = DEFAULT_BATCH_BYTES,
    quarantine_errors: bool = False,
) -> DocumentReader:
    """Return a reader of documents that code gives, for writers, filters and everything that takes a reader.

    They are asked for once, when the reader is first used, and spooled to a temporary folder
    (``TMPDIR``) that goes with the reader. In memory are one document, and a digest of each id. Rows have
    no ``source_ref``: their images are in no file.

    Args:
        given: documents, tuples ``(id, items, metadata)``, or mappings of these names.
        blocksize: bytes of documents per partition (output file), as a number or ``"512MiB"``.
        max_batch_bytes: see `InterleavedReader`.
        quarantine_errors: turn a document that cannot be used into a loss of the stream, and an image that
            cannot be read into an error row. By default, both raise.

    Raises:
        ShardError: (when it is read) a document cannot be used; the message names it, and the item.
    """
    return DocumentReader(given, blocksize, max_batch_bytes, quarantine_errors)


class DocumentReader(InterleavedWebdatasetReader):
    """Reader of spooled documents; see `documents`."""

    def __init__(
        self,
        given: Iterable[AnyDocument],
        blocksize: int | str,
        max_batch_bytes: int | None,
        quarantine_errors: bool,
    ) -> None:
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"documents() takes an iterable of documents, not {type(given).__name__}")
        super().__init__((), max_batch_bytes=max_batch_bytes, quarantine_errors=True)
        self._block = blocksize if isinstance(blocksize, int) else parse_bytes(blocksize)
        self._is_strict_about_documents = not quarantine_errors
        self._given: Iterable[AnyDocument] | None = given
        self._spooled: list[Partition] | None = None
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        parts = "not read yet" if self._spooled is None else counted(len(self._spooled), "partition")
        return f"<{type(self).__name__}: {parts}>"

    def __getstate__(self) -> dict[str, Any]:
        self.partitions()  # another process only reads the spooled files
        return {**super().__getstate__(), "_given": None}

    def partitions(self) -> list[Partition]:
        """Return the partitions; the first call asks for all documents.

        Raises:
            ShardError: a document cannot be used.
        """
        if self._failure is not None:  # what is spooled is not all
            raise self._failure
        if self._spooled is None:
            try:
                self._spooled = list(self._spool(self._given or ()))
            except Exception as error:
                self._failure = error
                raise
            self._given = None
        return list(self._spooled)

    def open(self, partition: Partition) -> BatchStream:
        """Return the stream of one partition; its documents came from no file."""
        stream = super().open(partition)
        if stream.losses and self._is_strict_about_documents:
            raise ShardError(stream.losses[0].reason)
        stream.losses[:] = [replace(loss, source_ref=None) for loss in stream.losses]
        return stream

    def sources(self, partition: Partition) -> tuple[str, ...]:
        return ()

    def _spool(self, given: Iterable[AnyDocument]) -> Iterator[Partition]:
        folder = tempfile.mkdtemp(prefix="mm-assets-documents-")
        weakref.finalize(self, _remove, folder, os.getpid())
        self.relative_to = folder
        tar: TarWriter | None = None
        number = 0
        try:
            for members in _Encoder(not self._is_strict_about_documents).encode(given):
                if tar is None:
                    name = f"part-{number:05}"
                    path = os.path.join(folder, f"{name}.tar")
                    tar = TarWriter(path)
                tar.write_group(members)
                if tar.bytes >= self._block:
                    tar.close()
                    yield Partition(name, (path,))
                    tar, number = None, number + 1
            if tar is not None:
                tar.close()
                yield Partition(name, (path,))
        finally:
            if tar is not None:
                tar.abort()

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        return self._opened(uri, partition, ids, _SpooledSamples)

    def _batches(self, partition: Partition, stream: BatchStream) -> Iterator[InterleavedBatch]:
        for batch in super()._batches(partition, stream):
            yield InterleavedBatch(batch.data, (), partition.name)
        for file in partition.files:
            if file in stream.notes:
                stream.notes[partition.name] = stream.notes.pop(file)


class _SpooledSamples(TarSamples):
    """Samples of a spooled tar. Rows have no locator: the tar goes."""

    def decode(self, member: Member) -> Sample:
        sample = super().decode(member)
        for row in sample.rows:
            row.source_ref = None
        return sample


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not a copy of the reader in a worker
        shutil.rmtree(folder, ignore_errors=True)


class DocumentSource(Protocol):
    """What a plugin has in its list ``SOURCES``: raw shards that its code makes documents of.

    ``MM_RAW_SHARDS=plugin:NAME`` names it. Its shards are made like tars: gate, quarantine and accounting are
    the same.

    Attributes:
        name: lower-case letters, digits and underscores; unique.
    """

    name: str

    def shards(self) -> Mapping[str, str]:
        """Return the version of each shard by its name.

        A shard is made again when its version changes: a digest or time of what it is read from, and a number
        for the code. Names become those of partitions: words with slashes between, none of which begins with
        a dot. Any other is refused.
        """
        ...

    def documents(self, shard: str) -> Iterable[AnyDocument]:
        """Return the documents of a shard, the same ones in the same order for the same version."""
        ...


_PREFIX = "plugin:"
_SCHEME = f"{PLUGIN_PROTOCOL}://"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REVISION = "1"  # of these tars: part of their version


def source_of(name: str) -> DocumentSource:
    """Return the source of this name among those of the plugins.

    Raises:
        ValueError: there is none, or one that cannot be used.
    """
    found: dict[str, DocumentSource] = {}
    for module in load_plugins():
        for source in listed(module, "SOURCES"):
            known = getattr(source, "name", None)
            if not isinstance(known, str) or not _NAME.fullmatch(known):
                raise plugin_fault(module, f"a source has no name of a-z, 0-9 and _: {source!r:.100}")
            for method in ("shards", "documents"):
                if isinstance(source, type) or not callable(getattr(source, method, None)):
                    raise plugin_fault(module, f"source {known!r}: {method} must be a method of an object")
            if known in found:
                raise plugin_fault(module, f"source {known!r}: another one has this name")
            found[known] = source
    if name not in found:
        hint = nearest(name, found) if found else "MM_PLUGINS names no module with SOURCES"
        raise ValueError(f"{_PREFIX}{name}: no source of a plugin has this name; {hint}")
    return found[name]


@dataclass(frozen=True)
class PluginAddress:
    """Name of a source of a plugin; each of its shards is a raw shard."""

    protocol: ClassVar[str] = PLUGIN_PROTOCOL
    places: ClassVar[tuple[str, ...]] = ()
    name: str

    @property
    def url(self) -> str:
        """The source as a URL: a folder with a tar for each shard."""
        return f"{_SCHEME}{self.name}"

    @classmethod
    def named(cls, item: str) -> PluginAddress | None:
        """Return the source that a location names, as in ``plugin:NAME``; else None."""
        return cls(item.removeprefix(_PREFIX).removeprefix("//")) if item.startswith(_PREFIX) else None

    def names(self) -> dict[str, str]:
        """Return the version of each shard by its name, sorted.

        Raises:
            ValueError: there is no such source, or its ``shards()`` fails or gives something else.
            FileNotFoundError: it has no shards.
        """
        source = source_of(self.name)
        try:
            found = source.shards()
        except Exception as error:
            raise _fault(source, "shards()", error_line(error)) from error
        if not isinstance(found, Mapping):
            raise _fault(source, "shards()", f"no mapping of names and versions: {found!r:.100}")
        for name, version in found.items():
            if not (isinstance(name, str) and name and isinstance(version, str) and version):
                raise _fault(
                    source, "shards()", f"name and version are texts: {name!r:.100}: {version!r:.100}"
                )
            if any(not word or word.startswith(".") for word in name.split("/")):  # lost to those who list
                rule = "a name is words with slashes between, none of which begins with a dot"
                raise _fault(source, "shards()", f"shard {name!r:.100}: {rule}")
            if any("\ud800" <= letter <= "\udfff" for letter in name):
                raise _fault(source, "shards()", f"shard {name!a:.100}: it has lone surrogates")
        if not found:
            raise FileNotFoundError(f"{_PREFIX}{self.name}: the source has no shards")
        return dict(sorted(found.items()))

    def passed_over(self) -> list[str]:
        """Return nothing: a source has nothing but its shards."""
        return []


def _fault(source: DocumentSource, method: str, reason: str) -> ShardError:
    return ShardError(f"{_PREFIX}{source.name}: {method} of {type(source).__module__}: {reason}")


def _write_shard(source: DocumentSource, shard: str, target: str) -> None:
    try:
        write_documents(target, source.documents(shard))
    except Exception as error:
        raise _fault(source, f"documents({shard!r})", error_line(error)) from error


class PluginFileSystem(VirtualTars[str]):
    """``plugin://NAME``: a folder with a tar ``SHARD.tar`` for each shard; see `PluginAddress`."""

    protocol = PLUGIN_PROTOCOL
    called = "shard"

    def shards(self, token: str) -> Mapping[str, str]:
        return PluginAddress(token).names()

    def shard_info(self, path: str, shard: str) -> dict[str, Any]:
        return version_info(path, [_REVISION, shard])

    def write(self, token: str, name: str, shard: str, target: str) -> None:
        _write_shard(source_of(token), name, target)
