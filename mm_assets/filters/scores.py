"""Image scores and sample scores: measurements of a shard, taken once and stored.

A changed threshold is applied to them without reading an image or a text again. Each column of a measure
says, in the metadata of its field, which measure filled it, so that a new measure measures what is missing
and no more.

* Images: what the header says (`score_rows`), and the values of measures, a row per image (`ImageScores`).
* Samples: measurements of whole samples, mostly of their texts, a row per sample (`SampleScores`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.measure import (
    DECODE_ERROR,
    DECODE_ERRORS,
    DerivedMeasure,
    ImageContent,
    ImageMeasure,
    ImageMeasurer,
    Measure,
    MeasureFailed,
    SampleContent,
    SampleMeasure,
    Score,
    column_of,
    column_values,
    decoding,
    is_measured,
    measuring,
    missing_measures,
    not_derived,
    read_scores,
    text_digest,
    with_columns,
)
from mm_assets.filters.texts import OF_TEXTS, TextMeasure, TextScore, needed, of_texts, text_list, text_values
from mm_assets.formats.images import ImageInfo, probe
from mm_assets.formats.images.decode import MAX_PIXELS as MAX_PIXELS
from mm_assets.model.errors import DataError, ImageError, MmAssetsError, unreadable_image
from mm_assets.model.nested_types import binary_views

HEADER_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        **dict.fromkeys(("width", "height", "longer_side"), pa.int32()),
        "aspect_ratio": pa.float64(),
        "format": pa.string(),
        "orientation": pa.int8(),
        "byte_size": pa.int64(),
    }
)
"""Scores that every image has, from its header, with their types."""

_LARGE: Final = 32 << 20
"""Bytes of an image before whose measuring Arrow gives back what it keeps: reading it has left as much."""

_NONE: Mapping[str, Any] = MappingProxyType({})


Place = TypeVar("Place")
S = TypeVar("S", bound=Score)
M = TypeVar("M", bound=Measure[Any])


class StoredScores(ABC, Generic[Place, S, M]):
    """The scores of one shard, each by the place of what was measured.

    Attributes:
        measured: the columns of measures.
    """

    asset: ClassVar[str]
    """Asset that has them."""

    columns: ClassVar[pa.Schema]
    """Columns that each table of such scores has. One follows for each measure."""

    beside_measures: ClassVar[tuple[pa.Field, ...]] = ()
    """Further columns, where there is any measure."""

    def __init__(self, table: pa.Table) -> None:
        self.measured = [column for column in table.schema if is_measured(column)]
        values = {column.name: self._values(table.column(column.name)) for column in self.measured}
        rows = enumerate(table.select(self.columns.names).to_pylist())
        self._scores = dict(
            self._scored(row, {name: column[number] for name, column in values.items()})
            for number, row in rows
        )

    @staticmethod
    def _values(column: pa.ChunkedArray) -> Sequence[Any]:
        """Return the values of a measure."""
        return list(column.to_pylist())

    @abstractmethod
    def _scored(self, row: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Place, S]:
        """Return place and score of a row.

        Args:
            row: what is known without a measure.
        """

    def _known(self, place: Place, words: str) -> S:
        """Return the score of a place, whose name for users is ``words``.

        Raises:
            ValueError: for one that was never scored: table and scores do not belong together.
        """
        score = self._scores.get(place)
        if score is None:
            one = self.asset.replace("_", " ").removesuffix("s")
            raise ValueError(f"{words}: no {one}; materialize {self.asset} again")
        return score

    @classmethod
    def read(cls, uri: str, digest: str | None = None) -> Self:
        """Read the scores file of a shard; raises as `read_scores`."""
        return cls(read_scores(uri, cls.columns, digest))

    @classmethod
    def schema(cls, measures: Iterable[M] = (), known: Self | None = None) -> pa.Schema:
        """Return the schema of scores with these measures, and with those of earlier scores."""
        columns = {column.name: column for column in (known.measured if known is not None else ())}
        columns |= {measure.name: column_of(measure) for measure in measures}
        if columns:
            columns |= {column.name: column for column in cls.beside_measures}
        return with_columns(cls.columns, columns.values())

    def missing(self, measures: Sequence[M]) -> list[M]:
        """Return the measures that these scores lack, or have in another version."""
        return missing_measures(self.measured, measures)

    def __iter__(self) -> Iterator[tuple[Place, S]]:
        """Yield place and score of each row, in the order of the rows."""
        return iter(self._scores.items())


def _table(schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    return pa.Table.from_arrays(
        [column_values(columns[column.name], column) for column in schema], schema=schema
    )


@dataclass(frozen=True, slots=True)
class ImageScore(Score):
    """The measurements of one image, or the error.

    ``width`` and ``height`` are in pixels as displayed (EXIF orientation applied), ``byte_size`` in bytes.
    """

    rows = "image"
    always = HEADER_TYPES

    width: int = 0
    height: int = 0
    format: str | None = None
    orientation: int = 1
    byte_size: int = 0
    error: str | None = None
    values: Mapping[str, Any] = field(default_factory=lambda: _NONE)

    @property
    def aspect_ratio(self) -> float:
        return self.width / self.height

    @property
    def longer_side(self) -> int:
        return max(self.width, self.height)

    def error_for(self, measures: Iterable[ImageMeasure]) -> str | None:
        """Return why these measures cannot judge the image: it must be decoded for them, and cannot."""
        return self.error or (self.values.get(DECODE_ERROR) if decoding(measures) else None)


def image_views(table: pa.Table, rows: Sequence[int]) -> list[memoryview | None]:
    """Return the bytes of some rows of an interleaved table, not copied; None for null."""
    views = [view for chunk in table.column("binary_content").chunks for view in binary_views(chunk)]
    return [views[row] for row in rows]


def score_rows(
    table: pa.Table,
    rows: Sequence[int],
    headers: Mapping[int, ImageInfo] | None = None,
    measures: Sequence[ImageMeasure] = (),
) -> list[ImageScore]:
    """Return the scores of some rows of an interleaved table.

    An image that a measure cannot decode has `DECODE_ERROR` in the place of values.

    Args:
        rows: row numbers.
        headers: headers that have been read before, by row number.
        measures: what is measured beside what the header says.
    """
    known = headers or {}
    measurer = ImageMeasurer(measures) if measures else None
    texts = _texts_beside(table, rows) if any(measure.needs_texts for measure in measures) else {}
    scores = []
    for row, view in zip(rows, image_views(table, rows), strict=True):
        if measurer is not None and view is not None and len(view) >= _LARGE:
            pa.default_memory_pool().release_unused()
        try:
            scores.append(_scored(view, known.get(row), measurer, texts.get(row, ())))
        except (MeasureFailed, MemoryError) as error:
            sample_id, position = (table.column(name)[row].as_py() for name in ("sample_id", "position"))
            reason = str(error) or "not enough memory to decode it"
            raise ValueError(f"sample {sample_id!r}, position {position}: {reason}") from error
    if measurer is not None:
        measurer.finish()
    return _with_derived(scores, measures)


def _with_derived(scores: list[ImageScore], measures: Iterable[ImageMeasure]) -> list[ImageScore]:
    """Return scores with the values of measures that are made of other values."""
    for measure in measures:
        if isinstance(measure, DerivedMeasure):
            with measuring(measure, MmAssetsError):
                values = measure.measure_all([score.values.get(measure.of) for score in scores])
            scores = [
                replace(score, values={**score.values, measure.name: value})
                for score, value in zip(scores, values, strict=True)
            ]
    return scores


def _scored(
    data: memoryview | None,
    info: ImageInfo | None,
    measurer: ImageMeasurer | None,
    texts: Sequence[str],
) -> ImageScore:
    if data is None:
        return ImageScore(error="no image bytes")
    try:
        info = info or probe(data)
    except ImageError as error:
        return ImageScore(byte_size=len(data), error=unreadable_image(error).message)
    values = _NONE
    if measurer is not None:
        values = measurer.measure(ImageContent(data, info, MAX_PIXELS, texts))
    return ImageScore(
        info.display_width, info.display_height, info.format, info.orientation, len(data), None, values
    )


def _texts_beside(table: pa.Table, rows: Sequence[int]) -> dict[int, Sequence[str]]:
    """Return the texts of the samples of some rows, by row number."""
    ids = table.column("sample_id").to_pylist()
    is_text = pc.and_(pc.equal(table.column("modality"), "text"), pc.is_valid(table.column("text_content")))
    texts: dict[str, list[str]] = {}
    found = pc.indices_nonzero(is_text)
    for row, text in zip(
        found.to_pylist(), table.column("text_content").take(found).to_pylist(), strict=True
    ):
        texts.setdefault(ids[row], []).append(text)
    return {row: texts.get(ids[row], ()) for row in rows}


SAMPLE_SCORES_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("images", pa.int32(), nullable=False),
        pa.field("texts", pa.int32(), nullable=False),
        pa.field("words", pa.int64(), nullable=False),
        pa.field("text_digest", pa.string()),
    ]
)
"""Columns that each table of sample scores has: what is known without a measure.

