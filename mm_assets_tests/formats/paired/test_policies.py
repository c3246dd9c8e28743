from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats import PairedShardList, PairedTarExpander
from mm_assets.formats.paired import dataset
from mm_assets_tests.formats.paired.shards import (
    EXTENSIONS,
    keys_of,
    paired,
    payload,
    write_pair,
    write_shard,
)


def sample(urls: dict[str, str], key: str, *modalities: str) -> dict[str, Any]:
    """What the documentation promises of a sample that these modalities have."""
    return {
        "__key__": key,
        "__url__": " ".join(urls[name] for name in modalities),
        **{f"__url_{name}__": urls[name] for name in modalities},
        **{EXTENSIONS[name]: payload(name, key) for name in modalities},
    }


def test_skip_leaves_out_what_a_modality_lacks(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="ac")
    assert list(paired(urls)) == [sample(urls, key, "images", "embeddings") for key in "ac"]


def test_partial_yields_what_there_is(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="zac")
    assert list(paired(urls, missing_key_policy="partial")) == [
        sample(urls, "a", "images", "embeddings"),
        sample(urls, "b", "images"),
        sample(urls, "c", "images", "embeddings"),
        sample(urls, "z", "embeddings"),
    ]


@pytest.mark.parametrize(
    ("images", "embeddings", "stands"),
    [
        ("abc", "ac", "images='b', embeddings='c'"),
        ("abc", "ca", "images='b', embeddings='c'"),  # another order alone is no mismatch
        ("ac", "abc", "images=None, embeddings='b'"),
        ("abc", "ab", "images='c', embeddings=None"),
        ("ab", "cd", "images='a', embeddings='c'"),
        ("", "x", "images=None, embeddings='x'"),
    ],
)
def test_error_says_where_the_modalities_stand(
    images: str, embeddings: str, stands: str, tmp_path: Path
) -> None:
    urls = write_pair(tmp_path, images=images, embeddings=embeddings)
    found = []
    with pytest.raises(ValueError, match="^key mismatch across modalities: " + stands):
        found.extend(paired(urls, missing_key_policy="error"))
    assert found == []


@pytest.mark.parametrize("policy", ["skip", "partial", "error"])
def test_order_is_the_first_modalitys_and_does_not_matter(policy: str, tmp_path: Path) -> None:
    keys = ["1", "2", "10", "11"]
    urls = write_pair(tmp_path, images=keys, embeddings=sorted(keys), captions=reversed(keys))
    ds = paired(urls, missing_key_policy=policy)
    assert list(ds) == [sample(urls, key, "images", "embeddings", "captions") for key in keys]
    assert ds.reports[0].missing == {}


def test_three_modalities(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abcd", embeddings="abd", captions="acd")
    assert keys_of(paired(urls)) == ["a", "d"]
    assert [
        set(EXTENSIONS.values()) & set(found) for found in paired(urls, missing_key_policy="partial")
    ] == [
        {"jpg", "emb.npy", "txt"},
        {"jpg", "emb.npy"},
        {"jpg", "txt"},
        {"jpg", "emb.npy", "txt"},
    ]
    with pytest.raises(ValueError, match="images='b', embeddings='b', captions='c'"):
        list(paired(urls, missing_key_policy="error"))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="'skip', 'partial' or 'error', not 'drop'"):
        PairedTarExpander(missing_key_policy="drop")  # type: ignore[arg-type]


def test_what_skip_skipped_can_be_asked_for_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = [write_shard(tmp_path, "images", keys, f"s_{n}") for n, keys in enumerate(["abc", "de", "f"])]
    embeddings = [
        write_shard(tmp_path, "embeddings", keys, f"s_{n}") for n, keys in enumerate(["acy", "de", "g"])
    ]
    ds = paired({"images": images, "embeddings": embeddings})
    next(iter(ds))
    assert len(caplog.records) == 1  # a pass that ends early has warned of what it came to
    assert keys_of(ds) == ["a", "c", "d", "e"]

    first, second, third = ds.reports
    assert first.urls == {"images": images[0], "embeddings": embeddings[0]}
    assert (first.keys, first.incomplete, first.samples, first.error) == (4, 2, 2, None)
    assert {name: (keys.count, keys.first) for name, keys in first.missing.items()} == {
        "embeddings": (1, ["b"]),
        "images": (1, ["y"]),
    }
    assert (second.keys, second.incomplete, second.samples, second.missing) == (2, 0, 2, {})
    assert (third.keys, third.incomplete, third.samples) == (2, 2, 0)

    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
    assert caplog.messages[0].endswith(
        "4 keys, of which 2 are not in all modalities; not in images: 1 ('y'); not in embeddings: 1 ('b')"
    )
    assert "they have no key in common" in caplog.messages[1]
    caplog.clear()
    assert ds.decode().reports is ds.reports
    list(ds)
    assert caplog.records == []  # the same again: at level INFO


