"""The whole graph on the example shards, in one run."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds

from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.formats.arrow_cache.reader_writer import InterleavedArrowCacheReader
from mm_assets.formats.reader import InterleavedReader
from mm_assets.interleaved import (
    InterleavedBatch,
    InterleavedLanceReader,
    InterleavedParquetReader,
    InterleavedWebdatasetReader,
)
from mm_assets_tests.graph.deployment import ASSETS, FILTERED, Deployment, failed_checks, materialized
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

Deploy = Callable[..., Deployment]


def _snapshot(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def _read(reader: InterleavedReader) -> pa.Table:
    return pa.concat_tables([batch.data for batch in reader], promote_options="default").sort_by(
        [("sample_id", "ascending"), ("position", "ascending"), ("modality", "ascending")]
    )


@dataclass(frozen=True)
class Run:
    storage: Path
    deployment: Deployment
    events: dict[str, dict[str, dg.AssetMaterialization]]


@pytest.fixture(scope="module")
def unfiltered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One run without thresholds, for tests that only look at what it left."""
    folder = tmp_path_factory.mktemp("unfiltered")
    make_shards(folder / "raw", members=1, pdf=1)
    with quick_instance(folder / "home") as instance:
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "2"})
        yield Run(folder / "storage", deployment, materialized(deployment.run()))


def test_every_asset_lands_once_per_shard_and_all_formats_hold_the_same(
    tmp_path: Path, deploy: Deploy
) -> None:
    shards = [path.stem for path in make_shards(tmp_path / "raw")]
    result = deploy(MM_MIN_ASPECT_RATIO="1", MM_MAX_ASPECT_RATIO="2").run()
    assert result.success
    events = materialized(result)
    assert {asset: sorted(found) for asset, found in events.items()} == {
        asset: sorted(shards) for asset in ASSETS
    }
    assert failed_checks(result) == set()

    storage = tmp_path / "storage"
    curated = _read(InterleavedParquetReader(str(storage / "curated")))
    raw = _read(InterleavedWebdatasetReader(str(tmp_path / "raw"), relative_to=str(tmp_path / "raw")))
    assert curated.equals(raw)

    outcome = AspectRatioFilter(1.0, 2.0)(InterleavedBatch(curated))
    filtered = _read(InterleavedParquetReader(str(storage / "filtered")))
    assert filtered.equals(outcome.batch.data.combine_chunks())
    assert len(outcome.losses) > 0
    counts = {shard: made.metadata["filtered"].value for shard, made in events["filtered_parquet"].items()}
    assert sum(n for reasons in counts.values() for n in reasons.values()) == len(outcome.losses)

    assert _read(InterleavedLanceReader(str(storage / "lance"))).equals(filtered)
    assert _read(InterleavedWebdatasetReader(str(storage / "webdataset"))).equals(filtered)
    assert _read(InterleavedArrowCacheReader(str(storage / "arrow_cache"))).equals(filtered)


def test_events_carry_counts_schema_place_and_pictures(unfiltered: Run) -> None:
    for shard, made in unfiltered.events["curated_parquet"].items():
        table = pq.read_table(unfiltered.storage / "curated" / f"{shard}.parquet")
        assert made.metadata["dagster/partition_row_count"].value == table.num_rows
        assert made.metadata["samples"].value == len(table["sample_id"].unique())
        assert made.metadata["images"].value == table["modality"].to_pylist().count("image")
        assert (
            made.metadata["bytes"].value
            == (unfiltered.storage / "curated" / f"{shard}.parquet").stat().st_size
        )
        assert made.metadata["dagster/uri"].value.endswith(f"curated/{shard}.parquet")
        assert [c.name for c in made.metadata["dagster/column_schema"].value.columns] == table.schema.names
        assert made.metadata["preview"].value.startswith("![](data:image/webp;base64,")
        assert len(made.metadata["preview"].value) < 1000, "the UI shows a longer one behind a click"


def test_second_run_writes_nothing(unfiltered: Run) -> None:
    before = _snapshot(unfiltered.storage)
    second = materialized(unfiltered.deployment.run())
    assert _snapshot(unfiltered.storage) == before
    assert {a: sorted(s) for a, s in second.items()} == {a: sorted(s) for a, s in unfiltered.events.items()}
    assert all(
        made.metadata["unchanged"].value is True for found in second.values() for made in found.values()
    )


def test_without_bounds_nothing_is_filtered(unfiltered: Run) -> None:
    assert all("filtered" not in made.metadata for made in unfiltered.events["filtered_parquet"].values())
    curated, filtered = (
        _read(InterleavedParquetReader(str(unfiltered.storage / name))) for name in ("curated", "filtered")
    )
    assert filtered.equals(curated)


def test_changed_threshold_reads_no_image_again(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=0)
    deploy().run(assets=FILTERED)
    for path in (tmp_path / "raw").glob("*.tar"):
        path.touch()  # keeps its bytes; only observation would look at it
    wide = materialized(deploy(MM_MIN_ASPECT_RATIO="1", MM_MAX_ASPECT_RATIO="4").run(assets=FILTERED))
    assert all("unchanged" in made.metadata for made in wide["image_scores"].values())
    assert all("unchanged" not in made.metadata for made in wide["filtered_parquet"].values())
    table = pq.read_table(tmp_path / "storage" / "filtered")
    scores = pq.read_table(tmp_path / "storage" / "scores")
    ratios = [w / h for w, h in zip(scores["width"].to_pylist(), scores["height"].to_pylist(), strict=True)]
    assert table["modality"].to_pylist().count("image") == sum(1 <= ratio <= 4 for ratio in ratios)


def test_mended_shard_replaces_its_part_everywhere(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=0, samples=6)
    deployment = deploy()
    deployment.run()
    (tmp_path / "raw" / "web-00001.tar").unlink()
    make_shards(tmp_path / "raw", members=2, pdf=0, samples=9)  # only the second one is made anew
    events = materialized(deployment.run())
    assert "unchanged" in events["lance_table"]["web-00000"].metadata
    assert "unchanged" not in events["lance_table"]["web-00001"].metadata
    lance = _read(InterleavedLanceReader(str(tmp_path / "storage" / "lance")))
    assert len(lance["sample_id"].unique()) == 15
    assert lance.equals(_read(InterleavedParquetReader(str(tmp_path / "storage" / "filtered"))))
    index = json.loads((tmp_path / "storage" / "webdataset" / "index.json").read_text())
    assert [shard["nsamples"] for shard in index["shardlist"]] == [6, 9]


def test_tars_open_in_webdataset_with_every_reference_resolved(unfiltered: Run) -> None:
    images = 0
    for tar in sorted((unfiltered.storage / "webdataset").glob("*.tar")):
        for sample in wds.WebDataset(str(tar), shardshuffle=False).decode("pil"):
            for reference in sample["json"]["images"]:
                if reference is not None:
                    assert sample[reference].size[0] > 0
                    images += 1
    filtered = pq.read_table(unfiltered.storage / "filtered")
    assert images == filtered["modality"].to_pylist().count("image") > 0


def test_no_path_of_this_machine_is_in_published_data(unfiltered: Run) -> None:
    for path in unfiltered.storage.rglob("*"):
        if path.is_file():
            assert str(unfiltered.storage.parent).encode() not in path.read_bytes(), path
