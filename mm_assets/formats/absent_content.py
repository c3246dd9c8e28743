"""Detection of items without content, before rows are written, so that the error policy applies to them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.materialize import locator_of
from mm_assets.interleaved.faults import MISSING_CONTENT, Fault

_NO_TEXT = Fault(MISSING_CONTENT, "missing content: a text row without text")
_NO_LOCATOR = Fault(MISSING_CONTENT, "missing content: an image without bytes and without a locator")
_NO_BYTES = Fault(MISSING_CONTENT, "missing content: an image of 0 bytes")


def absent_content(table: pa.Table) -> dict[int, Fault]:
    """Return the fault of each item without content that has no error yet, by row number.

    Such items are text rows without text, image rows of 0 bytes, and image rows without bytes whose locator
    is missing or invalid. An image row with a valid locator has content: its bytes can be fetched later.
    Metadata rows need no content.

    Args:
        table: rows with all reserved columns.
    """
    is_unmarked = pc.is_null(table.column("materialize_error"))
    modality = table.column("modality")
    binary, texts = table.column("binary_content"), table.column("text_content")
    has_no_bytes = pc.fill_null(pc.equal(pc.binary_length(binary), 0), True)
    images = pc.and_(pc.equal(modality, "image"), has_no_bytes)
    without_text = pc.and_(pc.equal(modality, "text"), pc.is_null(texts))
    rows = pc.indices_nonzero(pc.and_(is_unmarked, pc.or_(images, without_text)))
    found = table.select(["modality", "source_ref"]).take(rows).to_pylist()
    lacks_bytes = pc.is_null(binary).take(rows).to_pylist()
    faults: dict[int, Fault] = {}
    for row, item, is_null in zip(rows.to_pylist(), found, lacks_bytes, strict=True):
        if item["modality"] == "text":
            faults[row] = _NO_TEXT
        elif not is_null:
            faults[row] = _NO_BYTES
        elif (fault := _unusable(item["source_ref"])) is not None:
            faults[row] = fault
    return faults


def _unusable(source_ref: str | None) -> Fault | None:
    if source_ref is None:
        return _NO_LOCATOR
    try:
        locator_of(source_ref)
    except (TypeError, ValueError) as error:
        words = f"missing content: an image without bytes, and its locator names none: {error}"
        return Fault(MISSING_CONTENT, words)
    return None
