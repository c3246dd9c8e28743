"""Shards of numbered samples: the contract of their sources, and the files that these have open.

* `Source`: the samples of one format. `LruCache`: what a process has opened last.
* `TarSource`: those of tars, each read by its byte range, and made a document without any table. `open_tars`
  takes their offsets from the index beside a tar, else from its headers.
* `LocalCopies`: copies of remote files, within a bound, shared by all processes of a machine. A copy appears
  as a whole, by a rename. One process downloads a file while others that want it wait. What was used longest
  ago is removed first; who has it open reads on.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pydantic_core import from_json

from mm_assets.formats.images import CONTENT_TYPES
from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.tar import BLOCK, check_header, member_size, padded
from mm_assets.formats.tar.scan import Member, scan
from mm_assets.formats.webdataset import (
    BOOKKEEPING,
    IMAGES,
    ROW_ERRORS,
    ROW_EXTRA,
    SAMPLE_ID,
    SOURCE,
    TEXT_TYPE,
    TEXTS,
    is_native_layout,
)
from mm_assets.formats.webdataset.native import iter_patches
from mm_assets.formats.webdataset.rows import read_declared
from mm_assets.model import json_codec
from mm_assets.model.errors import DataError
from mm_assets.model.samples import Document, item_order
from mm_assets.storage.errors import located
from mm_assets.storage.files import filesystem, is_remote, open_binary, read_bytes, regular_file, sweep
from mm_assets.storage.stamps import existing_files, mark_of, parallel_map
from mm_assets.storage.temporary import create_locked, temporary_name
from mm_assets.train.order import digest_of

_BLOCK = 8 << 20
_SUFFIX = ".copy"
_ATTEMPTS = 5
_OPEN_FILES = 64  # of one process

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """A shard: its name, and the number of samples in it."""

    name: str
    samples: int


class Source(ABC):
    """Samples of one format.

    Attributes:
        shards: its shards, in order.
        digest: of all that tells which samples these are; it depends neither on the place nor the machine.
        is_forkable: whether a forked process may read.
    """

    is_forkable = True

    def __init__(self, shards: Sequence[Shard], digest: str) -> None:
        self.shards = list(shards)
        self.digest = digest

    @abstractmethod
    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        """Return samples of a shard, in the order of ``numbers``.

        Raises:
            DataError: what is there is no such sample; the message names file and sample.
        """


Key = TypeVar("Key")
Held = TypeVar("Held")


class LruCache(Generic[Key, Held]):
    """What this process has opened last, within limits.

    A forked process opens anew, since files that both have open share their position. Pickled, it is empty.

    Args:
        open_: opens it.
        most: number that is held.
        most_bytes: bytes that are held, by ``size_of``; the last one is held whatever its size.
    """

    def __init__(
        self,
        open_: Callable[[Key], Held],
        most: int = _OPEN_FILES,
        most_bytes: int = 0,
        size_of: Callable[[Held], int] | None = None,
    ) -> None:
        self._open, self._most, self._most_bytes, self._size_of = open_, most, most_bytes, size_of
        self._held: OrderedDict[Key, Held] = OrderedDict()
        self._pid = os.getpid()

    def get(self, key: Key) -> Held:
        """Return what is held under a key, opened if it is not."""
        if self._pid != os.getpid():
            self._held, self._pid = OrderedDict(), os.getpid()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        found = self._held[key] = self._open(key)
        while len(self._held) > 1 and (
            len(self._held) > self._most
            or (self._size_of and sum(map(self._size_of, self._held.values())) > self._most_bytes)
        ):
            self._held.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": OrderedDict(), "_pid": -1}


class OpenFile:
    """A file that is closed when nobody has it any more."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if (descriptor := vars(self).pop("descriptor", None)) is not None:
            os.close(descriptor)


