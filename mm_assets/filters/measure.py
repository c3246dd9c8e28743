"""Base classes of measures, and the measuring of images: what fills the columns of stored scores.

* `Measure`: a measure fills one column. The column names the measure that filled it, so that another version
  is seen.
* `ImageMeasure`, `SampleMeasure`: measures of images and of samples. What they see of one is its
  `ImageContent` or `SampleContent`. Pixels are decoded when a measure first asks for them.
* `Score`: the values for one image, text or sample, by name.
* `ImageMeasurer`: each image is decoded at most once, for all its measures, and none is kept.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from mm_assets.formats.images import ImageInfo
from mm_assets.formats.images.pixels import Pixels, TooMuchMemory, rgb_pixels, turned
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.model.digest import ContentDigest
from mm_assets.model.errors import ImageError, MmAssetsError, unreadable_image
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import open_binary

_MEASURE = b"mm_assets:measure"


Content = TypeVar("Content")


@dataclass(frozen=True)
class Measure(ABC, Generic[Content]):
    """A measurement of one image or sample, stored in a column of its own.

    A measure is a frozen dataclass; its fields, if any, are part of what identifies its values, except those
    that do not count when measures are compared.
    """

    name: ClassVar[str]
    """Column of the scores: lower-case letters, digits and underscores."""

    type: ClassVar[pa.DataType]
    """Type of the column."""

    version: ClassVar[str]
    """Another one has everything measured again, by this measure alone."""

    meaning: ClassVar[str]
    """Description of the column for users, with its unit."""

    library: ClassVar[str] = ""
    """Module that it needs, beside those of the base install."""

    def configured(self) -> Self:
        """Return this measure with the settings that it depends on; most depend on none.

        Raises:
            ValueError: in one line, it cannot be taken with these settings.
        """
        return self

    @abstractmethod
    def measure(self, content: Content, /) -> Any:
        """Return the value for one image or sample; None where there is none."""


M = TypeVar("M", bound=Measure[Any])


class MeasureFailed(MmAssetsError, ValueError):
    """A measure raised an error; the message names it and its module."""


@contextmanager
def measuring(measure: Measure[Any], *passed: type[Exception]) -> Iterator[None]:
    """Name the measure in what its own fault raises, and nothing in errors of the kinds that are ``passed``.

    Raises:
        MeasureFailed: by the measure's own fault.
    """
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise MeasureFailed(
            f"measure {measure.name!r} of {type(measure).__module__}: {error_line(error)}"
        ) from error


def column_of(measure: Measure[Any]) -> pa.Field:
    """Return the column of a measure, with its version and fields in the metadata."""
    counted = {field.name for field in dataclasses.fields(measure) if field.compare}
    fields = {name: value for name, value in dataclasses.asdict(measure).items() if name in counted}
    return _column(measure.name, measure.type, measure.version, fields)


def _column(name: str, kind: pa.DataType, version: str, fields: Mapping[str, Any]) -> pa.Field:
    identity = json.dumps({"version": version, **fields}, sort_keys=True, default=str).encode()
    return pa.field(name, kind, metadata={_MEASURE: identity})


def column_values(values: Sequence[Any], column: pa.Field) -> pa.Array:
    """Return the values of a column.

    Raises:
        ValueError: in one line that names the measure, for values of another type.
    """
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"measure {column.name!r}: {error_line(error)}") from error


def missing_measures(columns: Iterable[pa.Field], measures: Iterable[M]) -> list[M]:
    """Return the measures that none of some columns has the values of, in their version."""
    by_name = {column.name: column for column in columns}

    def is_filled(measure: M) -> bool:
        asked, stored = column_of(measure), by_name.get(measure.name)
        if stored is None or stored.type != asked.type:
            return False
        return bool((stored.metadata or {}).get(_MEASURE) == asked.metadata[_MEASURE])

    return [measure for measure in measures if not is_filled(measure)]


def is_measured(column: pa.Field) -> bool:
    """Return whether a column is that of a measure."""
    return _MEASURE in (column.metadata or {})


def with_columns(base: pa.Schema, columns: Iterable[pa.Field]) -> pa.Schema:
    """Return a schema of scores: the columns that all have, and those of measures, by name.

    The order does not depend on what was asked for first.
    """
    return pa.schema([*base, *sorted(columns, key=lambda column: column.name)])


def digest_of_scores(table: pa.Table) -> str:
    """Return the digest of all rows, which is the data version of the scores."""
    digest = ContentDigest()
    digest.observe(table)
    return digest.hexdigest()


def read_scores(uri: str, base: pa.Schema, digest: str | None = None) -> pa.Table:
    """Read stored scores: the columns that all have, and those of measures.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFile: for a damaged file, another table, and rows that have another ``digest``.
    """
    table = read_small_table(uri)
    if not table.schema.equals(with_columns(base, filter(is_measured, table.schema))):
        raise UnreadableFile(f"{uri}: damaged: its columns are not those of scores")
    if digest is not None and digest != digest_of_scores(table):
        raise UnreadableFile(f"{uri}: damaged: its rows are not those that were written")
    return table


DECODE_ERROR: Final = "decode_error"
"""Value of an image that a measure could not decode: the message. Filters by the header alone ignore it."""


class UnknownScore(MmAssetsError, ValueError):
    """A filter asks for a score that there is not; the message names those that there are."""


class Score:
    """The measurements of one image, text or sample; ``values`` has those of measures, by name."""

    __slots__ = ()

    rows: ClassVar[str]
    """What it is of: the word for one."""

    always: ClassVar[Mapping[str, pa.DataType]]
    """Scores that there are without a measure, with their types."""

    values: Mapping[str, Any]

    @classmethod
    def types(cls, measures: Iterable[Measure[Any]]) -> dict[str, pa.DataType]:
        """Return the types of all scores by name, with those of all ``measures`` of their kind."""
        return {**cls.always, **{measure.name: measure.type for measure in measures}}

    @classmethod
    def needed(cls, name: str) -> tuple[str, ...]:
        """Return the names of the measures that a score is made of."""
        return () if name in cls.always else (name,)

    def value(self, name: str) -> Any:
        """Return a score by name: one of `always`, or that of a measure; None where it has none.

        Raises:
            UnknownScore: there is none of this name.
        """
        if not all(measure in self.values for measure in self.needed(name)):
            known = ", ".join((*self.always, *(known for known in self.values if known != DECODE_ERROR)))
            hint = "that of a measure is there if the filter's `scores` name it"
            raise UnknownScore(f"there is no score {name!r}, only {known}; {hint}")
        return self.get(name)

    def get(self, name: str) -> Any:
        """Return a score by name; None also where there is none of this name."""
        return getattr(self, name) if name in self.always else self.values.get(name)


T = TypeVar("T")

SMALL_SIDE: Final = 512
"""Pixels of the longer side of `ImageContent.small_luma`, at most."""


MOST_MEMORY: Final = 244 << 20
"""Bytes that an image may take while it is decoded, its file among them: a worker has 256 MiB."""


class ImageContent:
    """The bytes of an image, its header, and what is made of them when a measure first asks for it.

    Args:
        data: the image file.
        info: its header.
        max_pixels: an image of more pixels is not decoded.
        texts: the texts of its sample, in order.
    """

    def __init__(self, data: memoryview, info: ImageInfo, max_pixels: int, texts: Sequence[str] = ()) -> None:
        self.data = data
        self.info = info
        self.texts = texts
        self._max_pixels = max_pixels
        self._shared: dict[str, Any] = {}

    @property
    def pixels(self) -> Pixels:
        """RGB of each pixel, as stored (EXIF orientation not applied): height x width x 3.

        Raises:
            ImageError: the image cannot be decoded.
            TooMuchMemory: (an `ImageError`) it would take more than `MOST_MEMORY`.
        """
        if isinstance(self._decoded, ImageError):
            raise self._decoded
        return self._decoded

    @cached_property
    def _decoded(self) -> Pixels | ImageError:
        """The pixels, or why there are none: measures that ask again do not decode again."""
        try:
            return rgb_pixels(self.data, self.info.format, self._max_pixels, MOST_MEMORY)
        except ImageError as error:
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from None  # the machine's fault: it must not be stored as the image's
            return error

    @cached_property
    def luma(self) -> Pixels:
        """Brightness of each pixel (ITU-R BT.601): height x width.

        Raises:
            ImageError: the image cannot be decoded.
        """
        import cv2

        return np.asarray(cv2.cvtColor(self.pixels, cv2.COLOR_RGB2GRAY), np.uint8)

    @cached_property
    def small_luma(self) -> Pixels:
        """The luma scaled down so that its longer side has `SMALL_SIDE` pixels; a smaller one as it is.

        Raises:
            ImageError: the image cannot be decoded.
        """
        return scaled_down(self.luma, SMALL_SIDE)

    @cached_property
    def perceptual(self) -> tuple[str, int]:
        """The PDQ hash of the picture as displayed, 64 hexadecimal digits, and its quality, 0 to 100.

        It is turned as its EXIF orientation says before it is hashed: a copy that has been turned for good
        has the same hash.

        Raises:
            ImageError: the image cannot be decoded.
        """
        import pdqhash

        luma = turned(self.small_luma, self.info.orientation)
        bits, quality = pdqhash.compute(np.repeat(luma[..., None], 3, axis=2))
        return np.packbits(bits.astype(np.uint8)).tobytes().hex(), int(quality)

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """Return what several measures of this image look at, made for the first of them."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found


