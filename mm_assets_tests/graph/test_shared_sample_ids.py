"""Sample ids that two raw shards have, in runs of the real graph: who keeps them, and who gets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq

from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import CURATED, Deployment, materialized, write_tar
from mm_assets_tests.graph.published import ALL_IMAGES, assert_ledger_balances, ids_in_outputs
from mm_assets_tests.graph.samples import PNG, document, samples

Deploy = Callable[..., Deployment]


def test_a_sound_sample_does_not_yield_to_a_faulty_one(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {"twin.json": document("twin")})  # its picture is missing
    write_tar(tmp_path / "raw" / "b.tar", {"twin.json": document("twin"), "twin.1.png": PNG})
    assert deploy(**ALL_IMAGES, MM_MAX_LOSS="1").run().success
    storage = tmp_path / "storage"
    assert set(map(frozenset, ids_in_outputs(storage).values())) == {frozenset({"twin"})}
    assert pq.read_table(storage / "curated" / "b.parquet").num_rows == 3


def test_a_sample_that_cannot_be_decoded_leaves_its_id_to_a_sound_one(tmp_path: Path, deploy: Deploy) -> None:
    cut = picture(1)[1][:-20]
    write_tar(
        tmp_path / "raw" / "a.tar", {**samples(1, "a"), "twin.json": document("twin"), "twin.1.png": cut}
    )
    write_tar(tmp_path / "raw" / "b.tar", {"twin.json": document("twin"), "twin.1.png": PNG})
    deployment = deploy(**ALL_IMAGES, MM_MAX_LOSS="1")
    assert deployment.run().success
    assert ids_in_outputs(tmp_path / "storage")["lance"] == {"a000"}  # found when it was read
    assert deployment.run(["b"]).success
    assert ids_in_outputs(tmp_path / "storage")["lance"] == {"a000", "twin"}
    assert deployment.run().success
    assert_ledger_balances(tmp_path / "storage")
    assert unchanged(deployment.run()) == {"a", "b"}


def test_samples_of_which_none_can_be_decoded_stay_where_they_are(tmp_path: Path, deploy: Deploy) -> None:
    cut = picture(1)[1][:-20]
    for name in "ab":
        twin = {"twin.json": document("twin"), "twin.1.png": cut}
        write_tar(tmp_path / "raw" / f"{name}.tar", {**samples(1, name), **twin})
    deployment = deploy(**ALL_IMAGES, MM_MAX_LOSS="1")
    for _ in range(3):
        assert deployment.run(assets=CURATED).success
    assert unchanged(deployment.run(assets=CURATED)) == {"a", "b"}
    assert unchanged(deployment.run(assets=CURATED)) == {"a", "b"}
    ids = pq.ParquetDataset(f"{deployment.storage}/curated").read(["sample_id"])["sample_id"].to_pylist()
    assert set(ids) == {"a000", "b000"}


def unchanged(result: dg.ExecuteInProcessResult) -> set[str]:
    """The shards that were not made anew, in any asset."""
    assets = [made for asset, made in materialized(result).items() if asset != "raw_shards"]
    return {key for key in assets[0] if all("unchanged" in made[key].metadata for made in assets)}