``images`` and ``texts`` are rows without an error, ``texts`` those with content. ``words`` are separated by
white space. ``text_digest`` is that of all texts in their order; null where there is none.
"""

COLUMNS = ("sample_id", "position", "modality", "text_content", "materialize_error")
"""Columns of interleaved rows that sample scores are made from."""

TEXT_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "images": pa.int32(),
        "texts": pa.int32(),
        "words": pa.int64(),
        "images_per_word": pa.float64(),
        "text_digest": pa.string(),
    }
)
"""Scores that every sample has without a measure, with their types."""


@dataclass(frozen=True, slots=True)
class SampleScore(Score):
    """The measurements of one sample."""

    rows = "sample"
    always = TEXT_TYPES

    images: int = 0
    texts: int = 0
    words: int = 0
    text_digest: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images_per_word(self) -> float:
        """Images divided by words; a sample without words counts as one with one."""
        return self.images / max(self.words, 1)

    @classmethod
    def types(cls, measures: Iterable[Measure[Any]]) -> dict[str, pa.DataType]:
        own = {measure.name: measure.type for measure in measures if not isinstance(measure, TextMeasure)}
        return {**cls.always, **OF_TEXTS, **own}

    @classmethod
    def needed(cls, name: str) -> tuple[str, ...]:
        return () if name in cls.always else needed(name)

    def get(self, name: str) -> Any:
        if name in self.always:
            return getattr(self, name)
        return of_texts(name, self.values) if name in OF_TEXTS else self.values.get(name)

    def text(self, index: int) -> TextScore:
        """Return the score of one of its texts."""
        return TextScore(self.values, index)

    def left(self, images: int, texts: Sequence[int] | None) -> SampleScore:
        """Return the score of what filters of items have left of the sample.

        Args:
            images: how many there are.
            texts: which of its texts are left; None for all.
        """
        if texts is None or len(texts) == self.texts:
            return self if images == self.images else replace(self, images=images)
        rows = np.array(texts, np.int64)
        values = {
            name: value[rows] if isinstance(value, np.ndarray) else value
            for name, value in self.values.items()
        }
        words = int(values["text_words"].sum())
        return replace(self, images=images, texts=len(texts), words=words, values=values)


def score_samples(
    table: pa.Table, measures: Sequence[SampleMeasure] = (), known: SampleScores | None = None
) -> pa.Table:
    """Return one row per sample of an interleaved table, in order of first appearance.

    Args:
        table: whole samples; the columns `COLUMNS` count.
        measures: what is measured beyond the columns of `SAMPLE_SCORES_SCHEMA`.
        known: earlier scores. Their measures are taken over for samples that still have the same texts and
            number of images; only what is missing is measured.

    Raises:
        DataError: a text is not UTF-8.
        ValueError: a measure fails, or one that is only known does not fit a sample; the message names both.
    """
    schema = SampleScores.schema(measures, known)
    samples = _samples(table)
    contents = list(samples.values())
    digests = [text_digest(content.texts) for content in contents]
    earlier: dict[str, Mapping[str, Any]] = {}
    if known is not None:
        for (sample_id, content), digest in zip(samples.items(), digests, strict=True):
            score = known.get(sample_id)
            if score is not None and (score.text_digest, score.images) == (digest, content.images):
                earlier[sample_id] = score.values
    by_name = {measure.name: measure for measure in measures}
    missing = {measure.name for measure in (measures if known is None else known.missing(measures))}
    columns: dict[str, list[Any]] = {
        "sample_id": list(samples),
        "images": [content.images for content in contents],
        "texts": [len(content.texts) for content in contents],
        "words": [content.words for content in contents],
        "text_digest": digests,
    }
    for name in schema.names[len(SAMPLE_SCORES_SCHEMA) :]:
        taken = {} if name in missing else earlier
        columns[name] = [
            text_list(taken[sample_id][name])
            if sample_id in taken
            else _measured(by_name.get(name), name, sample_id, content)
            for sample_id, content in samples.items()
        ]
    return _table(schema, columns)


def _measured(measure: SampleMeasure | None, name: str, sample_id: str, content: SampleContent) -> Any:
    if measure is None:
        raise ValueError(f"sample {sample_id!r}: the known {name} is that of another content")
    try:
        with measuring(measure, ImportError):  # a library is missing: no fault of the sample
            return measure.measure(content)
    except MeasureFailed as error:
        raise ValueError(f"sample {sample_id!r}: {error}") from error


def _samples(table: pa.Table) -> dict[str, SampleContent]:
    """Return what measures see of each sample, by id, in order of first appearance."""
    ids = table.column("sample_id").to_pylist()
    kinds = table.column("modality").to_pylist()
    errors = table.column("materialize_error").is_valid().to_pylist()
    found: dict[str, SampleContent] = {sample_id: SampleContent([], 0) for sample_id in ids}
    rows = zip(ids, kinds, _texts(table, ids), errors, table.column("position").to_pylist(), strict=True)
    for sample_id, kind, text, has_error, position in rows:
        if has_error:
            continue
        if kind == "image":
            found[sample_id].images += 1
        elif kind == "text" and text is not None:
            found[sample_id].texts.append(text)
            found[sample_id].positions.append(position)
    return found


def _texts(table: pa.Table, ids: Sequence[str]) -> list[str | None]:
    column = table.column("text_content")
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for sample_id, value in zip(ids, column, strict=True):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"sample {sample_id!r}: text_content: text that is not UTF-8: {error}"
                ) from error
        raise


class SampleScores(StoredScores[str, SampleScore, SampleMeasure]):
    """The scores of the samples of one shard, by sample id."""

    asset = "sample_scores"
    columns = SAMPLE_SCORES_SCHEMA

    @staticmethod
    def _values(column: pa.ChunkedArray) -> Sequence[Any]:
        """Return the values of a measure; those of texts as arrays."""
        return text_values(column) if pa.types.is_list(column.type) else list(column.to_pylist())

    def _scored(self, row: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, SampleScore]:
        score = SampleScore(row["images"], row["texts"], row["words"], row["text_digest"], values)
        return row["sample_id"], score

    def get(self, sample_id: str) -> SampleScore | None:
        """Return the score of one sample; None for one that was never scored."""
        return self._scores.get(sample_id)

    def of(self, sample_id: str) -> SampleScore:
        """Return the score of one sample.

        Raises:
            ValueError: for one that was never scored: table and scores do not belong together.
        """
        return self._known(sample_id, f"sample {sample_id!r}")


SCORES_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("format", pa.string()),
        pa.field("orientation", pa.int8()),
        pa.field("byte_size", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""Columns that all image scores have. One follows for each measure."""


