"""Detection of unusable images, before they are written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.filters.image_score import MAX_PIXELS as MAX_PIXELS
from mm_assets.filters.image_score import image_views
from mm_assets.formats.images.completeness import looks_whole
from mm_assets.formats.images.decode import decode, refuse_bomb
from mm_assets.formats.images.errors import DecompressionBomb, ImageError
from mm_assets.formats.images.opening import check_opens
from mm_assets.formats.images.probe import ImageInfo, probe
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.faults import DECOMPRESSION_BOMB, Fault, unreadable_image
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.steps import ROWS_CHANGED, StepResult

CHECKED, DECODED, UNDECODABLE = "images_checked", "images_decoded", "images_undecodable"
"""Counts: images checked; of them, those decoded; of those, the ones that could not be decoded."""


@dataclass(frozen=True)
class ReadableImages:
    """Turns image rows whose bytes are no usable image into error rows (bytes kept); the policy then decides.

    Header and structure of every image are checked, in microseconds, and that Pillow opens it, as clients do.
    An image whose structure shows missing or extra bytes is decoded, and that decides: stray bytes behind a
    picture pass, a picture cut in its body does not.

    Args:
        decode_fraction: share of all images (0..1) that is decoded to find damage inside a complete picture.
            They are chosen by sample id and position alone.
        max_pixels: images of more pixels are errors and never decoded.
    """

    version: ClassVar[str] = "2"  # part of the fingerprint of each shard
    decode_fraction: float = 0.0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if not 0 <= self.decode_fraction <= 1:
            raise ValueError(f"decode_fraction must be 0..1, not {self.decode_fraction}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, not {self.max_pixels}")

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        has_bytes = pc.and_(
            pc.equal(table.column("modality"), "image"), pc.is_valid(table.column("binary_content"))
        )
        rows = pc.indices_nonzero(
            pc.and_(has_bytes, pc.is_null(table.column("materialize_error")))
        ).to_pylist()
        counts = Counter({CHECKED: len(rows), DECODED: 0, UNDECODABLE: 0})
        errors: dict[int, Fault] = {}
        measured: dict[int, ImageInfo] = {}
        for row, view, is_sampled in zip(
            rows, image_views(table, rows), self._sampled(table, rows), strict=True
        ):
            assert view is not None  # see `has_bytes`
            try:
                measured[row] = self._check(view, is_sampled, counts)
            except DecompressionBomb as error:
                errors[row] = Fault(DECOMPRESSION_BOMB, f"decompression bomb: {error}")
            except ImageError as error:
                errors[row] = unreadable_image(error)
        counts[ROWS_CHANGED] = len(errors)
        return StepResult(batch.with_data(with_errors(table, errors), measured), counts=counts)

    def _check(self, data: memoryview, is_sampled: bool, counts: Counter[str]) -> ImageInfo:
        """Return the measurements from the header.

        Raises:
            ImageError: for an image that cannot be used.
        """
        info = probe(data)
        refuse_bomb(info.width, info.height, self.max_pixels)
        is_whole = looks_whole(data, info.format)
        if is_whole:
            check_opens(data, info.format)
            if not is_sampled:
                return info
        try:
            is_proven = decode(data, info.format, self.max_pixels)
        except DecompressionBomb:
            raise
        except ImageError as error:
            counts.update((DECODED, UNDECODABLE))
            raise error if is_whole else ImageError(f"cut or damaged: {error}") from error
        counts[DECODED] += 1
        if not is_whole and not is_proven:
            counts[UNDECODABLE] += 1
            raise ImageError("cut or damaged: too many frames to decode them all")
        if not is_whole:
            check_opens(data, info.format)
        return info

    def _sampled(self, table: pa.Table, rows: list[int]) -> list[bool]:
        """Whether each of some rows belongs to the share that is decoded."""
        if self.decode_fraction == 0:
            return [False] * len(rows)
        places = table.select(["sample_id", "position"]).take(pa.array(rows, pa.int64()))
        bound = self.decode_fraction * 2**64
        ids, positions = (column.to_pylist() for column in places.columns)
        return [
            xxhash.xxh3_64_intdigest(f"{name}\0{at}".encode()) < bound
            for name, at in zip(ids, positions, strict=True)
        ]
