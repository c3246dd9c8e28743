"""Images that cannot be read become error rows before they are written."""

from __future__ import annotations

from mm_assets.filters.readable import ReadableImages
from mm_assets_tests.clients.pictures import picture
from mm_assets_tests.formats.datasets import batch_of, item


def test_unreadable_images_are_marked_and_keep_their_bytes() -> None:
    images = [picture(0)[1], b"nonsense", b"", None]
    rows = [item("s"), *(item("s", n, "image", binary_content=data) for n, data in enumerate(images))]
    source = batch_of([*rows, item("s", 9, "image", binary_content=b"junk", materialize_error="earlier"), item("s", 10, text_content="t")])
    result = ReadableImages()(source)
    found = result.batch.data.to_pylist()
    assert [row["binary_content"] for row in found] == [row["binary_content"] for row in source.data.to_pylist()]
    errors = [row["materialize_error"] for row in found]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("unreadable image: ")
    assert errors[3].startswith("unreadable image: ")
    assert errors[4:] == [None, "earlier", None]
    assert result.dropped == ()


def test_sound_batches_pass_as_they_are() -> None:
    source = batch_of([item("s"), item("s", 0, "image", binary_content=picture(1)[1])])
    assert ReadableImages()(source).batch.data.equals(source.data)
    assert ReadableImages()(batch_of([])).batch.num_rows == 0
