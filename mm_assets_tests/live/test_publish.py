"""Publishing to a real S3 server, and to a stand-in for the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets.storage.small_files import unseal
from mm_assets_tests.cli.commands import environment, run, run_process
from mm_assets_tests.live.hub_stand_in import LFS_SUFFIXES, HubStandIn, hub_stand_in
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = pytest.mark.live
NAME = "hf://datasets/user/set"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards through the whole graph, with a filter."""
    folder = tmp_path_factory.mktemp("made")
    make_shards(folder / "raw", members=1, pdf=1, samples=3)
    settings = {"MM_RAW_SHARDS": str(folder / "raw"), "MM_STORAGE": str(folder / "storage")}
    settings |= {"MM_MIN_ASPECT_RATIO": "1", "MM_WORKERS": "1", "DAGSTER_HOME": str(folder / "home")}
    done = run("run", **settings)
    assert done.returncode == 0, done.stderr
    return folder / "storage"


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with hub_stand_in() as server:
        yield server


def files(folder: Path, *names: str) -> dict[str, bytes]:
    paths = (path for name in names for path in (folder / name).rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {path: data for path, data in found.items() if "/.mm_assets/" not in path}


def record_of(storage: Path, target: str) -> dict[str, object]:
    records = [unseal(path.read_bytes()) for path in (storage / "ledger" / "published").iterdir()]
    return next(record for record in records if record["target"] == target)


@pytest.mark.clients
def test_on_s3_what_is_there_is_proven_by_its_digests(storage: Path, s3: S3Server) -> None:
    url = f"s3://{s3.new_bucket()}/sets/one"
    first = run("publish", url, "--storage", storage, **s3.env)
    assert first.returncode == 0, first.stderr
    store = s3.filesystem()
    there = {path.removeprefix(url[5:] + "/"): store.cat_file(path) for path in store.find(url[5:])}
    here = files(storage, "filtered", "webdataset")
    cards = {"filtered/README.md", "webdataset/README.md"}
    assert there.keys() == here.keys() | cards
    assert all(there[path] == here[path] for path in there.keys() - cards)
    assert first.stdout.endswith(f"{len(there)} copied, all equal (0 read back)\n"), (
        "the store tells each MD5"
    )
    again = run("publish", url, "--storage", storage, **s3.env)
    assert again.stdout.endswith("0 copied, all equal (0 read back)\n")
    listed = record_of(storage, url)["files"]
    assert isinstance(listed, list)
    assert {f["path"]: f["digests"]["md5"] for f in listed} == {
        path: hashlib.md5(data).hexdigest() for path, data in there.items()
    }


@pytest.mark.clients
def test_on_s3_a_large_file_in_parts_is_read_back(storage: Path, s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3.new_bucket()}/parts"
    large = storage / "quarantine" / "large.parquet"
    large.parent.mkdir(exist_ok=True)
    large.write_bytes(os.urandom(40 << 20))
    try:
        done = run("publish", url, "--storage", storage, "--outputs", "quarantine", **s3.env)
        assert done.stdout.endswith("all equal (1 read back)\n"), done.stderr
        other = bytearray(large.read_bytes())
        other[30 << 20] ^= 1
        (tmp_path / "x").write_bytes(other)
        s3.filesystem().put_file(str(tmp_path / "x"), f"{url[5:]}/quarantine/large.parquet")
        again = run("publish", url, "--storage", storage, "--outputs", "quarantine", **s3.env)
        assert "1 copied, all equal (1 read back)" in again.stdout, again.stderr
    finally:
        large.unlink()


@pytest.mark.clients
def test_the_report_on_a_storage_on_s3_is_that_on_a_folder(storage: Path, s3: S3Server) -> None:
    bucket = s3.new_bucket()
    s3.filesystem().put(str(storage), f"{bucket}/st", recursive=True)
    done = run("report", "--storage", f"s3://{bucket}/st", **s3.env)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"s3://{bucket}/st/report/index.html")
    there = s3.filesystem().cat_file(f"{bucket}/st/report/index.html").decode()
    here = run("report", "--storage", storage, "--output", "-").stdout
    minute = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    assert minute.sub("", there) == minute.sub("", here)


