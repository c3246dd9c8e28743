"""What a raw file holds, found without reading any image: its samples, its faults, the types of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from mm_assets.interleaved.json_values import FieldTally
from mm_assets.interleaved.losses import Loss


@dataclass(frozen=True, slots=True)
class SurveyedSample:
    """One sample that can be decoded, and how many items it has.

    ``member`` is its json, or the text of a pair without one, which lies at ``byte_offset`` of the
    uncompressed tar; of a Parquet file its row, which has no place in bytes.
    """

    sample_id: str
    member: str
    byte_offset: int | None
    byte_size: int | None
    items: int
    images: int


@dataclass(frozen=True)
class FileSurvey:
    """One file. ``samples`` are in its order, each id once; ``losses`` are samples that cannot be read and
    damaged ranges.

    ``unresolved`` lists (sample id, position, message) of image references that lead to no image;
    ``frame_counts`` (TIFF member, frames, references) of those whose numbers differ; ``unreferenced`` members
    that are no image of a sample, ``skipped`` those that are no files; ``tallies`` the kinds of values of the
    fields whose samples state no types, ``declared`` the passthrough schemas of those that do,
    ``declared_ints`` the integers of its 64-bit columns. ``members`` is how many members a tar has in all, or
    how many rows a Parquet file; ``nbytes`` the bytes of the unpacked tar, or of the file.
    """

    samples: tuple[SurveyedSample, ...] = ()
    losses: tuple[Loss, ...] = ()
    unresolved: tuple[tuple[str, int, str], ...] = ()
    frame_counts: tuple[tuple[str, int, int], ...] = ()
    unreferenced: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    tallies: Mapping[str, FieldTally] = field(default_factory=dict)
    declared: tuple[pa.Schema, ...] = ()
    declared_ints: Mapping[str, FieldTally] = field(default_factory=dict)
    members: int = 0
    nbytes: int = 0