LEAST_QUALITY: Final = 20
"""Quality of a PDQ hash from which it is compared: of pictures with hardly any detail, hashes are alike by
chance, and only equal files count as copies.

The authors of PDQ say 50. Of parts of photographs and drawn figures, 17 to 40 % have less, and no more of
them were within 31 bits of others: of 0.9 million pairs with a quality of 20 to 50 none, of 2.7 million above
one; but of 0.8 million below 10 four, and of 4.1 million with a quality of 0 541.
"""


def scaled_down(luma: Pixels, side: int) -> Pixels:
    """Return a picture with at most ``side`` pixels in its longer side; each is the mean of an area."""
    import cv2

    height, width = luma.shape
    longer = max(height, width)
    if longer <= side:
        return luma
    size = max(1, round(width * side / longer)), max(1, round(height * side / longer))
    return np.asarray(cv2.resize(luma, size, interpolation=cv2.INTER_AREA), np.uint8)


class MeasureFileError(MmAssetsError, ValueError):
    """A file that a measure needs cannot be used; the message names it."""


def file_content(file: str, most: int, digest: str | None = None) -> bytes:
    """Return the content of a file that a measure needs.

    Args:
        file: path or URL.
        most: bytes that it may have.
        digest: that of the content where the run was planned (xxh3-128).

    Raises:
        MeasureFileError: it cannot be read, has more bytes, or another content.
    """
    try:
        with open_binary(file) as opened:
            data = opened.read(most + 1)
    except OSError as error:
        raise MeasureFileError(error_line(error)) from error
    if len(data) > most:
        raise MeasureFileError(f"{file}: it has more than {most >> 20} MiB")
    if digest is not None and xxhash.xxh3_128_hexdigest(data) != digest:
        raise MeasureFileError(f"{file}: another content here than where the run was planned")
    return data