def test_a_survey_counts_without_reading(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="ac")
    told = {}
    for policy in ("skip", "partial", "error"):
        (report,) = paired(urls, missing_key_policy=policy).survey()
        assert report.missing["embeddings"].first == ["b"]
        told[policy] = (report.samples, report.error is None)
    assert told == {"skip": (2, True), "partial": (3, True), "error": (0, False)}


def test_kept_names_are_bounded_and_counts_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_MAX_KEPT", 3)
    images = [write_shard(tmp_path, "images", "abcd", f"s_{n}") for n in range(3)]
    embeddings = [write_shard(tmp_path, "embeddings", "cde", f"s_{n}") for n in range(3)]
    ds = paired({"images": images, "embeddings": embeddings})
    list(ds)
    told = [
        {name: (keys.count, keys.first) for name, keys in report.missing.items()} for report in ds.reports
    ]
    assert told == [
        {"images": (1, ["e"]), "embeddings": (2, ["a", "b"])},
        {"images": (1, []), "embeddings": (2, [])},
        {"images": (1, []), "embeddings": (2, [])},
    ]
    assert [report.missing["embeddings"].first for report in ds.survey()] == [["a", "b"]] * 3


def test_each_mismatched_group_goes_to_the_handler(tmp_path: Path) -> None:
    images = [write_shard(tmp_path, "images", keys, f"s_{n}") for n, keys in enumerate(["ab", "cd", "ef"])]
    embeddings = [
        write_shard(tmp_path, "embeddings", keys, f"s_{n}") for n, keys in enumerate(["ab", "c", "ef"])
    ]
    errors: list[Exception] = []

    def go_on(error: Exception) -> bool:
        errors.append(error)
        return True

    ds = paired({"images": images, "embeddings": embeddings}, missing_key_policy="error", handler=go_on)
    assert keys_of(ds) == ["a", "b", "e", "f"]
    assert [str(error).partition(";")[0] for error in errors] == [
        "key mismatch across modalities: images='d', embeddings=None"
    ]
    assert [report.error is None for report in ds.reports] == [True, False, True]
    assert ds.reports[1].samples == 0


KEYS = st.lists(
    st.sampled_from([f"{folder}{n}" for folder in ("", "x/", "é ") for n in range(6)]), unique=True
)


@given(keys=st.lists(KEYS, min_size=1, max_size=3), policy=st.sampled_from(["skip", "partial", "error"]))
def test_any_keys_in_any_order_join_like_dicts(keys: list[list[str]], policy: str) -> None:
    names = list(EXTENSIONS)[: len(keys)]
    tables = {
        name: {key: payload(name, key) for key in found} for name, found in zip(names, keys, strict=True)
    }
    every = list(dict.fromkeys(key for found in keys for key in found))
    common = [key for key in every if all(key in table for table in tables.values())]
    with tempfile.TemporaryDirectory() as folder:
        urls = write_pair(Path(folder), **tables)
        shards = PairedShardList(urls)
        if policy == "error" and len(common) < len(every):
            with pytest.raises(ValueError, match="key mismatch across modalities"):
                list(PairedTarExpander(missing_key_policy="error")(shards))
            return
        stage = PairedTarExpander(missing_key_policy=policy)  # type: ignore[arg-type]
        found = list(stage(shards))
    assert found == [
        sample(urls, key, *(name for name in names if key in tables[name]))
        for key in (common if policy == "skip" else every)
    ]
    (report,) = stage.reports
    assert (report.keys, report.incomplete, report.samples) == (
        len(every),
        len(every) - len(common),
        len(found),
    )
    assert {name: missing.first for name, missing in report.missing.items()} == {
        name: lacking
        for name, table in tables.items()
        if (lacking := [key for key in every if key not in table])
    }
