"""The asset `arrow_cache`: one cache a shard, replaced as a whole, proven to the last byte, and read as
samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from mm_assets.formats import InterleavedArrowDataset, read_sharded_cache_meta
from mm_assets_tests.formats.arrow_cache.caches import marks
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import FILTERED, Deployment, failed_checks, materialized, write_tar
from mm_assets_tests.quick_instance import quick_instance

PNG = picture(0)[1]
ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
TO_CACHE = [*FILTERED, "arrow_cache"]


def shard(path: Path, count: int, text: str = "text") -> None:
    members: dict[str, bytes] = {}
    for number in range(count):
        name = f"{path.stem}{number}"
        document = {"texts": [f"{text} of {name}", None], "images": [None, f"{name}.png"], "n": number}
        members |= {f"{name}.json": json.dumps(document).encode(), f"{name}.png": PNG}
    write_tar(path, members)


def two_shards(raw: Path) -> None:
    shard(raw / "a.tar", 3)
    shard(raw / "b.tar", 2)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, dg.ExecuteInProcessResult]]:
    """Two shards through the whole graph."""
    folder = tmp_path_factory.mktemp("made")
    two_shards(folder / "raw")
    environment = {"MM_WORKERS": "2", **ALL_IMAGES}
    with quick_instance(folder / "home") as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        yield deployment, deployment.run()


@pytest.fixture(scope="module")
def made(ran: tuple[Deployment, dg.ExecuteInProcessResult]) -> Deployment:
    return ran[0]


def test_samples_are_those_of_the_filtered_shards(
    ran: tuple[Deployment, dg.ExecuteInProcessResult],
) -> None:
    result, storage = ran[1], Path(ran[0].storage)
    assert result.success and failed_checks(result) == set()
    dataset = InterleavedArrowDataset(storage)
    assert [dataset[i]["sample_id"] for i in range(len(dataset))] == ["a0", "a1", "a2", "b0", "b1"]
    assert dataset[dataset.index("b1")] == {
        "sample_id": "b1",
        "items": [
            {
                "modality": "text",
                "position": 0,
                "content_type": "text/plain",
                "text": "text of b1",
                "metadata": {},
            },
            {"modality": "image", "position": 1, "content_type": "image/png", "image": PNG, "metadata": {}},
        ],
        "metadata": {"n": 1},
    }
    for key, made in materialized(result)["arrow_cache"].items():
        meta = read_sharded_cache_meta(storage / "arrow_cache" / key)
        rows = pq.read_metadata(storage / "filtered" / f"{key}.parquet").num_rows
        assert made.metadata["dagster/partition_row_count"].value == meta.num_rows == rows
        assert made.metadata["bytes"].value == sum(meta.shard_sizes)
        assert made.metadata["dagster/uri"].value == f"{storage}/arrow_cache/{key}"


def test_a_changed_shard_is_replaced_and_the_other_is_left(tmp_path: Path, copied: Deployment) -> None:
    caches = tmp_path / "storage" / "arrow_cache"
    opened = InterleavedArrowDataset(caches)
    assert opened[0]["items"][0]["text"] == "text of a0"
    before = marks(caches / "b")
    shard(tmp_path / "raw" / "a.tar", 1, "other")
    made = materialized(copied.run(assets=TO_CACHE))["arrow_cache"]
    assert {key: "unchanged" in event.metadata for key, event in made.items()} == {"a": False, "b": True}
    assert marks(caches / "b") == before
    assert len(list((caches / "a").iterdir())) == 2
    dataset = InterleavedArrowDataset(caches)
    assert [dataset[i]["items"][0]["text"] for i in range(len(dataset))] == [
        "other of a0",
        "text of b0",
        "text of b1",
    ]
    assert opened[1]["items"][0]["text"] == "text of a1", "what is mapped stays"


def test_a_shard_that_has_nothing_left_is_an_empty_cache(tmp_path: Path, copied: Deployment) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {})
    result = copied.run(assets=TO_CACHE)
    assert result.success and failed_checks(result) == set()
    assert os.listdir(tmp_path / "storage" / "arrow_cache" / "a") == ["_metadata.json"]
    assert len(InterleavedArrowDataset(tmp_path / "storage")) == 2
    again = materialized(copied.run(assets=TO_CACHE))["arrow_cache"]
    assert all("unchanged" in event.metadata for event in again.values())


def _cut(folder: Path) -> None:
    os.truncate(folder / "shard-00000.arrow", 700)


def _forget(folder: Path) -> None:
    (folder / "_metadata.json").unlink()


def _other_columns(folder: Path) -> None:
    path = folder / "_metadata.json"
    other = json.loads((folder.parent / "b" / "_metadata.json").read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrow_schema": other["arrow_schema"]}))


def _other_count(folder: Path) -> None:
    path = folder / "_metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_rows": 1}))


def _behind_the_rows(folder: Path) -> None:
    with open(folder / "shard-00000.arrow", "r+b") as file:
        file.seek(-20, os.SEEK_END)
        byte = file.read(1)
        file.seek(-20, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_cut, "arrow_cache/a/shard-00000.arrow"),
        (_forget, "arrow_cache/a/_metadata.json"),
        (_other_columns, "its columns are not those that _metadata.json says"),
        (_other_count, "num_rows is 1, the rest gives 9"),
    ],
)
def test_damage_is_found_and_mended(
    tmp_path: Path, copied: Deployment, damage: Callable[[Path], None], problem: str
) -> None:
    damage(tmp_path / "storage" / "arrow_cache" / "a")
    result = copied.check("arrow_cache", "zero_loss")
    assert not result.success
    (found,) = [e for e in result.get_asset_check_evaluations() if e.partition == "a"]
    assert problem in found.metadata["summary"].value
    assert str(tmp_path) not in found.metadata["summary"].value
    mended = copied.run(assets=["arrow_cache"])
    assert failed_checks(mended) == set()
    assert {
        key: "unchanged" in event.metadata for key, event in materialized(mended)["arrow_cache"].items()
    } == {"a": False, "b": True}
    assert copied.check("arrow_cache", "zero_loss").success
    assert len(InterleavedArrowDataset(tmp_path / "storage")) == 5


def test_a_byte_behind_the_rows_is_found(tmp_path: Path, copied: Deployment) -> None:
    """All rows are right, but readers of the cache go by the digest of the file."""
    _behind_the_rows(tmp_path / "storage" / "arrow_cache" / "a")
    result = copied.check("arrow_cache", "zero_loss")
    (found,) = [e for e in result.get_asset_check_evaluations() if e.partition == "a"]
    assert "shard-00000.arrow" in found.metadata["summary"].value and not found.passed


def test_what_a_killed_builder_left_is_removed(tmp_path: Path, copied: Deployment) -> None:
    """Beside the caches and in them, also when there is nothing else to do."""
    caches = tmp_path / "storage" / "arrow_cache"
    name_it = "from mm_assets.storage.files import temporary_name as name; print(name('a'))"
    marker = subprocess.run(
        [sys.executable, "-c", name_it], check=True, capture_output=True, text=True
    ).stdout.strip()
    generation = marker.removesuffix(".tmp").rpartition("-")[2]
    for home in (caches, caches / "a"):
        (home / marker).touch()
        (home / f".{generation}.building").mkdir()
        (home / f".{generation}.building" / "shard-00000.arrow").write_bytes(b"half")
    (caches / "a" / f"shard-00000-{generation}.arrow").write_bytes(b"never published")
    made = materialized(copied.run(assets=["arrow_cache"]))["arrow_cache"]
    assert sorted(os.listdir(caches)) == ["a", "b"]
    assert sorted(os.listdir(caches / "a")) == ["_metadata.json", "shard-00000.arrow"]
    assert sorted(made) == ["a", "b"]
