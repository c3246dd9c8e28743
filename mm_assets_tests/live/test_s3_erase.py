"""``mm-assets erase`` on a real S3 server, raw shards too: no object has anything of the sample left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm_assets.accounting.erasures import ErasureStore
from mm_assets.accounting.needles import Needles
from mm_assets.accounting.scan import scan
from mm_assets.pool.workers import WorkerPool
from mm_assets.storage import storage_options_from_env
from mm_assets_tests.cli import commands
from mm_assets_tests.formats.brute_force import files_with, versions_with
from mm_assets_tests.formats.raw_tars import tar_members
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]


def test_scan_finds_it_in_objects_of_any_name(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    bucket, store = s3.new_bucket(), s3.filesystem()
    names = [
        "plain.bin",
        "a/b c.bin",
        "a/50%25.bin",
        "a/50%.bin",
        "a/#1?.bin",
        "ä/ö.bin",
        "a/x+y=z@1.bin",
        "a/.e",
    ]
    text = "words that are to be found, wherever they are"
    with_it, without = f"before {text} after".encode(), f"before {text[::-1]} after".encode()
    for name in names:
        store.pipe_file(f"{bucket}/in/{name}", with_it)
    store.pipe_file(f"{bucket}/in/other.bin", without)
    store.pipe_file(f"{bucket}/in/empty.bin", b"")
    needles = Needles.of_values([text])
    with WorkerPool(1) as pool:
        found = scan([f"s3://{bucket}/in"], needles, pool)
        assert found.paths() == sorted(f"s3://{bucket}/in/{name}" for name in names)
        assert found.unread == {}
        assert found.files == len(names) + 2
        # What a client has read before is read again, as long as it was.
        store.pipe_file(f"{bucket}/in/plain.bin", without)
        store.pipe_file(f"{bucket}/in/other.bin", with_it)
        names[0] = "other.bin"
        again = scan([f"s3://{bucket}/in"], needles, pool)
        assert again.paths() == sorted(f"s3://{bucket}/in/{name}" for name in names)


def test_a_sample_leaves_every_object(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    raw, bucket = s3.new_bucket(), s3.new_bucket()
    store = s3.filesystem()
    versioned = {"Bucket": bucket, "VersioningConfiguration": {"Status": "Enabled"}}
    store.call_s3("put_bucket_versioning", **versioned)
    shards = make_shards(tmp_path / "raw", members=2, pdf=1, samples=3)
    for shard in shards:
        store.put_file(str(shard), f"{raw}/in/{shard.name}")
    home = tmp_path / "home"
    home.mkdir()
    settings = {
        **s3.env,
        "MM_RAW_SHARDS": f"s3://{raw}/in/",
        "MM_STORAGE": f"s3://{bucket}/out",
        "DAGSTER_HOME": str(home),
        "MM_WORKERS": "1",
    }
    assert commands.run("run", **settings).returncode == 0
    assert commands.run("tag", "v1", **settings).returncode == 0
    members = tar_members(shards[0])
    sample = next(name for name in members if name.endswith(".json")).removesuffix(".json")
    document = json.loads(members[f"{sample}.json"])
    pictures = [
        data for name, data in members.items() if name.startswith(f"{sample}.") and name[-4:] != "json"
    ]
    pieces = [data[at : at + 48] for data in pictures for at in (len(data) // 3, len(data) // 2)]
    needles = [sample.encode(), document["url"].encode(), *pieces]

    def found() -> list[str]:
        copied = tmp_path / "copied"
        for name in store.find(bucket) + store.find(raw):
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            (copied / name).write_bytes(store.cat_file(name))
        options = storage_options_from_env(s3.env)
        table = versions_with(f"s3://{bucket}/out/lance/items.lance", needles, options)
        files = [*files_with(copied, needles), *files_with(home, needles), *table]
        for path in sorted(copied.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        return files

    assert len(found()) > 10
    done = commands.run("erase", "--sample-id", sample, "--drop-tags", "--raw", **settings)
    assert done.returncode == 0, done
    assert found() == []
    (erasure,) = ErasureStore(f"s3://{bucket}/out").all()
    said = [line for line in erasure.scan["out_of_scope"] if line.startswith("bucket ")]
    assert said == [f"bucket {bucket}: keeps earlier versions of objects (enabled): remove them there"]
    proven = commands.ok("prove", **settings).splitlines()[-1]
    assert proven.startswith("proven: every item of 3 shards is in 5 outputs")
    assert commands.run("run", "--changed", **settings).stdout == "nothing to do\n"
