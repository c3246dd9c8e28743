"""MM_FILTERED=reference with storage on a real S3 server: the same rows and the same delivered outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.formats.registry import reader_for
from mm_assets_tests.cli import commands
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]


def test_references_on_s3(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    make_shards(tmp_path / "raw", members=1, pdf=1)
    bucket, found, images = s3.new_bucket(), {}, {}
    for way in ("copy", "reference"):
        settings = {
            **s3.env,
            "MM_RAW_SHARDS": str(tmp_path / "raw"),
            "MM_STORAGE": f"s3://{bucket}/{way}",
            "MM_FILTERED": way,
            "MM_MIN_ASPECT_RATIO": "0.9",
            "MM_WORKERS": "1",
            "DAGSTER_HOME": str(tmp_path / f"home-{way}"),
        }
        commands.ok("run", **settings)
        assert json.loads(s3.filesystem().cat_file(f"{bucket}/{way}/proof/proof.json"))["is_equal"] is True
        tars = s3.filesystem().find(f"{bucket}/{way}/webdataset", detail=True)
        found[way] = {path.partition(way)[2]: info["ETag"] for path, info in tars.items()}
        tables = [batch.data for batch in reader_for("parquet", f"s3://{bucket}/{way}/filtered")]
        images[way] = pa.concat_tables(tables, promote_options="default")
    assert found["copy"] == found["reference"]
    assert images["copy"].equals(images["reference"])
    assert images["copy"]["binary_content"].null_count < images["copy"].num_rows
    copied, referred = (s3.filesystem().du(f"{bucket}/{way}/filtered") for way in ("copy", "reference"))
    assert referred < copied / 10
    s3.filesystem().rm_file(f"{bucket}/reference/curated/web-00000.parquet")
    lost = commands.run(
        "convert", f"s3://{bucket}/reference/filtered", tmp_path / "out", "--to", "parquet", **s3.env
    )
    assert lost.returncode == 1
    assert f"its images lie in s3://{bucket}/reference/curated/web-00000.parquet: no such file" in lost.stderr
