"""Documents of others as items in reading order, and back.

* `Unfolding` takes the texts and images of one document. What rows cannot say of it stays in a skeleton: the
  fields without their texts, and the places (holes) that the items were taken from.
* `refill` puts the items that are still there back into the skeleton.

Which fields hold what is told by `mm_assets.formats.document_layouts`. Values of Parquet columns are made as
JSON would have them (`value_of`), but for the bytes of images: these stay in Arrow, and have numbers
(`numbered`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.images import sniff
from mm_assets.model.errors import DANGLING_REFERENCE, UNDECODABLE_IMAGE, Fault, MmAssetsError
from mm_assets.model.nested_types import is_bytes, is_list, is_text, value_type

IMAGE_FIELDS = ("images", "image")
_NUMBERED = re.compile(r"image_(\d{1,4})", re.ASCII)
_TOKEN = re.compile(r"<image(?: (\d{1,4}))?>", re.ASCII)
_DATA_URL = re.compile(r"data:[\w/+.;=-]{0,100};base64,", re.ASCII)
_LEAST_BASE64 = 64  # characters: names are shorter, or no base64
REFERENCES = ("image", "image_url", "url", "path")  # fields of a part, or of an object, that name an image
LOOKED_AT = 64  # entries of a list
_BYTES, _PATH = "bytes", "path"

# Kinds of holes: a text of pieces, the name of an image, a part that goes with its item, and an entry of a
# list of images that is null without it, since others are referred to by their numbers.
_TEXT, _NAME, _PART, _ENTRY = "text", "name", "part", "entry"

_IN_LIST = 2  # length of the path to an entry of a field

Path = tuple[str | int, ...]
Document = Mapping[str, Any]


class UnfoldError(MmAssetsError, ValueError):
    """A document has more items than a sample may have."""


class FoldError(MmAssetsError, ValueError):
    """A layout cannot hold a sample; the message names the field."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image as a document states it.

    ``name`` is a name or URL, ``data`` the bytes that were in the JSON itself, ``blob`` the number of a value
    in a column of bytes. ``is_stored`` is True of an image that has its place in such a column, even if
    there are no bytes. ``fields`` are the others of the struct around it, None without one. ``fault`` is why
    stated bytes cannot be read: such an image has no name, which could be that of another.
    """

    name: str | None = None
    data: bytes | None = None
    blob: int | None = None
    is_stored: bool = False
    fields: Mapping[str, Any] | None = None
    fault: Fault | None = None


@dataclass(slots=True, eq=False)
class Item:
    """A text or an image, with its values of columns. ``position`` is known at the end of unfolding."""

    modality: str
    text: str | None = None
    image: Image | None = None
    fault: Fault | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    position: int = -1


Pieces = list["Item | tuple[Item, str]"]  # of a text: the texts, and the images with their tokens


class Unfolding:
    """The items of one document while they are found.

    Args:
        fields: fields of the document; those that are taken are removed.
        texts_field, images_field: names that a setting gives, else the usual ones.
        own_images: names of the images that belong to the document, if it names none itself.
        most: largest number of items.
    """

    def __init__(
        self,
        fields: dict[str, Any],
        texts_field: str,
        images_field: str,
        own_images: Sequence[str] = (),
        most: int = 1 << 20,
    ) -> None:
        self.fields = fields
        self.texts_field = texts_field
        self.items: list[Item] = []
        self.skeleton: dict[str, Any] = {}
        self.unread: dict[str, None] = {}  # types of parts that are neither text nor image
        self.has_list_of_images = False
        self.images: list[Item] = []  # of the document's fields, in order
        self.numbers: dict[int, Item] = {}  # of those in numbered fields
        self._listed: list[Item | None] = []  # entries of the first list
        self._holes: list[tuple[Path, str, Any]] = []
        self._most = most
        self._names_images = False  # beside the fields of images
        for name in _image_names(fields, images_field):
            if _has_images(fields[name]) or fields[name] == []:
                self._take_images(name)
        self._own = not self.images
        self._names_images = False
        if self._own:
            self.images = [Item("image", image=Image(name)) for name in own_images]
        self._is_placed: set[int] = set()
        self._next = 0  # of `images`
        self._has_numbers = False  # whether entries of a list are referred to by their numbers

    def take(self, name: str) -> Any:
        """Move a field to the skeleton and return it; a list is a copy, whose entries may be replaced."""
        value = self.fields.pop(name)
        self.skeleton[name] = list(value) if isinstance(value, list) else value
        return self.skeleton[name]

    def add(self, item: Item, columns: Mapping[str, Any] | None = None) -> Item:
        """Give an item the next position.

        Raises:
            UnfoldError: there are too many.
        """
        self._refuse_more_than(len(self.items))
        item.position = len(self.items)
        item.columns |= columns or {}
        self.items.append(item)
        if item.image is not None:
            self._is_placed.add(id(item))
        return item

    def add_text(
        self,
        text: str,
        path: Path,
        columns: Mapping[str, Any] | None = None,
        has_tokens: bool = True,
        part: Path | None = None,
    ) -> None:
        """Add a text, split at the tokens that stand for images. An empty text is no item.

        Args:
            text: the text.
            path: its place in the skeleton.
            columns: values of its columns.
            has_tokens: whether it may have tokens.
            part: the place of what goes with it, if it is dropped; for a text without tokens.
        """
        pieces: Pieces = []
        start = 0
        for token in _TOKEN.finditer(text) if has_tokens and "<image" in text else ():
            image = self._at_token(token)
            if image is None:
                continue
            if start < token.start():
                pieces.append(self.add(Item("text", text[start : token.start()]), columns))
            pieces.append((self.add(image, columns), token[0]))
            start = token.end()
        if start < len(text):
            pieces.append(self.add(Item("text", text[start:]), columns))
        if pieces:
            self._set(path, None)
            if part is not None:
                self._holes.append((part, _PART, pieces[-1]))
            self._holes.append((path, _TEXT, pieces))

    def add_part(self, part: Path, columns: Mapping[str, Any], index: object = None) -> None:
        """Add the next image of the fields, or the one of an index, which a part stands for."""
        if type(index) is int:
            found = self._entry(index)
            item = _absent(f"image {index}", len(self.images)) if self._is_taken(found) else found
        else:
            item = self._next_image("a part without a name")
        assert item is not None
        self._holes.append((part, _PART, self.add(item, columns)))

    def named(self, image: Image, path: Path, part: Path | None = None) -> Item:
        """Return an image that is named where it stands, to be added.

        Its place in the skeleton keeps all but content and name. ``part`` is the place of what goes with it.
        """
        item = Item("image", image=image, fault=image.fault)
        self._names_images = True
        if part is not None:
            self._holes.append((part, _PART, item))
        if image.fault is not None:  # nothing of it was read: all stays
            self._holes.append((path, _PART, item))
            return item
        value = image.fields if image.is_stored else self._get(path)
        if isinstance(value, dict):
            kept = {key: entry for key, entry in value.items() if key != _BYTES or image.data is None}
            name = next((key for key in REFERENCES if isinstance(kept.get(key), str)), _PATH)
            self._set(path, {**kept, name: None})
            self._holes.append((path, _PART, item))
            path = (*path, name)
        else:
            self._set(path, None)
        self._holes.append((path, _NAME, item))
        return item

    def finish(self, is_pair: bool = False) -> None:
        """Put images without a token before everything else, or behind the text of a pair."""
        is_unwanted = self._own and self._names_images
        loose = [item for item in self.images if id(item) not in self._is_placed and not is_unwanted]
        for item in loose:
            self.add(item)
        if loose and not is_pair:
            self.items = [*self.items[-len(loose) :], *self.items[: -len(loose)]]
        for position, item in enumerate(self.items):
            item.position = position

    def source(self, name: str) -> dict[str, Any]:
        """Return what ``_source`` has of the document: the name of its layout, fields and holes."""
        listed = {id(item) for item in self._listed} if self._has_numbers else ()
        holes = [
            [*path, _ENTRY if id(of) in listed and len(path) == _IN_LIST else kind, _numbers(of)]
            for path, kind, of in self._holes
        ]
        return {"name": name, "fields": self.skeleton, "holes": holes}

    def _refuse_more_than(self, items: int) -> None:
        if items >= self._most:
            raise UnfoldError(f"more than {self._most} texts and images")

    def _at_token(self, token: re.Match[str]) -> Item | None:
        """Return the image of a token; None if the text names an image again."""
        if token[1] is None:
            return self._next_image(f"token {token[0]!r}")
        number = int(token[1])
        found = self.numbers.get(number)
        if found is None and not self.numbers:
            found = self._entry(number - 1)
        if found is None:
            return _absent(f"token {token[0]!r}", len(self.images))
        return None if id(found) in self._is_placed else found

    def _entry(self, index: int) -> Item | None:
        """Return the image at an index of the list of images."""
        self._has_numbers = True
        entries = self._listed or self.images
        return entries[index] if 0 <= index < len(entries) else None

    def _next_image(self, what: str) -> Item:
        while self._next < len(self.images) and self._is_taken(self.images[self._next]):
            self._next += 1
        more = self._next < len(self.images)
        return self.images[self._next] if more else _absent(what, len(self.images))

    def _is_taken(self, item: Item | None) -> bool:
        return item is None or id(item) in self._is_placed

    def _take_images(self, name: str) -> None:
        value = self.take(name)
        is_list = isinstance(value, list)
        is_first = is_list and not self.has_list_of_images
        self.has_list_of_images |= is_list
        if is_first:
            self._listed = [None] * len(value)
        for index, entry in enumerate(value if is_list else [value]):
            image = image_of(entry)
            if image is not None:
                self._refuse_more_than(len(self.images))
                item = self.named(image, (name, index) if is_list else (name,))
                self.images.append(item)
                if is_first:
                    self._listed[index] = item
                if number := _NUMBERED.fullmatch(name):
                    self.numbers[int(number[1])] = item

    def _get(self, path: Path) -> Any:
        value: Any = self.skeleton
        for step in path:
            value = value[step]
        return value

    def _set(self, path: Path, value: Any) -> None:
        """Replace a value of the skeleton; the lists and objects around it are copies already."""
        self._get(path[:-1])[path[-1]] = value


def _absent(what: str, images: int) -> Item:
    words = f"dangling reference: {what}, and the document has {images} images"
    return Item("image", fault=Fault(DANGLING_REFERENCE, words))


def _numbers(of: Any) -> Any:
    if isinstance(of, Item):
        return of.position
    return [piece.position if isinstance(piece, Item) else [piece[0].position, piece[1]] for piece in of]


def image_fields(fields: Document, images_field: str) -> list[str]:
    """Return the names of the fields with images, in order."""
    return [name for name in _image_names(fields, images_field) if _has_images(fields[name])]


def _image_names(fields: Document, images_field: str) -> list[str]:
    named = [images_field] if images_field not in IMAGE_FIELDS else [*IMAGE_FIELDS]
    numbered = sorted(
        (int(number[1]), name) for name in fields if (number := _NUMBERED.fullmatch(name)) is not None
    )
    names = dict.fromkeys([*named, *(name for _, name in numbered)])
    return [name for name in names if name in fields]


def _has_images(value: Any) -> bool:
    entries = value if isinstance(value, list) else [value]
    return any(image_of(entry) is not None for entry in entries[:LOOKED_AT])


def image_of(value: Any) -> Image | None:
    """Return the image that a value stands for; None if it stands for none."""
    if isinstance(value, Image):
        return value
    if isinstance(value, str):
        if not value:
            return None
        data = _inline(value)
        return Image(data=data) if data else Image(value)
    if isinstance(value, dict):
        name = next((value[key] for key in REFERENCES if isinstance(value.get(key), str)), None) or None
        stored = value.get(_BYTES)
        if stored is None:
            return image_of(name)
        data = _bytes_of(stored)
        return Image(name, data) if data else Image(fault=_UNREADABLE)
    return None


_UNREADABLE = Fault(
    UNDECODABLE_IMAGE, f"unreadable image: field {_BYTES!r} is neither base64 nor a list of bytes"
)


def _bytes_of(stored: Any) -> bytes | None:
    if isinstance(stored, str):
        return _decoded(stored)
    is_listed = isinstance(stored, list) and all(type(each) is int and 0 <= each < 256 for each in stored)
    return bytes(stored) if is_listed else None


def _inline(text: str) -> bytes | None:
    """Return the bytes of a data URL, or of base64 that begins like an image."""
    if text.startswith("data:"):
        head = _DATA_URL.match(text)
        return None if head is None else _decoded(text[head.end() :])
    if len(text) < _LEAST_BASE64:
        return None
    start = _decoded("".join(text[: 2 * _LEAST_BASE64].split())[:_LEAST_BASE64])
    return _decoded(text) if start is not None and sniff(start) is not None else None


_BLANKS = str.maketrans("", "", " \t\r\n")


def _decoded(text: str) -> bytes | None:
    """Return the bytes of base64, of either alphabet; it may be broken into lines."""
    text = text.translate(_BLANKS) if any(blank in text for blank in " \t\r\n") else text
    is_of_urls = ("-" in text or "_" in text) and not ("+" in text or "/" in text)
    try:
        return base64.b64decode(text, b"-_" if is_of_urls else None, validate=True)
    except (binascii.Error, ValueError):
        return None


@dataclass(frozen=True)
class Row:
    """An item of a sample to be folded: its text, or the name of its image, and its other columns."""

    position: int
    text: str | None
    image: str | None
    columns: Mapping[str, Any]


def refill(source: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the fields of a document that was unfolded, without what belongs to items that are gone."""
    document: Any = dict(source["fields"])
    by_position = {row.position: row for row in rows}
    placed: set[int] = set()
    named: set[int] = set()
    gone: list[tuple[Path, bool]] = []
    for *path, kind, of in source["holes"]:
        if kind == _TEXT:
            pieces = [(piece, None) if type(piece) is int else (piece[0], piece[1]) for piece in of]
            placed.update(at for at, _ in pieces)
            found = [(by_position[at], token) for at, token in pieces if at in by_position]
            _put(document, path, "".join(token or row.text or "" for row, token in found))
            continue
        placed.add(of)
        if of not in by_position:
            gone.append((tuple(path), kind == _ENTRY))
        elif kind == _NAME or (kind == _ENTRY and _inside(document, path) is None):
            named.add(of)
            _put(document, path, by_position[of].image)
    for path, is_entry in reversed(gone):
        if is_entry:
            _put(document, path, None)
        else:
            del _inside(document, path[:-1])[path[-1]]
    own = [row for row in rows if row.image is not None and row.position not in named]
    if any(row.position not in placed and row.image is None for row in rows):
        raise FoldError("a text at a position where the document had none")
    if own and not named:  # images of the sample's key, which the document did not name
        document["images"] = [row.image for row in own]
    elif any(row.position not in placed for row in own):
        raise FoldError("an image at a position where the document had none")
    return document


