"""Figures from metadata: sums, and what is taken for a picture."""

import pytest

from mm_assets.view.overview import Figures, Measures, description, evenly_spread, metadata, summary

PICTURE = "![](data:image/webp;base64,AAAA)"


def figures(**filtered: object) -> Figures:
    return Figures.of({}, {"a": {"samples": 2, "texts": 1, "images": 3, **filtered}}, strips=2)


def test_counts_of_all_shards_are_summed_up() -> None:
    found = Figures.of(
        {"a": {"quarantined": {"x": 1}}, "b": {"quarantined": {"x": 2, "y": 3}}, "c": {}},
        {
            "a": {"samples": 1, "texts": 2, "images": 3, "filtered": {"f: wide": 4}},
            "b": {"samples": 10, "texts": 20, "images": 30},
        },
        strips=1,
    )
    assert (found.shards, found.documents, found.texts, found.images_kept) == (2, 11, 22, 33)
    assert (found.dropped, found.quarantined) == ({"f: wide": 4}, {"x": 3, "y": 3})
    assert (found.images_dropped, found.items_quarantined, found.share_kept) == (4, 6, 33 / 37)


def test_without_images_no_share_is_told() -> None:
    empty = figures(images=0)
    assert empty.share_kept is None
    assert summary(empty).startswith("No images, in 2 documents of 1 shard.")
    assert "share of images kept" not in metadata(empty, Measures())


@pytest.mark.parametrize(
    "text",
    [
        f"{PICTURE} <b>more</b>",
        "![](http://127.0.0.1/beacon.png)",
        "![](data:image/svg+xml;base64,AAAA)",
        "![](data:image/jpeg;base64,AAAA)",
        "[click](javascript:alert(1))",
        7,
    ],
)
def test_metadata_that_is_no_thumbnail_is_not_passed_on(text: object) -> None:
    assert figures(preview=text).kept_pictures == []
    assert figures(preview=PICTURE).kept_pictures == [PICTURE]
    assert description(figures(preview=text)) == summary(figures())


def test_pictures_are_bounded_and_evenly_spread() -> None:
    shards = {f"{n:03d}": {"preview": PICTURE.replace("AAAA", f"{n:04d}")} for n in range(100)}
    found = Figures.of({}, shards, strips=4).kept_pictures
    assert [picture[-5:-1] for picture in found] == ["0000", "0025", "0050", "0075"]
    assert evenly_spread(range(3), 5) == [0, 1, 2]
    assert evenly_spread(range(5), 3) == [0, 1, 3]


def test_without_filters_the_pictures_are_those_of_curated_shards() -> None:
    curated = {"a": {"preview": PICTURE}, "gone": {"preview": PICTURE}, "b": {"preview": PICTURE}}
    own = PICTURE.replace("AAAA", "BBBB")
    found = Figures.of(curated, {"a": {}, "b": {"preview": own}}, strips=5)
    assert found.kept_pictures == [PICTURE, own]
