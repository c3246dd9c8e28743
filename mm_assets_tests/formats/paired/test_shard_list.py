from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import webdataset as wds

from mm_assets.formats import PairedShardList
from mm_assets.formats.paired.joined_tars import shard_name

IMAGES = "/data/images/shard_{0000..0099}.tar"
EMBEDDINGS = "/data/embeddings/shard_{0000..0099}.tar"


def test_the_nth_urls_are_a_group() -> None:
    shards = PairedShardList({"images": IMAGES, "embeddings": EMBEDDINGS})
    groups = list(shards)

    assert len(shards) == len(groups) == 100
    assert groups[42] == {
        "urls": {"images": "/data/images/shard_0042.tar", "embeddings": "/data/embeddings/shard_0042.tar"}
    }
    assert list(shards) == groups


def test_a_seed_shuffles_as_webdataset_does_and_keeps_pairs() -> None:
    groups = list(PairedShardList({"images": IMAGES, "embeddings": EMBEDDINGS}, seed=42))

    assert [group["urls"]["images"] for group in groups] == [
        shard["url"] for shard in wds.SimpleShardList(IMAGES, seed=42)
    ]
    assert all(
        urls["images"].replace("images", "embeddings") == urls["embeddings"]
        for urls in (group["urls"] for group in groups)
    )
    assert groups != list(PairedShardList({"images": IMAGES, "embeddings": EMBEDDINGS}, seed=43))


@pytest.mark.parametrize(
    "given",
    [
        "/d/s_{0..1}.tar",
        "/d/s_0.tar::/d/s_1.tar",
        "${FOLDER}/s_{0..1}.tar",
        ["/d/s_0.tar", "/d/s_1.tar"],
        [Path("/d/s_0.tar"), Path("/d/s_1.tar")],
        (f"/d/s_{n}.tar" for n in range(2)),
    ],
)
def test_what_names_shards(given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDS_FOLDER", "/d")
    assert [group["urls"]["a"] for group in PairedShardList({"a": given})] == ["/d/s_0.tar", "/d/s_1.tar"]  # type: ignore[dict-item]


def test_urls_of_a_list_are_taken_as_they_are() -> None:
    assert list(PairedShardList({"a": ["/d/s_{0..1}.tar"]})) == [{"urls": {"a": "/d/s_{0..1}.tar"}}]
    assert list(PairedShardList({"a": Path("/d/s_{0..1}.tar")})) == [{"urls": {"a": "/d/s_{0..1}.tar"}}]


def test_braces_in_a_pipe() -> None:
    groups = list(
        PairedShardList(
            {"a": "pipe:aws s3 cp s3://b/a/s_{00..02}.tar -", "b": "https://x.org/b/s_{00..02}.tar"}
        )
    )
    assert groups[2] == {"urls": {"a": "pipe:aws s3 cp s3://b/a/s_02.tar -", "b": "https://x.org/b/s_02.tar"}}


def test_different_numbers_of_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="same number of shards: images=100, embeddings=2"):
        PairedShardList({"images": IMAGES, "embeddings": ["a.tar", "b.tar"]})


@pytest.mark.parametrize(
    ("modalities", "message"), [({}, "no modalities"), ({"a": [], "b": []}, "no shards")]
)
def test_nothing_is_refused(modalities: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairedShardList(modalities)


def test_a_group_can_be_changed_without_changing_the_next_pass() -> None:
    shards = PairedShardList({"a": "x.tar"})
    next(iter(shards))["urls"]["a"] = "y.tar"
    assert list(shards) == [{"urls": {"a": "x.tar"}}]


def test_different_names_warn_once() -> None:
    with pytest.warns(
        UserWarning, match=r"names differ in 2 of 3 pairs; the first is a='/a/s_0.tar', b='/b/s_2.tar'"
    ) as caught:
        shards = PairedShardList(
            {"a": [f"/a/s_{n}.tar" for n in (0, 1, 2)], "b": [f"/b/s_{n}.tar" for n in (2, 1, 0)]}
        )
        list(shards)
        list(shards)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_equal_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PairedShardList(
            {
                "a": "/a/s_{0..1}.tar",
                "b": "pipe:AWS_KEY=x aws s3 cp --endpoint-url=https://s3.example.com s3://b/b/s_{0..1}.tar -",
                "c": "pipe:cat '/with space/s_{0..1}.tar.gz' | gunzip",
                "d": "https://x.org/d/s_{0..1}.tgz?token=a.b/c",
            }
        )


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/a.tar/b.tar", "b"),
        ("s3://b/x.tar.gz", "x"),
        ("no_suffix", "no_suffix"),
        ("/a/no_suffix/", "no_suffix"),
        ("a/s.1.tar", "s.1"),
    ],
)
def test_shard_name(url: str, name: str) -> None:
    assert shard_name(url) == name