def _inside(document: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


def _put(document: Any, path: Sequence[str | int], value: Any) -> None:
    _inside(document, path[:-1])[path[-1]] = value


def example_of(type_: pa.DataType) -> Any:
    """Return a value as a column of this type may have it; strings are texts."""
    if is_bytes(type_):
        return Image(is_stored=True)
    if is_text(value_type(type_)):
        return "text"
    if is_list(type_):
        return [example_of(type_.value_type)]
    if pa.types.is_struct(type_):
        found = {field.name: example_of(field.type) for field in type_}
        return Image(is_stored=True, fields={}) if isinstance(found.get(_BYTES), Image) else found
    return None if pa.types.is_null(type_) else 0


def numbered(array: pa.Array, leaves: list[pa.Array]) -> pa.Array:
    """Return an array with the number of each value of bytes in its place; the values go to ``leaves``."""
    type_ = array.type
    if is_bytes(type_):
        first = sum(map(len, leaves))
        leaves.append(array)
        numbers = np.arange(first, first + len(array), dtype=np.int64)
        return pa.array(numbers, mask=~validity(array))
    if is_list(type_):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        values = numbered(array.flatten(), leaves)
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~validity(array)))
    if pa.types.is_struct(type_):
        children = [numbered(child, leaves) for child in array.flatten()]
        names = [field.name for field in type_]
        return pa.StructArray.from_arrays(children, names, mask=pa.array(~validity(array)))
    return array


