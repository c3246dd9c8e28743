"""Traces of a sample in a bucket: the same as on disk."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mm_assets.accounting.erasures import DenyList, Entry, Erasure
from mm_assets.accounting.scan import scan
from mm_assets.accounting.traces import find, stale_outputs, without_shared
from mm_assets_tests.accounting.test_scan import Here
from mm_assets_tests.cli.commands import run
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]


def ids_in(folder: Path) -> list[str]:
    """The ids of a raw shard."""
    with tarfile.open(folder / "raw" / "web-00000.tar") as tar:
        return [name.removesuffix(".json") for name in tar.getnames() if name.endswith(".json")]


def test_sample_in_a_bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=1, samples=3)
    (tmp_path / "home").mkdir()
    local = str(tmp_path / "storage")
    places = {
        "MM_RAW_SHARDS": str(tmp_path / "raw"),
        "MM_STORAGE": local,
        "DAGSTER_HOME": str(tmp_path / "home"),
    }
    assert run("run", MM_SCORES="sha256", **places).returncode == 0
    bucket = s3.new_bucket()
    s3.filesystem().put(f"{local}/", f"{bucket}/storage/", recursive=True)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    remote = f"s3://{bucket}/storage"
    sample_id = ids_in(tmp_path)[0]
    deny = DenyList.of([Erasure.begin([Entry.of("sample_id", sample_id)])])
    stale = stale_outputs(local)
    found = find(remote, deny, Here(), stale=stale)
    assert found == find(local, deny, Here(), stale=stale)
    # The files of a copy have other times: what was made of them may be stale, and is read, too.
    assert {sample.sample_id for sample in find(remote, deny, Here()).samples} == {sample_id}
    assert [sample.sample_id for sample in found.samples] == [sample_id]
    needles = without_shared(remote, found, Here())
    assert needles == without_shared(local, found, Here())
    there, here = (scan([root], needles, Here()) for root in (remote, local))
    assert not there.unread
    assert (there.files, there.nbytes) == (here.files, here.nbytes)
    assert {(o.path.removeprefix(remote), *o[1:]): times for o, times in there.occurrences.items()} == {
        (o.path.removeprefix(local), *o[1:]): times for o, times in here.occurrences.items()
    }
    assert {path.removeprefix(remote).split("/")[1] for path in there.paths()} >= {
        "arrow_cache",
        "curated",
        "filtered",
        "lance",
        "ledger",
        "scores",
        "webdataset",
    }
