"""Pages of samples with more images than a browser should load, and with long texts."""

from __future__ import annotations

import pytest

from mm_assets.formats.images import probe
from mm_assets.view import sample
from mm_assets.view.sample import Document, Item, embedding, sample_page
from mm_assets_tests.cli.hostile_storage import noise


def test_from_some_size_on_pictures_are_small_previews(monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(noise(300))
    info = probe(data)
    monkeypatch.setattr(sample, "_MOST_BYTES", 2 * len(data))
    look = embedding()
    shown = [look(data, info) for _ in range(4)]
    assert [picture.startswith('<img src="data:image/png;base64,') for picture in shown] == [
        True,
        True,
        False,
        False,
    ]
    assert "a preview of 256x256, as WebP; the file is not in this page" in shown[2]
    assert embedding()(data, info) == shown[0]


def test_a_text_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_MOST_TEXT", 10)
    item = Item(0, "text", text="0123456789abc", has_content=True)
    page = sample_page("s", [Document("s", "p", "file.tar", [item])])
    assert '<p class="text" dir="auto">0123456789 … (3 more characters)</p>' in page
