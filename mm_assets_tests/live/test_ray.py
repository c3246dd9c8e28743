"""Shards are worked on by a Ray cluster of two real nodes, which lose workers and a node meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.lance.table import LanceTable
from mm_assets.pool import WorkerFailure
from mm_assets.pool.ray import RayClusterError, RayPool
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.graph.output_digests import FOLDERS, digests
from mm_assets_tests.live.daemon import wait_for
from mm_assets_tests.live.headless_process import start, told_by
from mm_assets_tests.live.ray_nodes import RayNodes, ray_nodes
from mm_assets_tests.training_set.sets import make_source, tree
from mm_assets_tests.worker_jobs import RefusesPickling, act
from tools.demo import make_shards

pytestmark = pytest.mark.live

BAD = "web-00001"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as started:
        yield started


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six shards, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("shards") / "raw"
    make_shards(folder, members=5, pdf=1, samples=2)
    (folder / f"{BAD}.tar").write_bytes(b"no tar" * 100)
    return folder


@pytest.fixture(scope="module")
def local(raw: Path) -> Path:
    """What a run with local workers writes, and tells of the bad shard."""
    storage, home = raw.parent / "local", raw.parent / "local-home"
    home.mkdir()
    settings = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(storage), "DAGSTER_HOME": str(home)}
    done = run("run", MM_WORKERS="1", **settings)
    assert done.returncode == 1
    (home / "told").write_text(done.stdout)
    return storage


def rows_of(storage: Path) -> dict[str, tuple[int, str]]:
    table = LanceTable(storage / "lance" / "items.lance").partitions()
    return {name: (facts.rows, facts.digest) for name, facts in table.items()}


def _named(job: tuple[str, Any]) -> str:
    return job[0] if job[0] == "refuses" else f"{job[0]} {job[1]}"


def test_jobs_that_fail_fail_alone(nodes: RayNodes) -> None:
    orders: list[tuple[str, Any]] = [
        *(("echo", n) for n in range(10)),
        ("raise", "bad\nshard"),
        ("unpicklable result", None),
        ("bad result", None),
        ("refuses", RefusesPickling()),
        ("system exit", 3),
        ("signal", signal.SIGKILL),
        ("sleep", (600, "never")),
        ("bytes", 3_000_000),
    ]
    handler = signal.getsignal(signal.SIGTERM)
    with RayPool(nodes.address, time_limit=5) as pool:
        found = {_named(job): result for job, result in pool.map(act, orders)}
        assert signal.getsignal(signal.SIGTERM) is handler
    failed = {job: (r.type, r.message) for job, r in found.items() if isinstance(r, WorkerFailure)}
    kind, message = failed.pop(_named(("signal", signal.SIGKILL)))
    assert kind == "WorkersDied"
    assert message.startswith("died in the middle of it: workers 3, nodes 0: WorkerCrashedError: ")
    assert "Can't pickle local object" in failed.pop("unpicklable result None")[1]
    assert failed.pop("bad result None")[0] == "ValueError"
    assert failed.pop("refuses") == ("RuntimeError", "RuntimeError: cannot be pickled")
    assert failed == {
        _named(("raise", "bad\nshard")): ("ValueError", "bad shard"),
        _named(("system exit", 3)): ("SystemExit", "SystemExit: 3"),
        _named(("sleep", (600, "never"))): (
            "TookTooLong",
            "took longer than 5 seconds (MM_SHARD_TIMEOUT), and was ended",
        ),
    }
    assert [found[_named(("echo", n))] for n in range(10)] == list(range(10))
    assert found[_named(("bytes", 3_000_000))] == b"x" * 3_000_000


def test_the_package_travels_with_the_run(nodes: RayNodes, tmp_path: Path) -> None:
    """Nodes run the code of the process that asks, not what is installed on them."""
    code = (
        f"from mm_assets.pool.ray import RayPool; pool = RayPool({nodes.address!r}); "
        "print(*pool.map(eval, [\"__import__('mm_assets').__file__\"]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "/py_modules_files/" in done.stdout and "/mm_assets/__init__.py" in done.stdout


def test_outputs_are_those_of_local_workers_also_if_a_node_is_killed(
    nodes: RayNodes, raw: Path, local: Path
) -> None:
    storage = raw.parent / "killed"
    process = start(raw, storage, raw.parent / "killed-home", **nodes.settings)
    wait_for(nodes.other_is_at_work, 120, "a task on the second node")
    nodes.kill_other()
    try:
        assert process.wait() == 1
    finally:
        nodes.start_other()
    found = digests(storage)
    assert found == digests(local) and {name.partition("/")[0] for name in found} >= {"curated", "webdataset"}
    assert rows_of(storage) == rows_of(local)
    line, *_ = (line for line in told_by(raw.parent / "killed-home") if BAD in line)
    assert line in told_by(raw.parent / "local-home"), "the bad shard is told of as by local workers"


def test_an_interrupt_ends_the_run(nodes: RayNodes, raw: Path, local: Path) -> None:
    """As with local workers: an exit code of its own, and nothing half-written."""
    storage = raw.parent / "interrupted"
    home = raw.parent / "interrupted-home"
    process = start(raw, storage, home, **nodes.settings)
    wait_for(lambda: any((storage / "curated").glob("*.parquet")), 120, "the first shard")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert told_by(home)[-1].endswith("interrupted; nothing half-written was published")
    found = digests(storage)
    assert found and found.items() <= digests(local).items()


def test_a_training_set_is_that_of_local_workers(nodes: RayNodes, tmp_path: Path) -> None:
    make_source(tmp_path / "web", "web", shards=3, size=40_000)
    made = ("--split", "train=0.7,validation=0.3", "--shards", 4)
    on_ray, here = (tmp_path / name / "set" for name in ("ray", "local"))  # whose name is in its index
    fine(run("reshard", tmp_path / "web", on_ray, *made, "--prove", **nodes.settings))
    fine(run("reshard", tmp_path / "web", here, *made))
    assert tree(on_ray) == tree(here)


def test_a_cluster_without_room_is_told_of() -> None:
    """A job waits for a node, which an autoscaler may add."""
    with ray_nodes(memory=100 << 20, others=0) as small:
        code = f"from mm_assets.pool.ray import RayPool; list(RayPool({small.address!r}).map(len, ['x']))"
        waiting = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        try:
            assert waiting.stderr is not None
            lines = iter(waiting.stderr.readline, "")
            assert any("no Ray node has a core and 640 MiB of memory" in line for line in lines)
        finally:
            waiting.kill()
            waiting.wait()


def test_pools_share_a_connection(nodes: RayNodes) -> None:
    with RayPool(nodes.address) as one:
        assert [result for _, result in one.map(act, [("echo", 1)])] == [1]
        with RayPool(nodes.address) as other:
            assert [result for _, result in other.map(act, [("echo", 2)])] == [2]
        assert [result for _, result in one.map(act, [("echo", 3)])] == [3]
        stopped = one.map(act, [("echo", 4), ("sleep", (60, 5))])
        assert next(stopped)[1] == 4
        stopped.close()
        assert [result for _, result in one.map(act, [("echo", 6)])] == [6], "it connects again"


def test_a_folder_that_another_node_does_not_see(nodes: RayNodes, tmp_path: Path) -> None:
    """A third node has another file system mounted over the storage."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("only root can give a node mounts of its own")
    storage = tmp_path / "storage"
    storage.mkdir()
    mounts = f"mount -t tmpfs none {storage} && exec {sys.executable} -m ray.scripts.scripts start"
    third = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{mounts} --address={nodes.address} --num-cpus=1 --block"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: nodes.alive() == 3, 120, "the third node")

        def refusal() -> str:
            """What is said once the third node has a task; each attempt starts workers on all nodes."""
            with RayPool(nodes.address, written=[str(storage)]) as pool:
                try:
                    list(pool.map(act, [("echo", n) for n in range(12)]))
                except RayClusterError as error:
                    return str(error)
            return ""

        line = wait_for(refusal, 120, "a task on the third node")
        assert line.startswith(f"{storage}: not the same folder on Ray node ")
        assert list(storage.iterdir()) == []
    finally:
        os.killpg(third.pid, signal.SIGTERM)
        third.wait()


def test_there_is_no_cluster(raw: Path, tmp_path: Path) -> None:
    folders = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(tmp_path), "DAGSTER_HOME": str(tmp_path / "home")}
    done = run("run", MM_ENGINE="ray", MM_RAY_ADDRESS="127.0.0.1:1", **folders)
    assert done.returncode == 1
    assert "MM_RAY_ADDRESS=127.0.0.1:1: no Ray cluster: Connection refused\n" in done.stdout
    assert not any((tmp_path / folder).exists() for folder in FOLDERS)