@dataclass
class SampleContent:
    """The texts of one sample, in the order of their positions, and its number of images.

    Images with an error do not count.
    """

    texts: list[str]
    images: int
    once: dict[str, Any] = field(default_factory=dict)
    """What one measure has found out and another can use, by name."""
    positions: list[int] = field(default_factory=list)
    """Those of the texts."""

    @cached_property
    def text(self) -> str:
        """All texts, with a line break between them."""
        return "\n".join(self.texts)

    def beginning(self, characters: int) -> str:
        """Return the first characters of `text`; texts behind them are not looked at."""
        parts: list[str] = []
        missing = characters
        for text in self.texts:
            if missing < 0:
                break
            parts.append(text[:missing])
            missing -= len(text) + 1
        return "\n".join(parts)[:characters]

    @cached_property
    def words(self) -> int:
        """Words of all texts, separated by white space."""
        return sum(len(text.split()) for text in self.texts)


@dataclass(frozen=True)
class SampleMeasure(Measure[SampleContent]):
    """A measurement of one sample: `measure` gets its texts and its number of images."""


@dataclass(frozen=True)
class ImageMeasure(Measure[ImageContent]):
    """A measurement of one image. Measures that look at pixels share one decoded picture (`ImageContent`).

    `measure` may raise `ImageError` where the image cannot be decoded.
    """

    decodes: ClassVar[bool] = True
    """Whether it looks at pixels."""

    needs_texts: ClassVar[bool] = False
    """Whether it looks at the texts of the sample."""


