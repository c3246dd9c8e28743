"""JSON lines and zips in a bucket, whose images lie in tars and folders of another place in it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.live.s3_server import S3Server

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]

(_, FIRST), (_, SECOND), (_, THIRD) = (picture(number) for number in (1, 14, 0))


def test_a_run(s3: S3Server, tmp_path: Path) -> None:
    bucket, fs = s3.new_bucket(), s3.filesystem()
    url = "http://example.org/1"
    document = {"sample_id": "a", "images": [url, "deep/2.jpg", "../raw/b.zip", "none.jpg"], "texts": []}
    fs.pipe_file(f"{bucket}/raw/a.jsonl", json.dumps(document).encode())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x/metadata.jsonl", json.dumps({"file_name": "3.png", "text": "three"}))
        archive.writestr("x/3.png", THIRD)
    fs.pipe_file(f"{bucket}/raw/b.zip", packed.getvalue())
    note = {"url": url, "key": "0", "status": "success"}
    fs.put_file(
        str(make_tar(tmp_path / "0.tar", [("0.jpg", FIRST), ("0.json", note)])), f"{bucket}/tars/0.tar"
    )
    fs.pipe_file(f"{bucket}/images/deep/2.jpg", SECOND)
    done = run(
        "run",
        **s3.env,
        MM_RAW_SHARDS=f"s3://{bucket}/raw/a.jsonl s3://{bucket}/raw/b.zip",
        MM_IMAGES_FROM=f"s3://{bucket}/tars/*.tar s3://{bucket}/images",
        MM_STORAGE=str(tmp_path / "storage"),
        DAGSTER_HOME=str(tmp_path / "home"),
        MM_ON_MATERIALIZE_ERROR="warn",
    )
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "storage" / "filtered" / "a.parquet").to_pylist()
    images = [row for row in rows if row["modality"] == "image"]
    assert [row["binary_content"] for row in images] == [FIRST, SECOND, None, None]
    assert [json.loads(row["source_ref"])["path"] for row in images[:2]] == [
        f"s3://{bucket}/tars/0.tar",
        f"s3://{bucket}/images/deep/2.jpg",
    ]
    assert all(row["materialize_error"].startswith("dangling reference") for row in images[2:])
    rows = pq.read_table(tmp_path / "storage" / "filtered" / "b.parquet").to_pylist()
    assert [(row["text_content"], row["binary_content"]) for row in rows[1:]] == [
        ("three", None),
        (None, THIRD),
    ]
