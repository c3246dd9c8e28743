"""Every item accounted for: ledger, quarantine and proof of the real graph, over shards with a few bad
samples.
"""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import BY_ASSET
from mm_assets_tests.formats.images.tiff_tools import tiff_of
from mm_assets_tests.graph.deployment import CURATED, Deployment, failed_checks, materialized, write_tar
from mm_assets_tests.graph.published import (
    ALL_IMAGES,
    account,
    assert_ledger_balances,
    ids_in_outputs,
    lost_items,
)
from mm_assets_tests.graph.samples import PNG, document, samples
from mm_assets_tests.quick_instance import quick_instance

Deploy = Callable[..., Deployment]


SOUND = samples(100)


@pytest.fixture(scope="module")
def three_bad(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Deployment, dg.ExecuteInProcessResult]]:
    """A run of a shard of 100 samples of which three are bad, each in its way, beside a good one."""
    folder = tmp_path_factory.mktemp("three_bad")
    bad = dict(SOUND)
    bad["s010.json"] = b'{"texts": [nope'
    del bad["s020.1.png"]
    bad["s030.1.png"] = PNG[: len(PNG) // 2]
    write_tar(folder / "raw" / "bad.tar", bad)
    write_tar(folder / "raw" / "good.tar", samples(5, "g"))
    with quick_instance(folder / "home") as instance:
        environment = {"MM_WORKERS": "2", **ALL_IMAGES}
        deployment = Deployment(str(folder / "raw"), str(folder / "storage"), instance, environment)
        yield deployment, deployment.run()


def test_three_bad_samples_of_a_hundred(three_bad: tuple[Deployment, dg.ExecuteInProcessResult]) -> None:
    deployment, result = three_bad
    storage = Path(deployment.storage)
    assert result.success
    everywhere = {f"s{n:03d}" for n in range(100) if n not in (10, 20, 30)} | {f"g{n:03d}" for n in range(5)}
    assert ids_in_outputs(storage) == dict.fromkeys(
        ("curated", "filtered", "webdataset", "lance", "arrow_cache"), everywhere
    )
    assert_ledger_balances(storage)

    records = {
        record["sample_id"]: record
        for record in pq.read_table(storage / "quarantine" / "bad.parquet").to_pylist()
    }
    assert {i: r["kind"] for i, r in records.items()} == {
        "s010": "bad_json",
        "s020": "missing_member",
        "s030": "undecodable_image",
    }
    assert records["s010"]["raw"] == b'{"texts": [nope'
    assert records["s020"]["raw"] == SOUND["s020.json"]
    assert records["s030"]["raw"] == PNG[: len(PNG) // 2]
    raw = Path(deployment.raw, "bad.tar").read_bytes()
    for name in ("s010", "s030"):
        at, size = records[name]["byte_offset"], records[name]["byte_size"]
        assert raw[at : at + size] == records[name]["raw"]
        assert records[name]["source_uri"] == "bad.tar"
    assert not (storage / "quarantine" / "good.parquet").exists()
    assert {(a, c, p) for a, c, p in failed_checks(result) if p is not None} == {
        ("raw_shards", "integrity", "bad"),
        ("curated_parquet", "materialization_errors", "bad"),
        ("curated_parquet", "images_decode", "bad"),
        ("quarantine", "empty", "bad"),
    }
    assert json.loads((storage / "proof" / "proof.json").read_text())["is_equal"] is True


def test_mended_source_closes_its_records(
    tmp_path: Path, three_bad: tuple[Deployment, dg.ExecuteInProcessResult]
) -> None:
    deployment = three_bad[0].copied(tmp_path)
    write_tar(tmp_path / "raw" / "bad.tar", SOUND)
    result = deployment.run()
    storage = tmp_path / "storage"
    assert result.success
    assert failed_checks(result) == set()
    assert {len(ids) for ids in ids_in_outputs(storage).values()} == {105}
    assert list((storage / "quarantine").iterdir()) == []
    assert lost_items(storage) == []
    assert_ledger_balances(storage)
    made = materialized(result)["quarantine"]["bad"]
    assert made.metadata["records"].value == 0
    assert made.metadata["closed"].value == 3


def test_filtered_items_are_in_the_ledger_with_score_and_threshold(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "one.tar", samples(2))
    deployment = deploy(MM_MIN_ASPECT_RATIO="50", MM_MAX_ASPECT_RATIO="60")
    assert deployment.run().success
    storage = tmp_path / "storage"
    items = lost_items(storage)
    assert [
        (i["asset"], i["sample_id"], i["position"], i["outcome"], i["kind"], i["threshold"]) for i in items
    ] == [("filtered_parquet", f"s{n:03d}", 1, "filtered", "aspect_ratio", "50..60") for n in range(2)]
    assert all(0.1 < i["score"] < 50 and i["reason"] == "narrower than min_ratio" for i in items)
    assert_ledger_balances(storage)


def test_a_cut_tar_gives_what_is_whole(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "cut.tar", samples(10))
    path = tmp_path / "raw" / "cut.tar"
    with tarfile.open(path) as tar:
        cut = tar.getmember("s006.1.png").offset  # before the header of a picture whose json is there
    whole = path.read_bytes()
    (tmp_path / "whole.tar").write_bytes(whole)
    path.write_bytes(whole[:cut])
    deployment = deploy(**ALL_IMAGES)
    result = deployment.run()
    storage = tmp_path / "storage"
    assert result.success
    assert set(map(frozenset, ids_in_outputs(storage).values())) == {frozenset(f"s{n:03d}" for n in range(6))}
    records = pq.read_table(storage / "quarantine" / "cut.parquet").to_pylist()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        json_at = tar.getmember("s006.json").offset_data
    assert {(r["kind"], r["sample_id"], r["byte_offset"]) for r in records} == {
        ("missing_member", "s006", json_at),
        ("truncated_tar", None, cut),
    }
    assert ("raw_shards", "integrity", "cut") in failed_checks(result)
    assert_ledger_balances(storage)


def test_a_repeated_id_stays_with_its_first_shard(tmp_path: Path, deploy: Deploy) -> None:
    twin = {"twin.json": document("twin"), "twin.1.png": PNG}
    write_tar(tmp_path / "raw" / "a.tar", {**samples(2, "a"), **twin})
    write_tar(tmp_path / "raw" / "b.tar", {**samples(2, "b"), **twin})
    deployment = deploy(**ALL_IMAGES)
    result = deployment.run()
    storage = tmp_path / "storage"
    assert result.success
    assert ("raw_shards", "unique_sample_ids", "b") in failed_checks(result)
    assert ("raw_shards", "unique_sample_ids", "a") not in failed_checks(result)
    owner = {
        i: path.stem
        for path in (storage / "curated").iterdir()
        for i in pq.read_table(path)["sample_id"].to_pylist()
    }
    assert owner["twin"] == "a"
    (record,) = pq.read_table(storage / "quarantine" / "b.parquet").to_pylist()
    assert (record["sample_id"], record["kind"], record["raw"]) == ("twin", "duplicate_id", twin["twin.json"])

    write_tar(tmp_path / "raw" / "a.tar", samples(2, "a"))
    again = deployment.run()
    assert again.success
    assert failed_checks(again) == set()
    owner = {
        i: path.stem
        for path in (storage / "curated").iterdir()
        for i in pq.read_table(path)["sample_id"].to_pylist()
    }
    assert owner["twin"] == "b"
    assert ids_in_outputs(storage)["lance"] == ids_in_outputs(storage)["curated"]
    assert_ledger_balances(storage)


def test_a_mended_shard_does_not_take_an_id_that_another_has_published(
    tmp_path: Path, deploy: Deploy
) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(1, "a"))
    write_tar(tmp_path / "raw" / "b.tar", samples(1, "twin"))
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    write_tar(tmp_path / "raw" / "a.tar", {**samples(1, "a"), **samples(1, "twin")})
    for keys in (["a"], None):
        result = deployment.run(keys, CURATED)
        assert result.success
        assert ("raw_shards", "unique_sample_ids", "a") in failed_checks(result) or keys is None
        owner = {
            path.stem: set(pq.read_table(path)["sample_id"].to_pylist())
            for path in (tmp_path / "storage" / "curated").iterdir()
        }
        assert owner == {"a": {"a000"}, "b": {"twin000"}}


def test_a_torn_record_costs_its_own_shard_only(tmp_path: Path, copied: Deployment) -> None:
    for asset in ("curated_parquet", "lance_table"):
        account(tmp_path / "storage", asset, "p").write_bytes(b"")
    (proofs,) = (tmp_path / "storage" / "proof" / "final_tars").iterdir()
    proofs.write_bytes(b"")
    (tmp_path / "storage" / "proof" / "proof.json").unlink()
    result = copied.run()
    assert result.success
    assert failed_checks(result) == set()
    unchanged = {
        key: "unchanged" in made.metadata for key, made in materialized(result)["curated_parquet"].items()
    }
    assert unchanged == {"p": False, "q": True}
    proof = json.loads((tmp_path / "storage" / "proof" / "proof.json").read_text())
    assert {asset: total["shards"] for asset, total in proof["assets"].items()} == dict.fromkeys(BY_ASSET, 2)


def test_what_a_killed_process_left_goes_also_when_there_is_nothing_else_to_do(
    tmp_path: Path, copied: Deployment
) -> None:
    name_it = "from mm_assets.storage.files import temporary_name as name; print(name('a.parquet'))"
    left = subprocess.run(
        [sys.executable, "-c", name_it], check=True, capture_output=True, text=True
    ).stdout.strip()
    folders = [
        "curated",
        "webdataset/.mm_assets",
        "ledger/raw_shards",
        "ledger/accounts/lance_table",
        "proof/final_tars",
    ]
    folders += ["arrow_cache", "arrow_cache/p"]
    for folder in folders:
        (tmp_path / "storage" / folder / left).write_bytes(b"half")
    (tmp_path / "storage" / "ledger" / "raw_shards" / "p.parquet").unlink()
    result = copied.run()
    assert all("unchanged" in made.metadata for made in materialized(result)["curated_parquet"].values())
    assert list((tmp_path / "storage").rglob("*.tmp")) == []


def test_a_newline_in_a_name_is_part_of_the_name(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "secret" / "outside.tar", samples(1, "outside"))
    write_tar(tmp_path / "raw" / f"x.tar\n{tmp_path}" / "secret" / "outside.tar", samples(1, "inside"))
    deploy(**ALL_IMAGES).run(assets=CURATED)
    published = {
        i
        for path in (tmp_path / "storage" / "curated").iterdir()
        for i in pq.read_table(path)["sample_id"].to_pylist()
    }
    assert published == {"inside000"}


def test_a_shard_may_correct_a_type_that_only_it_has(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {"a.json": document("a", own=1), "a.1.png": PNG})
    write_tar(tmp_path / "raw" / "b.tar", samples(1, "b"))
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run().success
    write_tar(tmp_path / "raw" / "a.tar", {"a.json": document("a", own="one"), "a.1.png": PNG})
    assert deployment.run().success
    table = pq.read_table(tmp_path / "storage" / "curated" / "a.parquet")
    assert table.column("own").to_pylist()[0] == "one"


def test_another_shard_does_not_make_a_sound_one_anew(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "b.tar", {"b.json": document("b", x=1, y=2), "b.1.png": PNG})
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    write_tar(tmp_path / "raw" / "a.tar", {"a.json": document("a", y=2, x=1), "a.1.png": PNG})
    result = deployment.run(assets=CURATED)
    assert {
        key: "unchanged" in made.metadata for key, made in materialized(result)["curated_parquet"].items()
    } == {"a": False, "b": True}


def test_garbage_in_the_place_of_a_good_shard_removes_nothing(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(2, "a"))
    write_tar(tmp_path / "raw" / "b.tar", samples(2, "b"))
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run().success
    (tmp_path / "raw" / "a.tar").write_bytes(b"<html>404</html>")
    result = deployment.run()
    assert not result.success
    assert sorted(materialized(result)["lance_table"]) == ["b"]
    assert ids_in_outputs(tmp_path / "storage")["lance"] == {"a000", "a001", "b000", "b001"}
    assert ("raw_shards", "integrity", "a") in failed_checks(result)
    write_tar(tmp_path / "raw" / "a.tar", {})
    assert deployment.run().success
    assert ids_in_outputs(tmp_path / "storage")["lance"] == {"b000", "b001"}


def test_a_link_that_leads_nowhere_fails_alone(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(2, "a"))
    (tmp_path / "raw" / "b.tar").symlink_to(tmp_path / "nowhere.tar")
    result = deploy(**ALL_IMAGES).run(assets=CURATED)
    assert not result.success
    assert sorted(materialized(result)["curated_parquet"]) == ["a"]


def test_members_without_a_document_are_listed(tmp_path: Path, deploy: Deploy) -> None:
    orphan_rows = {f"stray{n:02d}.png": PNG for n in range(30)}
    write_tar(tmp_path / "raw" / "a.tar", {**samples(1, "a"), **orphan_rows})
    assert deploy(**ALL_IMAGES, MM_MAX_LOSS="1").run().success
    items = lost_items(tmp_path / "storage")
    assert {(i["outcome"], i["kind"], i["source"], i["member"]) for i in items} == {
        ("unreferenced", "unreferenced_member", "a.tar", name) for name in orphan_rows
    }
    assert_ledger_balances(tmp_path / "storage")


def test_members_that_are_no_files_are_told_and_a_json_among_them_is_in_quarantine(
    tmp_path: Path, deploy: Deploy
) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(1, "a"))
    with tarfile.open(tmp_path / "raw" / "a.tar", "a") as tar:
        for name, kind in (("z.json", b"Z"), ("pipe.json", tarfile.FIFOTYPE), ("dev.png", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, data = kind, document("z", images=[]) if kind == b"Z" else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    result = deploy(**ALL_IMAGES).run()
    storage = tmp_path / "storage"
    assert result.success
    assert set(map(frozenset, ids_in_outputs(storage).values())) == {frozenset({"a000", "z"})}
    (record,) = pq.read_table(storage / "quarantine" / "a.parquet").to_pylist()
    assert (record["kind"], record["sample_id"], record["member"]) == (
        "unreadable_member",
        "pipe",
        "pipe.json",
    )
    (stray,) = [i for i in lost_items(storage) if i["outcome"] == "unreferenced"]
    assert (stray["member"], stray["reason"]) == ("dev.png", "a character device: not read as a file")
    (check,) = [
        c for c in result.get_asset_check_evaluations() if c.check_name == "integrity" and c.partition
    ]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (check.metadata["skipped"].value, check.metadata["unreadable"].value) == (1, 1)
    assert_ledger_balances(storage)


def test_a_flipped_bit_in_a_header_costs_one_sample(tmp_path: Path, deploy: Deploy) -> None:
    path = tmp_path / "raw" / "a.tar"
    write_tar(path, samples(100))
    with tarfile.open(path) as tar:
        at, end = tar.getmember("s003.json").offset, tar.getmember("s003.1.png").offset
    data = bytearray(path.read_bytes())
    data[at + 140] ^= 1
    path.write_bytes(data)
    result = deploy(**ALL_IMAGES).run()
    storage = tmp_path / "storage"
    assert result.success
    assert set(map(frozenset, ids_in_outputs(storage).values())) == {
        frozenset(f"s{n:03d}" for n in range(100) if n != 3)
    }
    (record,) = pq.read_table(storage / "quarantine" / "a.parquet").to_pylist()
    assert (record["kind"], record["byte_offset"], record["byte_size"]) == ("damaged_tar", at, end - at)
    assert record["raw"] == bytes(data[at:end])
    (check,) = [
        c for c in result.get_asset_check_evaluations() if c.check_name == "integrity" and c.partition
    ]
    assert (check.passed, check.severity, check.metadata["damage"].value) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        1,
    )
    assert_ledger_balances(storage)


def test_frames_behind_the_last_reference_are_in_the_ledger(tmp_path: Path, deploy: Deploy) -> None:
    tiff = tiff_of(3)
    write_tar(
        tmp_path / "raw" / "a.tar",
        {"t.json": document("t", images=["p0", "p1"], texts=[None, None]), "t.tiff": tiff},
    )
    result = deploy(**ALL_IMAGES).run()
    assert result.success
    (stray,) = lost_items(tmp_path / "storage")
    assert (stray["outcome"], stray["kind"], stray["member"], stray["frame_index"]) == (
        "unreferenced",
        "unreferenced_frame",
        "t.tiff",
        2,
    )
    assert stray["reason"] == "frame 2 of 3 is no image of any sample that was read"
    with tarfile.open(tmp_path / "raw" / "a.tar") as tar:
        assert (stray["byte_offset"], stray["byte_size"]) == (tar.getmember("t.tiff").offset_data, len(tiff))
    assert ("raw_shards", "integrity", "a") in failed_checks(result)
    assert_ledger_balances(tmp_path / "storage")


def test_types_are_reconciled_over_shards_before_anything_is_written(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", {"x.json": document("x", n=1, m=2), "x.1.png": PNG})
    write_tar(
        tmp_path / "raw" / "b.tar", {"y.json": document("y", n=2.5, m="text", extra=True), "y.1.png": PNG}
    )
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    storage = tmp_path / "storage" / "curated"
    schemas = {path.stem: pq.read_schema(path) for path in storage.iterdir()}
    assert {name: schema.field("n").type for name, schema in schemas.items()} == {
        "a": pa.float64(),
        "b": pa.float64(),
    }
    assert {(s.field("m").type, s.field("m").metadata[b"mm_assets:encoding"]) for s in schemas.values()} == {
        (pa.string(), b"json")
    }


def test_a_shard_that_breaks_the_schema_contract_fails_alone(tmp_path: Path, deploy: Deploy) -> None:
    write_tar(tmp_path / "raw" / "a.tar", samples(2, "a"))
    deployment = deploy(**ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    write_tar(tmp_path / "raw" / "b.tar", {"y.json": document("y", n="no number"), "y.1.png": PNG})
    write_tar(tmp_path / "raw" / "c.tar", {"z.json": document("z", n=2.5, added=[1]), "z.1.png": PNG})
    result = deployment.run(assets=CURATED)
    assert not result.success
    assert sorted(materialized(result)["curated_parquet"]) == ["a", "c"]
    assert ("raw_shards", "schema_contract", "b") in failed_checks(result)
    assert ("raw_shards", "schema_contract", "c") not in failed_checks(result)
    evaluation = next(
        e
        for e in result.get_asset_check_evaluations()
        if e.check_name == "schema_contract" and e.partition == "b"
    )
    assert "'n'" in str(evaluation.metadata["refused"].value)

    widened = deploy(**ALL_IMAGES, MM_SCHEMA_CHANGES="widen").run(assets=CURATED)
    assert widened.success
    field = pq.read_schema(tmp_path / "storage" / "curated" / "b.parquet").field("n")
    assert (field.type, field.metadata[b"mm_assets:encoding"]) == (pa.string(), b"json")


def test_checks_of_raw_shards_run_alone(
    tmp_path: Path, deploy: Deploy, three_bad: tuple[Deployment, dg.ExecuteInProcessResult]
) -> None:
    result = deploy(three_bad[0].raw).check("raw_shards", "integrity")
    evaluations = {e.partition: e for e in result.get_asset_check_evaluations()}
    assert {key: e.passed for key, e in evaluations.items()} == {"bad": False, "good": True, None: False}
    assert evaluations["bad"].severity == dg.AssetCheckSeverity.WARN
    assert not (tmp_path / "storage" / "curated").exists()