def score_table(
    table: pa.Table, measures: Sequence[ImageMeasure] = (), known: ImageScores | None = None
) -> pa.Table:
    """Return one row per image row of an interleaved table: `SCORES_SCHEMA`, and a column for each measure.

    Images that carry an error already have that error and no measurement.

    Args:
        measures: what is measured beside what the header says.
        known: scores of the same images. Their measures are taken over, all of them; only what is missing is
            measured. If nothing is, or only what is made of other values, no column ``binary_content`` is
            needed.
    """
    modality = table.column("modality").to_pylist()
    rows = [row for row, kind in enumerate(modality) if kind == "image"]
    places = table.select(["sample_id", "position", "materialize_error"]).take(pa.array(rows, pa.int64()))
    ids, positions, faults = (column.to_pylist() for column in places.columns)
    missing = measures if known is None else known.missing(measures)
    if known is None:
        scores = score_rows(table, rows, measures=missing)
    else:
        earlier = known.of(table, rows)
        scores = earlier
        if taken := not_derived(missing):
            found = score_rows(table, rows, measures=taken)
            scores = [_merged(old, new) for old, new in zip(earlier, found, strict=True)]
        scores = _with_derived(scores, missing)
    scores = [
        ImageScore(error=message) if message is not None else score
        for message, score in zip(faults, scores, strict=True)
    ]
    schema = ImageScores.schema(measures, known)
    measured = schema.names[len(SCORES_SCHEMA) :]
    values: dict[str, list[Any]] = {
        "sample_id": ids,
        "position": positions,
        "width": [s.width or None for s in scores],
        "height": [s.height or None for s in scores],
        "format": [s.format for s in scores],
        "orientation": [None if s.error else s.orientation for s in scores],
        "byte_size": [s.byte_size for s in scores],
        "error": [s.error for s in scores],
        **{name: [s.values.get(name) for s in scores] for name in measured},
    }
    return _table(schema, values)


