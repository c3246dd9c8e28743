"""``mm-assets retire``: the outputs of raw shards that are gone leave every output, and nothing else does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import lance
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from mm_assets.accounting import OUTPUTS
from mm_assets.accounting.proof import ProofStore
from mm_assets.definitions import build_definitions
from mm_assets.formats.lance.table import maintain
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.instance_queries import launch_backfill
from mm_assets.storage.small_files import unseal
from mm_assets_tests.cli import commands
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import Deployment, prove, write_tar
from mm_assets_tests.quick_instance import quick_instance

Deploy = Callable[..., Deployment]


def _write(raw: str, name: str, *ids: str) -> None:
    members: dict[str, bytes] = {}
    for number, sample in enumerate(ids):
        document = {"texts": [f"text of {sample}", None], "images": [None, f"{sample}.png"], "n": number}
        members |= {f"{sample}.json": json.dumps(document).encode(), f"{sample}.png": picture(0)[1]}
    write_tar(Path(raw, f"{name}.tar"), {**members, f"{name}-bad.json": b"{no json"})


def _files(storage: str) -> dict[str, bytes]:
    """All files but those of the table, and of the index of tars: a copy has other times than that says."""
    found = {
        str(path.relative_to(storage)): path.read_bytes()
        for path in Path(storage).rglob("*")
        if path.is_file() and "items.lance" not in path.parts and path.parts[-3:-1] != ("index", "tars")
    }
    return {name: data for name, data in found.items() if name != "webdataset/.mm_assets/lock"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three shards, each with a sample in quarantine; one is in a folder, one has an odd name."""
    folder = tmp_path_factory.mktemp("three")
    raw = str(folder / "raw")
    Path(raw, "sub").mkdir(parents=True)
    _write(raw, "a", "a1", "a2")
    _write(raw, "b.x y", "b1", "b2")
    _write(raw, "sub/c", "c1")
    _write(raw, "sub/d", "d1")
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        deployment = Deployment(raw, str(folder / "storage"), instance, {"MM_WORKERS": "1"})
        assert deployment.run().success
        assert prove(deployment)[:2] == (True, {})
        yield deployment


