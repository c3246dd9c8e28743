"""Duplicates where raw shards and storage are on a real S3 server: found, dropped, and found anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm_assets.formats.registry import reader_for
from mm_assets_tests.cli import commands
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.live.s3_server import S3Server

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]


def test_of_equal_images_one_stays_and_another_one_once_that_is_retired(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    raw, bucket = s3.new_bucket(), s3.new_bucket()
    storage = f"s3://{bucket}/out"
    for name in "abc":
        document = {"texts": [f"text of {name}", None], "images": [None, f"{name}.png"]}
        tar = make_tar(tmp_path / f"{name}.tar", [(f"{name}.json", document), (f"{name}.png", picture(0)[1])])
        s3.filesystem().put_file(str(tar), f"{raw}/in/{name}.tar")
    settings = {
        **s3.env,
        "MM_RAW_SHARDS": f"s3://{raw}/in/",
        "MM_STORAGE": storage,
        "MM_DEDUP_IMAGES": "exact",
        "MM_DEDUP_DOCUMENTS": "near",
        "MM_WORKERS": "1",
        "DAGSTER_HOME": str(tmp_path / "home"),
    }

    def with_images() -> set[str]:
        batches = reader_for("parquet", f"{storage}/filtered")
        rows = [row for batch in batches for row in batch.data.to_pylist()]
        return {row["sample_id"] for row in rows if row["modality"] == "image"}

    told = commands.ok("run", **settings)
    assert "images: 2 copies of 3 images (66.7%), 2 exact and 0 near, in 1 cluster" in told
    assert with_images() == {"a"}
    found = s3.filesystem().find(f"{bucket}/out/ledger/statistics/duplicates")
    assert [path.rpartition("/")[2] for path in found] == ["index.parquet", "b.parquet", "c.parquet"]
    assert commands.ok("run", **settings).startswith("nothing to do")

    s3.filesystem().rm_file(f"{raw}/in/a.tar")
    commands.ok("retire", **settings)
    commands.ok("run", **settings)
    assert with_images() == {"b"}
    proof = json.loads(s3.filesystem().cat_file(f"{bucket}/out/proof/proof.json"))
    assert proof
