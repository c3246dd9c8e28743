"""Survey of a raw file, made without reading any image: its samples, faults and field types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from mm_assets.formats.content_columns import ContentColumns
from mm_assets.interleaved.json_values import FieldTally
from mm_assets.interleaved.losses import Loss


@dataclass(frozen=True, slots=True)
class SurveyedSample:
    """One sample that can be decoded, and how many items it has.

    ``member`` is the name of its JSON, or of the text of an image-text pair without JSON, at ``byte_offset``
    of the uncompressed tar. In a Parquet file ``member`` is the name of the row and there is no byte range.
    """

    sample_id: str
    member: str
    byte_offset: int | None
    byte_size: int | None
    items: int
    images: int


@dataclass(frozen=True)
class FileSurvey:
    """Survey of one file.

    Attributes:
        samples: in the file's order, each id once.
        losses: samples that cannot be read, and damaged ranges.
        unresolved: (sample id, position, message) of image references that lead to no image.
        frame_counts: (TIFF member, frames, references) of those whose numbers differ.
        unreferenced: members that are no image of a sample.
        skipped: members that are no regular files.
        left_out: members that macOS or tar had added, which are no data.
        tallies: kinds of values of the fields whose samples declare no types.
        declared: passthrough schemas of the samples that declare types.
        declared_ints: ranges of the integers in the 64-bit columns of those.
        content: columns of documents of others that look like texts or images (`content_columns`).
        has_pairs: whether the rows of a Parquet file are image-text pairs.
        members: number of all members of a tar, or of rows of a Parquet file.
        nbytes: bytes of the unpacked tar, or of the file.
    """

    samples: tuple[SurveyedSample, ...] = ()
    losses: tuple[Loss, ...] = ()
    unresolved: tuple[tuple[str, int, str], ...] = ()
    frame_counts: tuple[tuple[str, int, int], ...] = ()
    unreferenced: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    tallies: Mapping[str, FieldTally] = field(default_factory=dict)
    declared: tuple[pa.Schema, ...] = ()
    declared_ints: Mapping[str, FieldTally] = field(default_factory=dict)
    content: ContentColumns = field(default_factory=dict)
    has_pairs: bool = False
    members: int = 0
    nbytes: int = 0