@pytest.fixture
def fresh(three: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    """A copy, under a Dagster that has its partitions and no events."""
    with quick_instance(tmp_path / "home") as instance:
        yield replace(three.copied(tmp_path), instance=instance)


def _samples(storage: str) -> set[str]:
    return set(lance.dataset(f"{storage}/lance/items.lance").to_table(["sample_id"])["sample_id"].to_pylist())


def _proven_shards(deployment: Deployment) -> set[str]:
    """Those of every output, which must all have the same."""
    (found,) = {tuple(ProofStore(deployment.storage).partitions(output.asset)) for output in OUTPUTS}
    return set(found)


def test_a_removed_shard_leaves_every_output_and_the_others_stay(fresh: Deployment, tmp_path: Path) -> None:
    before = _files(fresh.storage)
    Path(fresh.raw, "b.x y.tar").unlink()
    listed = ok(fresh, "retire", "--dry-run")
    assert listed == "would retire b.x y\n"
    assert _files(fresh.storage) == before
    assert ok(fresh, "retire").splitlines()[0] == "retiring b.x y"
    after = _files(fresh.storage)
    for files in (before, after):  # each file of proofs has another name when its content is another
        for name in [name for name in files if re.fullmatch(r"proof/\w+/\w+\.parquet", name)]:
            del files[name]
    of_shard = {name for name in before if "b%2Ex%20y" in name}
    assert {Path(name).parts[0] for name in of_shard} == {
        *("arrow_cache", "curated", "filtered", "ledger", "quarantine"),
        *("scores", "sample_scores", "webdataset"),
    }
    note = "ledger/retired/b%2Ex%20y.json"
    assert before.keys() - after.keys() == of_shard and after.keys() - before.keys() == {note}
    assert {name for name in after.keys() & before.keys() if after[name] != before[name]} == {
        *("webdataset/index.json", "webdataset/README.md", "webdataset/.nv-meta/.info.json"),
        *("webdataset/.nv-meta/split.yaml", "proof/proof.json"),
    }
    for name in ("index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml"):
        assert b"b%2Ex" not in after[f"webdataset/{name}"]
    assert _samples(fresh.storage) == {"a1", "a2", "c1", "d1"}
    (entry,) = unseal(after[note])["retirements"]
    assert entry["started"] <= entry["finished"]
    assert entry["outputs"]["final_tars"]["samples"] == 2
    success, found, proof = prove(fresh)
    assert (success, found, proof["unknown_files"], proof["unmade"]) == (True, {}, {}, {})
    assert _proven_shards(fresh) == {"a", "sub/c", "sub/d"}
    outputs = [f"{fresh.storage}/{output.folder.partition('/')[0]}" for output in OUTPUTS]
    assert ok(fresh, "verify", *outputs).splitlines()[-1] == "equal"
    assert ok(fresh, "retire") == "no raw shard is gone: nothing to retire\n"
    again = fresh.run()
    assert again.success
    assert _samples(fresh.storage) == {"a1", "a2", "c1", "d1"}


@pytest.mark.parametrize(
    "linked", ["arrow_cache/b%2Ex%20y", "arrow_cache", "curated", "webdataset", "lance/items.lance"]
)
def test_a_linked_folder_loses_the_shard_in_one_go(fresh: Deployment, linked: str, tmp_path: Path) -> None:
    """Its content lies elsewhere, and is removed there."""
    elsewhere = tmp_path / "elsewhere"
    Path(fresh.storage, linked).rename(elsewhere)
    Path(fresh.storage, linked).symlink_to(elsewhere)
    Path(fresh.raw, "b.x y.tar").unlink()
    assert ok(fresh, "retire").splitlines()[0] == "retiring b.x y"
    assert elsewhere.exists() == ("%" not in linked) == Path(fresh.storage, linked).is_symlink()
    assert list(elsewhere.rglob("*b%2Ex*")) == []
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert _samples(fresh.storage) == {"a1", "a2", "c1", "d1"}
    assert ok(fresh, "retire") == "no raw shard is gone: nothing to retire\n"


def test_a_renamed_shard_gets_its_samples_once_the_old_name_is_retired(fresh: Deployment) -> None:
    os.rename(Path(fresh.raw, "a.tar"), Path(fresh.raw, "renamed.tar"))
    assert run(fresh, "retire").returncode == 0
    assert fresh.run(["b.x y", "renamed"]).success
    assert _samples(fresh.storage) == {"a1", "a2", "b1", "b2", "c1", "d1"}
    success, found, proof = prove(fresh)
    assert (success, found, proof["unknown_files"]) == (True, {}, {})
    assert _proven_shards(fresh) == {"b.x y", "renamed", "sub/c", "sub/d"}


def test_a_shard_that_is_there_is_refused(fresh: Deployment) -> None:
    before = _files(fresh.storage)
    Path(fresh.raw, "b.x y.tar").unlink()
    done = run(fresh, "retire", "a")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"mm-assets: kept: a: its raw shard exists: {fresh.raw}/a.tar\n"
    refused = run(fresh, "retire", "nope")
    told = "no shard 'nope' here; retired already, or misspelt?"
    assert commands.only_line(refused) == f"{fresh.storage}: {told}"
    assert _files(fresh.storage) == before


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_folder_that_is_not_mounted_looks_like_no_removed_shard(fresh: Deployment, state: str) -> None:
    shutil.rmtree(Path(fresh.raw, "sub"))
    if state == "empty":
        Path(fresh.raw, "sub").mkdir()
    before = _files(fresh.storage)
    done = run(fresh, "retire")
    lines = commands.lines(done)
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == ["sub/c", "sub/d"]
    assert all("as if a disk were not mounted; name the shard" in line for line in lines)
    assert _files(fresh.storage) == before
    assert run(fresh, "retire", "sub/c").returncode == 0
    assert _samples(fresh.storage) == {"a1", "a2", "b1", "b2", "d1"}


def test_a_folder_that_cannot_be_listed_stops_the_command(fresh: Deployment) -> None:
    before = _files(fresh.storage)
    Path(fresh.raw, "sub", "c.tar").unlink()
    Path(fresh.raw, "sub").chmod(0)
    settings = {"MM_RAW_SHARDS": fresh.raw, "MM_STORAGE": fresh.storage, "DAGSTER_HOME": "/nowhere"}
    try:
        for arguments in (["retire"], ["retire", "sub/c"]):
            done = commands.run_process(*arguments, as_user=True, env=settings)
            assert f"{fresh.raw}/sub" in commands.only_line(done)
    finally:
        Path(fresh.raw, "sub").chmod(0o755)
    assert _files(fresh.storage) == before


def test_other_raw_shards_than_those_of_the_storage_are_noticed(fresh: Deployment, tmp_path: Path) -> None:
    _write(str(tmp_path), "elsewhere/x", "x1")
    before = _files(fresh.storage)
    done = run(fresh, "retire", MM_RAW_SHARDS=str(tmp_path / "elsewhere"))
    assert "none of its 4 shards is among the raw shards" in commands.only_line(done)
    assert _files(fresh.storage) == before


def test_more_than_half_of_the_shards_must_be_named(fresh: Deployment) -> None:
    for name in ("a", "b.x y", "sub/c"):
        Path(fresh.raw, f"{name}.tar").unlink()
    before = _files(fresh.storage)
    told = commands.only_line(run(fresh, "retire"))
    assert told.startswith("3 of 4 shards would be retired: is MM_RAW_SHARDS right?")
    assert _files(fresh.storage) == before
    assert run(fresh, "retire", "a", "b.x y").returncode == 0
    assert _samples(fresh.storage) == {"c1", "d1"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Dagster home that knows the shards of `fresh`, and one that was never made."""
    home = tmp_path / "real-home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(str(SHARDS.name), ["a", "b.x y", "never-made", "sub/c", "sub/d"])
    return home


@pytest.mark.parametrize("unfinished", ["queued run", "backfill"])
def test_what_may_still_write_stops_the_command(fresh: Deployment, home: Path, unfinished: str) -> None:
    """A run that waits in the queue, or a backfill between two of its runs."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        definitions = build_definitions()
        if unfinished == "backfill":
            graph = definitions.resolve_asset_graph()
            asset = [dg.AssetKey("final_tars")]
            name = f"backfill {launch_backfill(instance, graph, asset, ['a'], 'title', 'test')}"
        else:
            job = definitions.resolve_job_def("all_assets")
            location = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("location"), "repository")
            origin = location.get_job_origin(job.name)
            queued = dg.DagsterRunStatus.QUEUED
            name = f"run {instance.create_run_for_job(job, status=queued, remote_job_origin=origin).run_id}"
    Path(fresh.raw, "a.tar").unlink()
    before = _files(fresh.storage)
    done = run(fresh, "retire", DAGSTER_HOME=str(home))
    assert commands.only_line(done) == f"{name} is unfinished; retire when it has ended, or end it"
    assert _files(fresh.storage) == before
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for backfill in instance.get_backfills():
            instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
        for record in instance.get_runs():
            instance.delete_run(record.run_id)
    assert run(fresh, "retire", DAGSTER_HOME=str(home)).returncode == 0


def test_a_shard_that_exists_and_is_not_read_is_kept(fresh: Deployment) -> None:
    """Beside tars, Parquet files of a folder are not read: they are there all the same."""
    os.rename(Path(fresh.raw, "a.tar"), Path(fresh.raw, "a.parquet"))
    (line,) = commands.lines(run(fresh, "retire"))
    assert line == f"kept: a: its raw shard exists, though it is not read: {fresh.raw}/a.parquet"


def test_groups_are_kept_by_a_command_that_knows_of_none(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in (0, 1, 2):
        _write(str(raw), f"web-{number}", f"s{number}")
    _write(str(raw), "extra", "e")
    with quick_instance(tmp_path) as instance:
        settings = {"MM_WORKERS": "1", "MM_SHARDS_PER_PARTITION": "3"}
        grouped = Deployment(str(raw), str(tmp_path / "storage"), instance, settings)
        assert grouped.run().success
        before = _files(grouped.storage)
        alone = replace(grouped, environment={"MM_WORKERS": "1"})
        (line,) = commands.lines(run(alone, "retire"))
        files = ", ".join(f"{raw}/web-{number}.tar" for number in (0, 1, 2))
        told = f"kept: web-0-2: raw shards of this group exist: {files}; "
        assert line == f"{told}is MM_SHARDS_PER_PARTITION set as it was?"
        assert _files(grouped.storage) == before
        for number in (0, 1, 2):
            (raw / f"web-{number}.tar").unlink()
        assert "retiring web-0-2" in ok(grouped, "retire", "web-0-2")
        assert _samples(grouped.storage) == {"e"}


def test_after_a_compaction_of_the_table_too(fresh: Deployment) -> None:
    """Then the rows of several shards are in one fragment."""
    maintain(f"{fresh.storage}/lance/items.lance")
    Path(fresh.raw, "a.tar").unlink()
    assert ok(fresh, "tag", "before").startswith("tag before")
    assert ok(fresh, "retire").startswith("retiring a")
    assert _samples(fresh.storage) == {"b1", "b2", "c1", "d1"}
    assert prove(fresh)[:2] == (True, {})
    changed = [line.split("\t") for line in ok(fresh, "diff", "before").splitlines() if "\t" in line]
    assert {(line[0], line[2], line[4]) for line in changed} == {
        ("dropped", sample, "shard removed") for sample in ("a1", "a2")
    }


def test_the_dagster_partition_goes_too(fresh: Deployment, home: Path) -> None:
    Path(fresh.raw, "a.tar").unlink()
    told = commands.ok("retire", MM_RAW_SHARDS=fresh.raw, MM_STORAGE=fresh.storage, DAGSTER_HOME=str(home))
    assert [line for line in told.splitlines() if not line.startswith(" ")] == [
        "retiring a",
        "retiring never-made",
    ]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert list(instance.get_dynamic_partitions(str(SHARDS.name))) == ["b.x y", "sub/c", "sub/d"]


_KILLED = """
import os, signal, sys
from mm_assets.accounting.retirement import Retirement

def retire(storage, last):
    def at(step):
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
    for number, _ in enumerate(Retirement(storage).run(["a", "b.x y"], lambda gone: at(98))):
        at(number)

for storage, step in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if not child:
        retire(storage, int(step))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
STEPS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 98]


@pytest.fixture(scope="module")
def killed(three: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Deployment]:
    """Storages whose retirement was killed, each at another step, in processes forked from one."""
    copies = {step: three.copied(tmp_path_factory.mktemp("killed")) for step in STEPS}
    for copy in copies.values():
        for name in ("a", "b.x y"):
            Path(copy.raw, f"{name}.tar").unlink()
    places = [word for step, copy in copies.items() for word in (copy.storage, str(step))]
    command = [sys.executable, "-c", _KILLED, *places]
    done = subprocess.run(command, env=commands.environment(), check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == [str(-signal.SIGKILL.value)] * len(STEPS)
    return copies


@pytest.mark.parametrize("step", STEPS)
def test_one_that_was_killed_is_completed_by_the_next(
    step: int, killed: dict[int, Deployment], undisturbed: dict[str, bytes]
) -> None:
    fresh = killed[step]
    assert [line for line in ok(fresh, "retire").splitlines() if not line.startswith(" ")] == [
        "retiring a",
        "retiring b.x y",
    ]
    found = _files(fresh.storage)
    assert _without_notes(found) == undisturbed
    for name in ("a", "b%2Ex%20y"):
        (entry,) = unseal(found[f"ledger/retired/{name}.json"])["retirements"]
        assert entry["finished"] and entry["outputs"]["lance_table"]["samples"] == 2
    assert _samples(fresh.storage) == {"c1", "d1"}


@pytest.fixture(scope="module")
def undisturbed(three: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files after a retirement that nobody disturbed."""
    fresh = three.copied(tmp_path_factory.mktemp("undisturbed"))
    for name in ("a", "b.x y"):
        Path(fresh.raw, f"{name}.tar").unlink()
    ok(fresh, "retire")
    return _without_notes(_files(fresh.storage))


def _without_notes(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith("ledger/retired/")}