class LocalCopies:
    """A folder of copies.

    Args:
        folder: None makes one in the folder of temporary files, which all runs of this user share.
        limit: bytes of all copies, as a number or ``"32GiB"``. More are there only while they are read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | str = "32GiB") -> None:
        default = os.path.join(tempfile.gettempdir(), f"mm-assets-copies-{os.getuid()}")
        self.folder = Path(folder if folder is not None else default)
        self._is_default = folder is None
        self.limit = parse_bytes(limit)

    def open(self, uri: str, opener: Callable[[str], T]) -> T:
        """Return what ``opener`` gives for a local file of these bytes: the file itself, or its copy.

        Raises:
            DataError: the file alone is larger than the limit, or the common folder is not this user's alone.
            OSError: it cannot be read, or there is no room.
        """
        if not is_remote(uri):
            return opener(regular_file(uri))
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # another process has removed it meanwhile
                return opener(self._copy_of(uri))
        raise DataError(f"{uri}: its local copy is removed as soon as it is made: raise the limit of copies")

    def _copy_of(self, uri: str) -> str:
        fs, path = filesystem(uri)
        try:
            with located(uri):
                info = fs.info(path)
        except FileNotFoundError as error:
            raise DataError(f"{uri}: no such file") from error
        size = int(info["size"])
        if size > self.limit:
            raise DataError(f"{uri}: {size} bytes are more than the {self.limit} of the local copies")
        self._make_folder()
        name = xxhash.xxh3_128_hexdigest(f"{uri} {size} {mark_of(info)}".encode())
        copy = self.folder / f"{name}{_SUFFIX}"
        with self._locked(name[:2]):  # few files, whatever the number of copies
            if not copy.exists():
                self._download(uri, copy, size)
            os.utime(copy, ns=(time.time_ns(), time.time_ns()))  # the kernel's own clock has ticks of ms
        return str(copy)

    def _make_folder(self) -> None:
        if not self._is_default:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        with suppress(FileExistsError):  # others may write beside it
            self.folder.mkdir(mode=0o700)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise DataError(
                f"{self.folder}: is no folder that this user alone may use, so others may have put copies "
                "there: remove it, or name another one (cache_dir)"
            )

    def _download(self, uri: str, copy: Path, size: int) -> None:
        temporary = self.folder / temporary_name(copy.name)
        with self._locked("room"):
            self._make_room(size)
            descriptor = create_locked(temporary)
            os.truncate(temporary, size)  # which the next one that makes room counts
        try:
            with located(uri), open_binary(uri) as source, open(temporary, "r+b") as target:
                shutil.copyfileobj(source, target, _BLOCK)
                if target.tell() != size:
                    raise DataError(f"{uri}: {target.tell()} bytes were read, not {size}: it was replaced")
            os.replace(temporary, copy)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _make_room(self, size: int) -> None:
        """Remove copies, those used longest ago first, until ``size`` bytes more are within the limit."""
        sweep(str(self.folder))
        total, copies = size, []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):
                found = entry.stat()
                total += found.st_size
                if entry.name.endswith(_SUFFIX):
                    copies.append((found.st_mtime_ns, found.st_size, entry.path))
        for _, nbytes, path in sorted(copies):
            if total <= self.limit:
                break
            Path(path).unlink(missing_ok=True)
            total -= nbytes

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with open(self.folder / f"{name}.lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_INDEX = ".idx"
Typed = Mapping[str, Callable[[Any], Any]]
_REGULAR = b"0\0"
_MAGIC = b"ustar"
_NAME = 100  # bytes
_NO_ROWS: dict[str, Any] = {"schema": "", "rows": {"metadata": {}, "text": {}, "image": {}}}


class TarSource(Source):
    """Tars of our layout, by byte ranges of whole samples.

    Args:
        uris: the tars.
        spans: of each, the first byte of each sample and that behind its last.
        copies: gives a local copy of a remote tar.
    """

    def __init__(
        self, uris: Sequence[str], spans: Sequence[tuple[Numbers, Numbers]], copies: LocalCopies
    ) -> None:
        names = [uri.rpartition("/")[2] for uri in uris]
        places = [[*map(digest_of, (starts.tolist(), stops.tolist()))] for starts, stops in spans]
        shards = [Shard(name, len(starts)) for name, (starts, _) in zip(names, spans, strict=True)]
        super().__init__(shards, digest_of("tars", names, places))
        self._uris, self._spans, self._copies = list(uris), list(spans), copies
        self._tars = LruCache(self._tar)

    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        tar = self._tars.get(shard)
        uri, (starts, stops) = self._uris[shard], self._spans[shard]
        size = min(len(tar), tar.size())  # as it is now: what is behind the end of a file cannot be touched
        spans = [(int(starts[number]), int(stops[number])) for number in numbers]
        for number, (start, stop) in zip(numbers, spans, strict=True):
            if not 0 <= start <= stop <= size:
                raise DataError(
                    f"{uri}: the file ends before sample {number}: it was cut, "
                    "or its index or plan is of another"
                )
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            tar.madvise(mmap.MADV_WILLNEED, page, stop - page)  # read all at once from the disk
        return [
            _tar_document(memoryview(tar)[start:stop], f"{uri}: sample {number}", uri, start)
            for number, (start, stop) in zip(numbers, spans, strict=True)
        ]

    def _tar(self, shard: int) -> mmap.mmap:
        return self._copies.open(self._uris[shard], _mapped)


def _mapped(path: str) -> mmap.mmap:
    """Map a tar into memory, so that the bytes of an image are copied once."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise DataError(f"{path}: the file is empty: it was cut")
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _tar_document(data: memoryview, place: str, tar: str, start: int) -> Document:
    """Return the sample of the members in some bytes of a tar."""
    members: dict[str, memoryview] = {}
    at = 0
    while at < len(data):
        header = bytes(data[at : at + BLOCK])
        if not at:  # that of the first tells whether the index is of this tar; sums take as long as reading
            check_header(header, tar, start)
        if header[156] not in _REGULAR or header[257:262] != _MAGIC:
            raise DataError(f"{place}: byte {start + at}: no header as our tars have them")
        size = member_size(header, tar, start + at)
        if at + BLOCK + size > len(data):
            raise DataError(
                f"{place}: byte {start + at}: a member ends behind its sample: "
                "the tar was cut, or its index or plan is of another"
            )
        # Also where folders are in the prefix field: of the name the last part is here.
        name = header[:_NAME].split(b"\0", 1)[0].rpartition(b"/")[2].partition(b".")[2]
        members[name.decode("utf-8", "replace")] = data[at + BLOCK : at + BLOCK + size]
        at += BLOCK + padded(size)
    try:
        payload = _parsed(bytes(members.pop("json", b"null")))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: its json cannot be read: {error}") from error
    if not isinstance(payload, dict) or not is_native_layout(payload):
        raise DataError(
            f"{place}: not in our layout of tars: make such tars of it with mm-assets convert --to webdataset"
        )
    try:
        return _native_document(payload, members)
    except (LookupError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{place}: sample {payload.get(SAMPLE_ID)!r:.200} is damaged: {error!r}") from error


def _parsed(text: bytes) -> Any:
    """Return what `json.loads` does, in a third of its time."""
    try:
        return from_json(text)
    except ValueError:  # also of what Python reads: half a surrogate pair, hundreds of levels
        return json.loads(str(text, "utf-8"))


def _native_document(payload: dict[str, Any], members: Mapping[str, memoryview]) -> Document:
    texts, images, extra = payload[TEXTS], payload[IMAGES], payload[ROW_EXTRA]
    of_texts, of_images = extra.get("text") or (), extra.get("image") or ()
    bookkeeping = payload.get(BOOKKEEPING) or _NO_ROWS
    rows, typed = bookkeeping["rows"], _typed_fields(bookkeeping["schema"])
    items = []
    for at, (text, image) in enumerate(zip_longest(texts, images)):
        if text is not None:
            entry = of_texts[at] if of_texts else None
            items.append(_item("text", at, TEXT_TYPE, text, entry, typed))
        if image is not None:
            entry = of_images[at] if of_images else None
            content_type = CONTENT_TYPES.get(image.rpartition(".")[2])
            items.append(_item("image", at, content_type, bytes(members[image]), entry, typed))
    errors = payload.get(ROW_ERRORS) or ()
    patches = [patch for patch in iter_patches(rows) if len(patch[2]) > ("ref" in patch[2])]
    if errors or patches:
        items = _amended(items, errors, patches, typed)
    metadata = {}
    if "metadata" in rows:
        metadata = {name: value for name, value in (extra.get("metadata") or {}).items() if name != SOURCE}
        metadata = {**dict.fromkeys(metadata), **_values(metadata, typed)}
    return {SAMPLE_ID: payload[SAMPLE_ID], "items": items, "metadata": metadata}


def _item(
    modality: str, position: int, content_type: str | None, content: Any, extra: Any, typed: Typed
) -> dict[str, Any]:
    return {
        "modality": modality,
        "position": position,
        "content_type": content_type,
        modality: content,
        "metadata": _values(extra, typed) if extra else {},
    }


def _values(extra: Mapping[str, Any], typed: Typed) -> dict[str, Any]:
    """Return the columns of a row that have a value."""
    if [*extra.values()].count(None) == len(extra):  # as most rows have it: told without a loop of Python
        return {}
    stated = {name: value for name, value in extra.items() if value is not None and name != SOURCE}
    # Tars whose columns are as JSON says declare none; an object is of a column of JSON, then.
    for name in [name for name, value in stated.items() if name in typed or type(value) is dict]:
        stated[name] = typed.get(name, _json_value)(stated[name])
        if stated[name] is None:  # of JSON text that says null
            del stated[name]
    return stated


def _amended(
    items: Sequence[dict[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    patches: Sequence[tuple[str, int, Mapping[str, Any]]],
    typed: Typed,
) -> list[dict[str, Any]]:
    """Return the items with those that the lists of a sample cannot say, and with what they cannot say."""
    by_place = {(item["modality"], item["position"]): item for item in items}
    for entry in errors:
        place = entry["modality"], entry["position"]
        if place[0] == "metadata":
            continue
        if place not in by_place:
            by_place[place] = _item(*place, entry.get("content_type"), None, entry.get("extra"), typed)
        if entry.get("materialize_error") is not None:
            by_place[place]["error"] = entry["materialize_error"]
    for modality, position, patch in patches:
        if modality == "metadata":
            continue
        item = by_place[modality, position]
        item["content_type"] = patch.get("content_type", item["content_type"])
        item["text" if modality == "text" else "image"] = (
            patch.get("text_content", item.get("text"))
            if modality == "text"
            else b64decode(patch["binary_content"])
            if "binary_content" in patch
            else item["image"]
        )
    return sorted(by_place.values(), key=item_order)


@lru_cache(maxsize=64)
def _typed_fields(schema: str) -> Typed:
    """Return, by column, what makes the values of those that JSON may have in another form, such as dates."""
    fields = list(read_declared(schema).schema) if schema else []
    return {
        field.name: _json_value if json_codec.is_json(field) else partial(_decoded, field)
        for field in fields
        if not json_codec.is_natural(field.type) or json_codec.is_json(field)
    }


def _json_value(value: Any) -> Any:
    is_wrapped = type(value) is dict and set(value) == {json_codec.RAW}
    return json_codec.json_value(value[json_codec.RAW]) if is_wrapped else value


def _decoded(field: pa.Field, value: Any) -> Any:
    return json_codec.decode([value], field)[0].as_py()


def open_tars(uris: Sequence[str], copies: LocalCopies) -> TarSource:
    """Open tars by the indexes beside them, ``<tar>.idx``; a tar without one is scanned.

    Raises:
        DataError: an index is none, or a tar is damaged.
    """
    indexed = existing_files([f"{uri}{_INDEX}" for uri in uris])

    def span(uri: str) -> tuple[Numbers, Numbers]:
        offsets = _indexed(uri) if f"{uri}{_INDEX}" in indexed else _scanned(uri, copies)
        return offsets[:-1], offsets[1:]

    return TarSource(uris, parallel_map(span, uris, uris[0]), copies)


def _indexed(uri: str) -> Numbers:
    data = read_bytes(f"{uri}{_INDEX}") or b""
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    if len(data) % 8 or not len(offsets) or (np.diff(offsets) <= 0).any() or offsets[0] < 0:
        raise DataError(f"{uri}{_INDEX}: no index of a tar: remove it, and the tar is scanned instead")
    return offsets


def _scanned(uri: str, copies: LocalCopies) -> Numbers:
    """Return the first byte of each sample, whose members are adjacent, and the end of the last."""
    file = copies.open(uri, OpenFile)
    index = scan(file.descriptor, uri)
    starts = [next(members).header_offset for _, members in groupby(index.members, _key)]
    return np.array([*starts, index.end], np.int64)


def _key(member: Member) -> tuple[str, str]:
    folder, _, name = member.name.rpartition("/")
    return folder, name.partition(".")[0]
