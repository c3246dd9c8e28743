"""Two outputs are compared by what they hold; any image or text that differs is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import project
from benchmarks.kept import Kept, check_same, images_of, kept
from tools.demo import make_shards


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The example shards, filtered, in two formats; and unfiltered."""
    folder = tmp_path_factory.mktemp("kept")
    tars = [str(path) for path in make_shards(folder / "raw", members=1, pdf=1, samples=6)]
    for target in ("parquet", "webdataset"):
        project.convert("webdataset", target, tars, str(folder / target))
    project.convert("webdataset", "parquet", tars, str(folder / "all"), is_filtered=False)
    return {path.name: path for path in folder.iterdir()}


def test_the_same_from_either_format(outputs: dict[str, Path]) -> None:
    parquet, tars = (kept(outputs[kind], kind, with_bytes=True) for kind in ("parquet", "webdataset"))
    assert len(parquet) == 12
    assert images_of(parquet) > 12
    check_same(parquet, tars)


def test_an_output_that_was_not_filtered_differs(outputs: dict[str, Path]) -> None:
    filtered, whole = (kept(outputs[name], "parquet", with_bytes=False) for name in ("parquet", "all"))
    assert images_of(whole) > images_of(filtered)
    with pytest.raises(ValueError, match="not the same was kept of sample"):
        check_same(filtered, whole)


ITEMS = (("text", "a"), ("image", 4, 3, "b"))


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"s": (ITEMS[0],)},
        {"s": ITEMS[::-1]},
        {"s": (("text", "x"), ITEMS[1])},
        {"s": (ITEMS[0], ("image", 3, 4, "b"))},
        {"s": (ITEMS[0], ("image", 4, 3, "x"))},
        {"s": ITEMS, "t": ()},
    ],
    ids=["no sample", "no image", "order", "text", "size", "bytes", "one sample more"],
)
def test_what_differs_is_refused(other: Kept) -> None:
    check_same({"s": ITEMS}, {"s": ITEMS})
    with pytest.raises(ValueError, match="kept of sample [st]"):
        check_same({"s": ITEMS}, other)