@pytest.mark.clients
def test_a_storage_on_s3_is_published_to_a_folder(storage: Path, s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.new_bucket()
    s3.filesystem().put(str(storage / "scores"), f"{bucket}/st/scores", recursive=True)
    s3.filesystem().put(str(storage / "ledger"), f"{bucket}/st/ledger", recursive=True)
    done = run("publish", tmp_path / "pub", "--storage", f"s3://{bucket}/st", "--outputs", "scores", **s3.env)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "pub", "scores") == files(storage, "scores")


def test_to_a_stand_in_of_the_hub_goes_a_private_data_set(storage: Path, hub: HubStandIn) -> None:
    done = run_process("publish", NAME, "--storage", storage, env=environment(**hub.environment))
    assert done.returncode == 0, done.stderr
    there, here = hub.data_sets["user/set"], files(storage, "filtered", "webdataset")
    cards = {"README.md", "filtered/README.md", "webdataset/README.md"}
    assert there.keys() == here.keys() | cards and hub.private["user/set"]
    assert all(there[path] == here[path] for path in there.keys() - cards)
    assert done.stdout == (
        f"{NAME}: {len(there)} files of {sum(map(len, there.values()))} bytes, {len(there)} copied, "
        "all equal (0 read back)\n"
    )
    added = [path for _, paths, _ in hub.commits for path in paths]
    assert added[-1] == "README.md" and hub.commits[0][1][0].startswith("filtered/")
    index = next(n for n, (_, paths, _) in enumerate(hub.commits) if "webdataset/index.json" in paths)
    tars = [n for n, (_, paths, _) in enumerate(hub.commits) if any(p.endswith(".tar") for p in paths)]
    assert max(tars) < index
    card = there["README.md"].decode()
    assert 'path: "filtered/*.parquet"' in card and "| final_tars |" in card
    assert record_of(storage, NAME)["state"] == "proven"


def test_a_stand_in_of_the_hub_that_was_cut_gets_the_rest(storage: Path, hub: HubStandIn) -> None:
    hub.fails_after = 2
    cut = run_process("publish", NAME, "--storage", storage, env=environment(**hub.environment))
    assert cut.returncode == 1 and len(cut.stderr.splitlines()) == 1, cut.stderr
    assert "hf://datasets/user/set" in cut.stderr and len(hub.uploaded) == 2
    hub.fails_after = None
    assert (
        run_process("publish", NAME, "--storage", storage, env=environment(**hub.environment)).returncode == 0
    )
    large = {path for path in hub.data_sets["user/set"] if path.endswith(LFS_SUFFIXES)}
    assert len(hub.uploaded) == len(set(hub.uploaded)) == len(large), "no large file is sent twice"
    again = run_process("publish", NAME, "--storage", storage, env=environment(**hub.environment))
    assert "0 copied" in again.stdout


def test_what_is_no_more_leaves_a_stand_in_of_the_hub_when_asked(storage: Path, hub: HubStandIn) -> None:
    hub.data_sets["user/set"] = {"filtered/old.parquet": b"x", "notes.txt": b"mine", ".gitattributes": b"y"}
    hub.private["user/set"] = False
    refused = run_process("publish", NAME, "--storage", storage, env=environment(**hub.environment))
    assert refused.returncode == 1 and "filtered/old.parquet: there, and not among" in refused.stderr
    assert hub.commits == []
    done = run_process("publish", NAME, "--storage", storage, "--delete", env=environment(**hub.environment))
    assert done.returncode == 0 and done.stdout.startswith("removed filtered/old.parquet\n"), done.stderr
    assert {"notes.txt", ".gitattributes"} < hub.data_sets["user/set"].keys()
    assert [removed for _, _, removed in hub.commits if removed] == [["filtered/old.parquet"]]


def test_a_wrong_token_of_a_stand_in_of_the_hub_is_one_line(storage: Path, hub: HubStandIn) -> None:
    wrong = environment(**{**hub.environment, "HF_TOKEN": "hf_wrong"})
    done = run_process("publish", NAME, "--storage", storage, env=wrong)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "hf_wrong" not in done.stderr