def value_of(value: Any, type_: pa.DataType) -> Any:
    """Return a value as JSON would have it: without the nulls of structs, and with images."""
    if value is None:
        return None
    if is_bytes(type_):
        return Image(blob=value, is_stored=True)
    if is_list(type_):
        return [value_of(each, type_.value_type) for each in value]
    if not pa.types.is_struct(type_):
        return value
    found = {
        field.name: value_of(value[field.name], field.type)
        for field in type_
        if value.get(field.name) is not None
    }
    if type_.get_field_index(_BYTES) < 0 or not is_bytes(type_.field(_BYTES).type):
        return found
    stored, name = found.pop(_BYTES, None), found.get(_PATH)
    return Image(
        name if isinstance(name, str) else None, None, stored and stored.blob, is_stored=True, fields=found
    )


def with_bytes(value: Any, blobs: pa.ChunkedArray) -> Any:
    """Return a part of a skeleton in which bytes that are no image of the sample are base64."""
    if isinstance(value, list):
        return [with_bytes(each, blobs) for each in value]
    if isinstance(value, dict):
        return {name: with_bytes(each, blobs) for name, each in value.items()}
    if not isinstance(value, Image):
        return value
    stored = None if value.blob is None else base64.b64encode(blobs[value.blob].as_py()).decode()
    return stored if value.fields is None else {**value.fields, _BYTES: stored}


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(array.is_valid().to_numpy(zero_copy_only=False))
