"""The S3 store of the live tests is a real one: it keeps objects, serves ranges, knows its keys, and goes
away.
"""

import os

import pytest
import s3fs

from mm_assets_tests.live.s3_server import S3Server, s3_server

pytestmark = pytest.mark.clients


def test_put_get_range_and_list(s3: S3Server) -> None:
    store, bucket = s3.filesystem(), s3.new_bucket()
    data = os.urandom(6 * 2**20)
    with store.open(f"{bucket}/a b/ü#1.bin", "wb", block_size=5 * 2**20) as file:  # two parts
        file.write(data)
    assert store.cat_file(f"{bucket}/a b/ü#1.bin") == data
    assert (
        store.cat_file(f"{bucket}/a b/ü#1.bin", start=5 * 2**20 - 7, end=5 * 2**20 + 7)
        == data[-(2**20) - 7 :][:14]
    )
    assert store.find(bucket) == [f"{bucket}/a b/ü#1.bin"]


def test_environment_is_enough(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    store = s3fs.S3FileSystem(skip_instance_cache=True)
    store.pipe_file(f"{s3.bucket}/by-environment", b"x")
    assert store.info(f"{s3.bucket}/by-environment")["size"] == 1


def test_wrong_secret_is_refused(s3: S3Server) -> None:
    options = {"endpoint_url": s3.endpoint}
    store = s3fs.S3FileSystem(key=s3.key, secret="wrong", client_kwargs=options, skip_instance_cache=True)
    with pytest.raises(PermissionError):
        store.cat_file(f"{s3.bucket}/warm-up")


def test_nothing_is_left_behind() -> None:
    with s3_server() as server:
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