def _merged(old: ImageScore, new: ImageScore) -> ImageScore:
    """Return both scores of one image in one."""
    if old.error is not None or new.error is not None:
        return old if old.error is not None else new
    values = {**old.values, **new.values}
    values[DECODE_ERROR] = old.values.get(DECODE_ERROR) or new.values.get(DECODE_ERROR)
    return replace(new, values=values)


class ImageScores(StoredScores[tuple[str, int], ImageScore, ImageMeasure]):
    """The scores of the images of one shard, by sample id and position."""

    asset = "image_scores"
    columns = SCORES_SCHEMA
    beside_measures = (DECODE_ERRORS,)

    @staticmethod
    def _values(column: pa.ChunkedArray) -> list[Any]:
        """Return the values of a measure; lists stay Arrow's: Python's take ten times the memory."""
        if pa.types.is_nested(column.type):
            return [value if value.is_valid else None for value in column]
        return list(column.to_pylist())

    def _scored(
        self, row: Mapping[str, Any], values: Mapping[str, Any]
    ) -> tuple[tuple[str, int], ImageScore]:
        score = ImageScore(
            row["width"] or 0,
            row["height"] or 0,
            row["format"],
            row["orientation"] or 1,
            row["byte_size"],
            row["error"],
            values,
        )
        return (row["sample_id"], row["position"]), score

    def get(self, sample_id: str, position: int) -> ImageScore | None:
        """Return the score of one image; None for one that was never scored."""
        return self._scores.get((sample_id, position))

    def of(self, table: pa.Table, rows: Sequence[int]) -> list[ImageScore]:
        """Return the scores of some rows of a table.

        Raises:
            ValueError: for an image that was never scored: table and scores do not belong together.
        """
        ids = table.column("sample_id").take(pa.array(rows, pa.int64())).to_pylist()
        positions = table.column("position").take(pa.array(rows, pa.int64())).to_pylist()
        places = zip(ids, positions, strict=True)
        return [self._known(place, f"sample {place[0]!r}, position {place[1]}") for place in places]
