"""Training sets on a real S3 server are those of local disks, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.formats.names import format_of
from mm_assets.storage.stamps import sole_writer
from mm_assets_tests.cli.commands import fine, only_line, run
from mm_assets_tests.live.ray_nodes import ray_nodes
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.training_set.sets import make_source, tree

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]

SPLIT = ("--split", "train=0.7,validation=0.3", "--shards", 4)


@pytest.fixture(scope="module")
def made(s3: S3Server, shared_workers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_source(folder / "web", "web", shards=3, size=40_000)
    for kind in ("webdataset", "parquet", "mds", "arrow_cache"):
        fine(run("reshard", folder / "web", folder / kind / "set", "--to", kind, *SPLIT, **s3.env))
    return folder


@pytest.mark.parametrize("kind", ["webdataset", "parquet", "mds", "arrow_cache"])
def test_from_bucket_to_bucket(s3: S3Server, made: Path, tmp_path: Path, kind: str) -> None:
    bucket = s3.new_bucket()
    s3.filesystem().put(str(made / "web"), f"{bucket}/web", recursive=True)
    command = ("reshard", f"s3://{bucket}/web", f"s3://{bucket}/set", "--to", kind, *SPLIT)
    fine(run(*command, "--prove", **s3.env))
    s3.filesystem().get(f"{bucket}/set", str(tmp_path / "set"), recursive=True)
    # Notes know by etag or time which tars they are about; in a bucket, files of a cache have other names.
    differing = (".arrow", "_metadata.json") if kind == "arrow_cache" else ()
    found, expected = (
        {
            name: data
            for name, data in tree(folder).items()
            if not name.startswith(".training/") and not name.endswith(differing)
        }
        for folder in (tmp_path / "set", made / kind / "set")
    )
    assert found == expected
    assert fine(run("verify", f"s3://{bucket}/set", made / "web", **s3.env)).splitlines()[-1] == "equal"
    # Once more with one shard less: only that is made.
    paths = s3.filesystem().find(f"{bucket}/set")
    written = format_of(kind).written
    (lost,) = [
        path for path in paths if "/train-000001" in path and path.endswith(written) and ".mm_" not in path
    ]
    s3.filesystem().rm_file(lost)
    again = fine(run(*command, **s3.env))
    assert "there already, of the same samples: 3 shards" in again


@pytest.mark.clients
def test_another_plan_at_the_same_time_is_refused(
    s3: S3Server, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    target = f"s3://{s3.new_bucket()}/set"
    with sole_writer(f"{target}/.training") as is_ours:
        assert is_ours
        line = only_line(run("reshard", made / "web", target, *SPLIT, "--overwrite", **s3.env))
        assert line == f"{target}: another process makes a training set there now"
    fine(run("reshard", made / "web", target, *SPLIT, **s3.env))
    assert not [path for path in s3.filesystem().find(target) if "lock" in path]


@pytest.mark.live
@pytest.mark.clients
def test_on_ray_from_bucket_to_bucket_it_goes_on(s3: S3Server, made: Path, tmp_path: Path) -> None:
    bucket, store = s3.new_bucket(), s3.filesystem()
    store.put(str(made / "web"), f"{bucket}/web", recursive=True)
    command = ("reshard", f"s3://{bucket}/web", f"s3://{bucket}/set", *SPLIT, "--prove")
    with ray_nodes(s3.env) as nodes:
        fine(run(*command, **s3.env, **nodes.settings))
        for name in ("plan.parquet", "train-000001.tar", ".training/train-000001.json"):  # as if it was ended
            store.rm_file(f"{bucket}/set/{name}")
        again = fine(run(*command, **s3.env, **nodes.settings))
    assert "there already, of the same samples: 3 shards" in again and "proven equal to the sources" in again
    store.get(f"{bucket}/set", str(tmp_path / "set"), recursive=True)
    found, expected = (
        {name: data for name, data in tree(folder).items() if not name.startswith(".training/")}
        for folder in (tmp_path / "set", made / "webdataset" / "set")
    )
    assert found == expected
