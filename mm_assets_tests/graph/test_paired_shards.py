"""Raw shards whose modalities are separate tars, through the real graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets_tests.formats.paired.raw.modalities import (
    embedding,
    embeddings_of,
    images_of,
    make_modalities,
    npy,
    png,
    texts_of,
)
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import CURATED, Deployment, failed_shard_checks, materialized

Deploy = Callable[..., Deployment]
ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
KEYS = [f"doc/{number}" for number in range(4)]
OTHERS = [f"page{number}" for number in range(3)]


def _shards(lacking: str | None = None) -> dict[str, dict[str, list[tuple[str, object]]]]:
    """Shard ``a`` is whole, in shard ``b`` the texts lack a key."""
    with_text = [key for key in OTHERS if key != lacking]
    return {
        "a": {"images": [*images_of(KEYS)], "texts": [*texts_of(KEYS)], "emb": [*embeddings_of(KEYS)]},
        "b": {
            "images": [*images_of(OTHERS)],
            "texts": [*texts_of(with_text)],
            "emb": [*embeddings_of(OTHERS)],
        },
    }


def _rows(storage: Path, shard: str, asset: str = "curated") -> list[dict[str, object]]:
    return pq.read_table(storage / asset / f"{shard}.parquet").to_pylist()


def test_modalities_become_one_sample_and_a_lacking_key_is_accounted_for(
    tmp_path: Path, deploy: Deploy
) -> None:
    raw = make_modalities(tmp_path / "raw", _shards(lacking="page1"))
    storage = tmp_path / "storage"
    deployment = deploy(raw=raw, **ALL_IMAGES)
    result = deployment.run()
    assert result.success
    assert set(materialized(result)["lance_table"]) == {"a", "b"}
    assert failed_shard_checks(result) == {("raw_shards", "integrity", "b"), ("quarantine", "empty", "b")}

    rows = _rows(storage, "a")
    assert [(row["sample_id"], row["position"], row["modality"]) for row in rows] == [
        (key, position, modality)
        for key in KEYS
        for position, modality in ((-1, "metadata"), (0, "image"), (1, "text"), (2, "image"))
    ]
    assert [row["text_content"] for row in rows if row["modality"] == "text"] == [
        f"text of {key}" for key in KEYS
    ]
    assert [row["binary_content"] for row in rows if row["modality"] == "image"] == [
        data for _, data in images_of(KEYS)
    ]
    metadata = [row for row in rows if row["modality"] == "metadata"]
    assert [(row["lang"], row["words"], row["emb"]) for row in metadata] == [
        ("en", 3, embedding(n).tolist()) for n in range(4)
    ]
    schema = pq.read_schema(storage / "curated" / "a.parquet")
    assert schema.field("emb").type == pa.list_(pa.float32())
    assert '"path": "images/a.tar", "member": "doc/0.0.png"' in str(rows[1]["source_ref"])

    assert {row["sample_id"] for row in _rows(storage, "b")} == {"page0", "page2"}
    (record,) = pq.read_table(storage / "quarantine" / "b.parquet").to_pylist()
    assert (record["sample_id"], record["kind"]) == ("page1", "missing_modality")
    for member in ("page1.0.png", "page1.2.png", "page1.emb.npy", "texts/b.tar"):
        assert member in record["message"]
    assert (record["source_uri"], record["member"], record["raw"]) == (
        "images/b.tar",
        "page1.0.png",
        images_of(OTHERS)[2][1],
    )

    make_tar(tmp_path / "raw" / "texts" / "b.tar", texts_of(OTHERS))
    mended = deployment.run()
    assert failed_shard_checks(mended) == set()
    assert {row["sample_id"] for row in _rows(storage, "b", "filtered")} == set(OTHERS)
    assert list((storage / "quarantine").glob("*.parquet")) == []


def test_second_run_writes_nothing(tmp_path: Path, deploy: Deploy) -> None:
    raw = make_modalities(tmp_path / "raw", _shards())
    deployment = deploy(raw=raw, **ALL_IMAGES)
    assert deployment.run(assets=CURATED).success
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "storage").glob("*/*.parquet")}
    assert files and deployment.run(assets=CURATED).success
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "storage").glob("*/*.parquet")} == files


@pytest.mark.parametrize(("policy", "lands"), [("partial", ["a", "b"]), ("error", ["a"])])
def test_other_policies(tmp_path: Path, deploy: Deploy, policy: str, lands: list[str]) -> None:
    raw = make_modalities(tmp_path / "raw", _shards(lacking="page1"))
    deployment = deploy(raw=raw, **ALL_IMAGES, MM_MISSING_KEYS=policy)
    result = deployment.run(assets=CURATED)
    assert sorted(materialized(result)["curated_parquet"]) == lands
    if policy == "error":
        said = deployment.log(result)
        assert "key mismatch across modalities: 'page1' is in images/b.tar, not in texts/b.tar" in said
        return
    rows = [row for row in _rows(tmp_path / "storage", "b") if row["sample_id"] == "page1"]
    assert [(row["position"], row["modality"]) for row in rows] == [
        (-1, "metadata"),
        (0, "image"),
        (2, "image"),
    ]
    assert failed_shard_checks(result) == set()


def test_a_missing_tar_fails_its_shard_and_a_cut_one_costs_what_is_cut(
    tmp_path: Path, deploy: Deploy
) -> None:
    shards = _shards()
    raw = make_modalities(tmp_path / "raw", {**shards, "d": {"images": images_of(["x"])}})
    cut = tmp_path / "raw" / "emb" / "b.tar"
    cut.write_bytes(cut.read_bytes()[:1600])  # within the second member
    deployment = deploy(raw=raw, **ALL_IMAGES)
    result = deployment.run(assets=[*CURATED, "quarantine"])
    assert sorted(materialized(result)["curated_parquet"]) == ["a", "b"]
    assert "no tar 'd' of modality 'texts'" in deployment.log(result)
    assert {row["sample_id"] for row in _rows(tmp_path / "storage", "b")} == {"page0"}
    found = pq.read_table(tmp_path / "storage" / "quarantine" / "b.parquet").to_pylist()
    assert sorted((record["kind"], record["sample_id"], record["source_uri"]) for record in found) == [
        ("missing_modality", "page1", "images/b.tar"),
        ("missing_modality", "page2", "images/b.tar"),
        ("truncated_tar", "emb/b.tar: bytes 1024 to 1600", "emb/b.tar"),
    ]


def test_what_cannot_be_read_of_a_sample_costs_that_sample(tmp_path: Path, deploy: Deploy) -> None:
    fine = {
        "images": [("ok.png", png(1, 2, 3))],
        "texts": [("ok.txt", b"fine")],
        "emb": [("ok.npy", npy([1, 2]))],
    }
    bad = {
        "images": [(f"{key}.png", png(1, 2, 3)) for key in ("json", "utf8", "npy", "pickle")],
        "texts": [
            ("json.json", b'{"a": '),
            ("utf8.txt", b"\xff\xfe"),
            ("npy.txt", b"x"),
            ("pickle.txt", b"x"),
        ],
        "emb": [
            ("json.npy", npy([1])),
            ("utf8.npy", npy([1])),
            ("npy.npy", b"no array"),
            ("pickle.npy", npy([{}], allow_pickle=True)),
        ],
    }
    raw = make_modalities(tmp_path / "raw", {"x": {name: [*fine[name], *bad[name]] for name in fine}})
    deployment = deploy(raw=raw, **ALL_IMAGES, MM_MAX_LOSS="1")
    assert deployment.run(assets=[*CURATED, "quarantine"]).success
    storage = tmp_path / "storage"
    assert {row["sample_id"] for row in _rows(storage, "x")} == {"ok"}
    records = pq.read_table(storage / "quarantine" / "x.parquet").to_pylist()
    assert {record["sample_id"]: record["kind"] for record in records} == {
        "json": "bad_json",
        "utf8": "not_utf8",
        "npy": "bad_layout",
        "pickle": "bad_layout",
    }
    originals = {record["sample_id"]: (record["source_uri"], record["raw"]) for record in records}
    assert originals["json"] == ("texts/x.tar", b'{"a": ')
    assert originals["utf8"] == ("texts/x.tar", b"\xff\xfe")
    assert originals["npy"] == ("emb/x.tar", b"no array")