@dataclass(frozen=True)
class BatchedMeasure(ImageMeasure):
    """A measure that takes many images at once, such as one by a neural network.

    `measure` returns what is kept of each image until there are enough: a few hundred kilobytes at most.
    """

    batch_size: ClassVar[int] = 32

    @abstractmethod
    def measure_all(self, kept: Sequence[Any]) -> Sequence[Any]:
        """Return the values for what `measure` returned, at most ``batch_size`` images at once."""


@dataclass(frozen=True)
class DerivedMeasure(ImageMeasure):
    """A measure made of the values of another one: where these are stored, no image is read."""

    decodes = False

    of: ClassVar[str]
    """The other one."""

    def measure(self, image: ImageContent) -> Any:
        raise NotImplementedError

    @abstractmethod
    def measure_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values for those of the other measure; None where there is none."""


DECODE_ERRORS: Final = _column(DECODE_ERROR, pa.string(), "1", {})
"""Column of these messages, beside those of measures."""

MOST_DECODED_PIXELS: Final = 1 << 25
"""An image of more pixels is not decoded for a measure; how many there may be depends on the format, too."""


class ImageMeasurer:
    """Takes measures of one image after the other.

    Values of measures that take many images at once are there after `finish` at the latest. Those of
    `DerivedMeasure`s are not taken here.
    """

    def __init__(self, measures: Iterable[ImageMeasure]) -> None:
        self._measures = measures = not_derived(measures)
        self._without_pixels = {measure.name for measure in measures if not measure.decodes}
        self._waiting: dict[str, list[tuple[dict[str, Any], Any]]] = {
            measure.name: [] for measure in measures if isinstance(measure, BatchedMeasure)
        }

    def measure(self, image: ImageContent) -> dict[str, Any]:
        """Return the values of one image by measure; those that come later are added to the same dict.

        Values of measures that look at pixels are None for an image that is too large to be decoded, and for
        one that cannot be decoded, which has `DECODE_ERROR` besides.

        Raises:
            MeasureFailed: by the measure's own fault.
        """
        is_large = image.info.width * image.info.height > MOST_DECODED_PIXELS
        taken = [measure for measure in self._measures if not (is_large and measure.decodes)]
        values: dict[str, Any] = dict.fromkeys(measure.name for measure in self._measures)
        kept: list[tuple[BatchedMeasure, Any]] = []
        try:
            for measure in sorted(taken, key=lambda measure: measure.decodes):
                # Faults of the image, of the set-up or of the machine are none of the measure's.
                with measuring(measure, ImageError, ImportError, MemoryError, MmAssetsError):
                    value = measure.measure(image)
                if isinstance(measure, BatchedMeasure):
                    kept.append((measure, value))
                else:
                    values[measure.name] = value
        except ImageError as error:
            found = {name: values[name] if name in self._without_pixels else None for name in values}
            if not isinstance(error, TooMuchMemory):
                found[DECODE_ERROR] = unreadable_image(error).message
            return found
        for batched, value in kept:
            waiting = self._waiting[batched.name]
            waiting.append((values, value))
            if len(waiting) >= batched.batch_size:
                self._take(batched)
        return values

    def finish(self) -> None:
        """Take the measures of the images that still wait."""
        for measure in self._measures:
            if isinstance(measure, BatchedMeasure):
                self._take(measure)

    def _take(self, measure: BatchedMeasure) -> None:
        waiting = self._waiting[measure.name]
        if waiting:
            with measuring(measure, ImportError, MemoryError, MmAssetsError):
                taken = measure.measure_all([kept for _, kept in waiting])
            for (values, _), value in zip(waiting, taken, strict=True):
                values[measure.name] = value
            waiting.clear()


def decoding(measures: Iterable[ImageMeasure]) -> bool:
    """Return whether one of some measures looks at pixels."""
    return any(measure.decodes for measure in measures)


def not_derived(measures: Iterable[ImageMeasure]) -> list[ImageMeasure]:
    """Return the measures that look at images, not only at the values of others."""
    return [measure for measure in measures if not isinstance(measure, DerivedMeasure)]


def text_digest(texts: Sequence[str]) -> str | None:
    """Return the xxh3-128 of texts, each behind its length in bytes, as 32 hex digits; None for no texts."""
    if not texts:
        return None
    digest = xxhash.xxh3_128()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
