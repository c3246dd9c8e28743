"""Sample scores: measurements of whole samples, mostly of their texts, taken once and stored.

A changed threshold is applied to them without reading a text again. Each column of a measure says, in the
metadata of its field, which measure filled it, so that a new measure measures what is missing and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mm_assets.filters.image_scores import digest_of_scores
from mm_assets.filters.sample_measures.measured_column import (
    known_values,
    measure_field,
    measured_column,
)
from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure
from mm_assets.formats.parquet_file import UNREADABLE, UnreadableFile
from mm_assets.formats.storage import open_binary
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


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The measurements of one sample; ``values`` are those of measures, by name."""

    images: int = 0
    texts: int = 0
    words: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images_per_word(self) -> float:
        """Images divided by words; a sample without words counts as one with one."""
        return self.images / max(self.words, 1)


def sample_scores_schema(measures: Iterable[SampleMeasure]) -> pa.Schema:
    """Return the schema of sample scores with the columns of some measures.

    Raises:
        ValueError: a name is taken.
    """
    schema = SAMPLE_SCORES_SCHEMA
    for measure in measures:
        if measure.name in schema.names:
            raise ValueError(
                f"measure {measure.name!r} of {type(measure).__module__}: there is a column of this name"
            )
        schema = schema.append(measure_field(measure))
    return schema


def score_samples(
    table: pa.Table, measures: Sequence[SampleMeasure] = (), known: pa.Table | None = None
) -> pa.Table:
    """Return one row per sample of an interleaved table, in order of first appearance.

    Args:
        table: whole samples; the columns sample_id, modality, text_content and materialize_error count.
        measures: what is measured beyond the columns of `SAMPLE_SCORES_SCHEMA`.
        known: scores that were taken before. A value is taken over where the measure is the same, in the
            same version, and the sample has the same texts and number of images.

    Raises:
        DataError: a text is not UTF-8.
        ValueError: a measure fails; the message names it and the sample.
    """
    schema = sample_scores_schema(measures)
    samples = _samples(table)
    contents = list(samples.values())
    digests = [text_digest(content.texts) for content in contents]
    columns = [
        pa.array(samples, pa.string()),
        pa.array([content.images for content in contents], pa.int32()),
        pa.array([len(content.texts) for content in contents], pa.int32()),
        pa.array([content.words for content in contents], pa.int64()),
        pa.array(digests, pa.string()),
    ]
    places = _known_rows(known, samples, digests)
    columns += [
        measured_column(measure, samples, known_values(known, measure), places) for measure in measures
    ]
    return pa.Table.from_arrays(columns, schema=schema)


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


def _known_rows(
    known: pa.Table | None, samples: Mapping[str, SampleContent], digests: Sequence[str | None]
) -> dict[str, int]:
    """Return the row of earlier scores for each sample that still has the same texts and images."""
    if known is None:
        return {}
    names = ("sample_id", "images", "text_digest")
    rows = zip(*(known.column(name).to_pylist() for name in names), strict=True)
    places = {row: place for place, row in enumerate(rows)}
    keys = (
        (sample_id, content.images, digest)
        for (sample_id, content), digest in zip(samples.items(), digests, strict=True)
    )
    return {key[0]: places[key] for key in keys if key in places}


def read_sample_scores(uri: str, digest: str | None = None) -> pa.Table:
    """Read the sample scores of a shard, with the columns of all measures.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFile: for a damaged file, for another table, and for rows that have another ``digest``.
    """
    with open_binary(uri) as file:
        data = file.read()
    try:
        table = pq.read_table(pa.BufferReader(data))
        found = [table.schema.field(known.name).type for known in SAMPLE_SCORES_SCHEMA]
    except UNREADABLE as error:
        raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error
    if found != SAMPLE_SCORES_SCHEMA.types:
        raise UnreadableFile(f"{uri}: damaged: it has no sample scores")
    if digest is not None and digest != digest_of_scores(table):
        raise UnreadableFile(f"{uri}: damaged: its rows are not those that were written")
    return table


class SampleScores:
    """The scores of one shard, by sample id."""

    def __init__(self, table: pa.Table) -> None:
        names = [name for name in table.column_names if name not in SAMPLE_SCORES_SCHEMA.names]
        self._scores = {
            row["sample_id"]: SampleScore(
                row["images"], row["texts"], row["words"], {name: row[name] for name in names}
            )
            for row in table.to_pylist()
        }

    @classmethod
    def read(cls, uri: str, digest: str | None = None) -> SampleScores:
        """Read the scores file of a shard; raises as `read_sample_scores`."""
        return cls(read_sample_scores(uri, digest))

    def get(self, sample_id: str) -> SampleScore | None:
        """Return the score of one sample; None for one that was never scored."""
        return self._scores.get(sample_id)
