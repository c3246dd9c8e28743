"""Brace lists stand for what a shell makes of them; an endless one is refused before a name of it is made,
wherever it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from braceexpand import braceexpand

from mm_assets.formats import MultiModalWebDataset, PairedShardList
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.formats.registry import reader_for
from mm_assets.storage import MAX_NAMES, expand_braces
from mm_assets_tests.formats.raw_tars import make_tar

ENDLESS = "s-{0..999999999999}.tar"


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a",
            "{x}",
            "{}",
            "a{1..3}",
            "{07..10..2}",
            "{4..1}",
            "{2..-1}",
            "{,x}",
            "{a,b{1..3}}x",
            "{a,b}{c,d}",
            "{{1..3},x{a,b}}",
        ),
        *(
            "{a..c}",
            "{z..a..5}",
            "{Z..a}",
            "{a..c,z}",
            r"\{1..9999999999\}",
            r"{a\,b,c}",
            "{1,{1,{1,{1,x}}}}",
        ),
    ],
)
def test_a_list_is_what_a_shell_makes_of_it(pattern: str) -> None:
    assert expand_braces(pattern) == list(braceexpand(pattern))


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (ENDLESS, "1,000,000,000,000"),
        (f"s-{{1..{MAX_NAMES + 1}}}.tar", f"{MAX_NAMES + 1:,}"),
        ("{0..9}" * 7, "10,000,000"),
        ("{a..z}" * 6, "308,915,776"),
        ("{0..999}{{a..z},{0..999}}x{5..-4}", "10,260,000"),
        ("{0..1}" * 500, "endlessly many"),
        (f"{{0..{'9' * 5000}}}", "endlessly many"),
        ("{" * 60 + "}" * 60, "endlessly many"),
    ],
    ids=[
        "range",
        "one too many",
        "product of ranges",
        "letters",
        "sum and product",
        "powers",
        "digits",
        "depth",
    ],
)
def test_one_that_is_too_long_is_refused(pattern: str, count: str) -> None:
    with pytest.raises(ValueError, match=f"the braces stand for {count} names, at most {MAX_NAMES:,}"):
        expand_braces(pattern)


@pytest.mark.parametrize("pattern", ["{a", "a}", "{a,b", "{" * 3000])
def test_a_brace_without_its_partner_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="a brace without its partner"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: RawLocations(f"{folder}/{ENDLESS}").shards(),
        lambda folder: RawLocations(f"memory://bucket/{ENDLESS} {folder}").shards(),
        lambda folder: RawLocations(f"images={folder}/{ENDLESS} texts={folder}"),
        lambda folder: reader_for("webdataset", f"{folder}/{ENDLESS}").partitions(),
        lambda folder: reader_for("parquet", [f"{folder}/{ENDLESS}"]).partitions(),
        lambda folder: PairedShardList({"a": f"{folder}/x.tar::{folder}/{ENDLESS}"}),
        lambda folder: PairedShardList({"a": f"{folder}/${{LAST}}"}),
        lambda folder: MultiModalWebDataset(
            {"a": f"{folder}/{ENDLESS}", "b": [f"{folder}/x.tar"]}, shardshuffle=False
        ),
    ],
    ids=[
        "raw",
        "raw URLs",
        "paired raw",
        "tars",
        "parquet",
        "training list",
        "training list of variables",
        "training",
    ],
)
def test_wherever_lists_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("WDS_LAST", ENDLESS)
    make_tar(tmp_path / "x.tar", [])
    with pytest.raises(ValueError, match="1,000,000,000,000 names"):
        use(tmp_path)


def test_a_file_that_is_called_so_is_that_file(tmp_path: Path) -> None:
    make_tar(tmp_path / ENDLESS, [("a.json", {"texts": ["x"]})])
    assert list(RawLocations(f"{tmp_path}/{ENDLESS}").shards()) == [ENDLESS.removesuffix(".tar")]
    assert [batch.num_samples for batch in reader_for("webdataset", str(tmp_path / ENDLESS))] == [1]
