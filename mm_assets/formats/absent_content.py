"""Items of which nothing is there: found before rows are written, so that the policy for errors decides."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.materialize import locator_of

_NO_TEXT = "missing content: a text row without text"
_NO_LOCATOR = "missing content: an image without bytes and without a locator"
_NO_BYTES = "missing content: an image of 0 bytes"


def absent_content(table: pa.Table) -> dict[int, str]:
    """By row number the message for each item without content that has no error yet; all reserved columns
    must be there.

    Text rows without text, image rows of 0 bytes, and image rows without bytes whose locator is missing or
    cannot name anything. An image row with a locator is none of them: its bytes can be fetched later.
    Metadata rows need no content.
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
    messages: dict[int, str] = {}
    for row, item, is_null in zip(rows.to_pylist(), found, lacks_bytes, strict=True):
        if item["modality"] == "text":
            messages[row] = _NO_TEXT
        elif not is_null:
            messages[row] = _NO_BYTES
        elif (message := _unusable(item["source_ref"])) is not None:
            messages[row] = message
    return messages


def _unusable(source_ref: str | None) -> str | None:
    if source_ref is None:
        return _NO_LOCATOR
    try:
        locator_of(source_ref)
    except (TypeError, ValueError) as error:
        return f"missing content: an image without bytes, and its locator names none: {error}"
    return None
