"""Sample scores: measurements of whole samples, mostly of their texts, taken once and stored.

A changed threshold is applied to them without reading a text again. Each column of a measure says, in the
metadata of its field, which measure filled it, so that a new measure measures what is missing and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import xxhash

from mm_assets.filters.measured_columns import (
    column_of,
    column_values,
    is_measured,
    missing_measures,
    read_scores,
    with_columns,
)
from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure
from mm_assets.formats.error_lines import error_line
from mm_assets.interleaved.errors import DataError

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

COLUMNS = ("sample_id", "modality", "text_content", "materialize_error")
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

TEXT_SCORES = tuple(TEXT_TYPES)


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The measurements of one sample; ``values`` are those of measures, by name."""

    images: int = 0
    texts: int = 0
    words: int = 0
    text_digest: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images_per_word(self) -> float:
        """Images divided by words; a sample without words counts as one with one."""
        return self.images / max(self.words, 1)

    def value(self, name: str) -> Any:
        """Return a score by name: one of `TEXT_SCORES`, or that of a measure; None where it has none."""
        return getattr(self, name) if name in TEXT_SCORES else self.values.get(name)


def sample_scores_schema(
    measures: Iterable[SampleMeasure] = (), known: SampleScores | None = None
) -> pa.Schema:
    """Return the schema of scores with these measures, and with those of earlier scores."""
    columns = {column.name: column for column in (known.measured if known is not None else ())}
    columns |= {measure.name: column_of(measure) for measure in measures}
    return with_columns(SAMPLE_SCORES_SCHEMA, columns.values())


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
    schema = sample_scores_schema(measures, known)
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
            taken[sample_id][name]
            if sample_id in taken
            else _measured(by_name.get(name), name, sample_id, content)
            for sample_id, content in samples.items()
        ]
    return pa.Table.from_arrays(
        [column_values(columns[column.name], column) for column in schema], schema=schema
    )


def _measured(measure: SampleMeasure | None, name: str, sample_id: str, content: SampleContent) -> Any:
    if measure is None:
        raise ValueError(f"sample {sample_id!r}: the known {name} is that of another content")
    try:
        return measure.measure(content)
    except ImportError:
        raise  # a library is missing: no fault of the sample
    except Exception as error:
        named = f"measure {name!r} of {type(measure).__module__}"
        raise ValueError(f"sample {sample_id!r}: {named}: {error_line(error)}") from error


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


def _samples(table: pa.Table) -> dict[str, SampleContent]:
    """Return what measures see of each sample, by id, in order of first appearance."""
    ids = table.column("sample_id").to_pylist()
    kinds = table.column("modality").to_pylist()
    errors = table.column("materialize_error").is_valid().to_pylist()
    texts: dict[str, list[str]] = {sample_id: [] for sample_id in ids}
    images = dict.fromkeys(texts, 0)
    for sample_id, kind, text, has_error in zip(ids, kinds, _texts(table, ids), errors, strict=True):
        if has_error:
            continue
        if kind == "image":
            images[sample_id] += 1
        elif kind == "text" and text is not None:
            texts[sample_id].append(text)
    return {sample_id: SampleContent(texts[sample_id], images[sample_id]) for sample_id in texts}


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


class SampleScores:
    """The scores of one shard, by sample id.

    Attributes:
        measured: the columns of measures.
    """

    def __init__(self, table: pa.Table) -> None:
        self.measured = [column for column in table.schema if is_measured(column)]
        names = [column.name for column in self.measured]
        self._scores = {
            row["sample_id"]: SampleScore(
                row["images"],
                row["texts"],
                row["words"],
                row["text_digest"],
                {name: row[name] for name in names},
            )
            for row in table.to_pylist()
        }

    @classmethod
    def read(cls, uri: str, digest: str | None = None) -> SampleScores:
        """Read the scores file of a shard; raises as `read_scores`."""
        return cls(read_scores(uri, SAMPLE_SCORES_SCHEMA, digest))

    def missing(self, measures: Sequence[SampleMeasure]) -> list[SampleMeasure]:
        """Return the measures that these scores lack, or have in another version."""
        return missing_measures(self.measured, measures)

    def __iter__(self) -> Iterator[tuple[str, SampleScore]]:
        """Yield id and score of each sample in the order of the rows."""
        return iter(self._scores.items())

    def get(self, sample_id: str) -> SampleScore | None:
        """Return the score of one sample; None for one that was never scored."""
        return self._scores.get(sample_id)

    def of(self, sample_id: str) -> SampleScore:
        """Return the score of one sample.

        Raises:
            ValueError: for one that was never scored: table and scores do not belong together.
        """
        score = self._scores.get(sample_id)
        if score is None:
            raise ValueError(f"sample {sample_id!r}: no sample score; materialize sample_scores again")
        return score
