"""Shards are worked on by a Ray cluster of two real nodes, which lose workers and a node meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_assets.demo.shards import make_shards
from mm_assets.formats.lance.table import LanceTable
from mm_assets.ray_cluster import RayClusterError
from mm_assets.ray_pool import RayPool
from mm_assets.workers import WorkerFailure
from mm_assets_tests.graph.output_digests import FOLDERS, digests
from mm_assets_tests.live.daemon import wait_for
from mm_assets_tests.live.headless_process import start, told_by
from mm_assets_tests.live.ray_nodes import RayNodes, ray_nodes
from mm_assets_tests.worker_jobs import act

pytestmark = pytest.mark.live

BAD = "web-00001"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as started:
        yield started


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten shards, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("shards") / "raw"
    make_shards(folder, members=8, pdf=2, samples=3)
    (folder / f"{BAD}.tar").write_bytes(b"no tar" * 100)
    return folder


@pytest.fixture(scope="module")
def local(raw: Path) -> Path:
    """What a run with local workers writes."""
    storage = raw.parent / "local"
    assert start(raw, storage, raw.parent / "local-home").wait() == 1
    return storage


def rows_of(storage: Path) -> dict[str, tuple[int, str]]:
    table = LanceTable(storage / "lance" / "items.lance").partitions()
    return {name: (facts.rows, facts.digest) for name, facts in table.items()}


def test_jobs_that_fail_fail_alone(nodes: RayNodes) -> None:
    orders: list[tuple[str, Any]] = [
        *(("echo", n) for n in range(10)),
        ("raise", "bad\nshard"),
        ("system exit", 3),
        ("signal", signal.SIGKILL),
        ("sleep", (600, "never")),
        ("bytes", 3_000_000),
    ]
    handler = signal.getsignal(signal.SIGTERM)
    with RayPool(nodes.address, time_limit=5) as pool:
        found = {str(job): result for job, result in pool.map(act, orders)}
        assert signal.getsignal(signal.SIGTERM) is handler
    failed = {job: (r.type, r.message) for job, r in found.items() if isinstance(r, WorkerFailure)}
    kind, message = failed.pop(str(("signal", signal.SIGKILL)))
    assert kind == "WorkerDied" and message.startswith("its worker died 3 times: ")
    assert failed == {
        str(("raise", "bad\nshard")): ("ValueError", "bad shard"),
        str(("system exit", 3)): ("SystemExit", "SystemExit: 3"),
        str(("sleep", (600, "never"))): (
            "TookTooLong",
            "took longer than 5 seconds (MM_SHARD_TIMEOUT), and was ended",
        ),
    }
    assert [found[str(("echo", n))] for n in range(10)] == list(range(10))
    assert found[str(("bytes", 3_000_000))] == b"x" * 3_000_000


def test_the_package_travels_with_the_run(nodes: RayNodes, tmp_path: Path) -> None:
    """Nodes run the code of the process that asks, not what is installed on them."""
    code = (
        f"from mm_assets.ray_pool import RayPool; pool = RayPool({nodes.address!r}); "
        "print(*pool.map(eval, [\"__import__('mm_assets').__file__\"]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "/py_modules_files/" in done.stdout and "/mm_assets/__init__.py" in done.stdout


def test_outputs_are_those_of_local_workers(nodes: RayNodes, raw: Path, local: Path) -> None:
    storage = raw.parent / "ray"
    home = raw.parent / "ray-home"
    assert start(raw, storage, home, **nodes.settings).wait() == 1
    found = digests(storage)
    assert found == digests(local) and {name.partition("/")[0] for name in found} >= {"curated", "webdataset"}
    assert rows_of(storage) == rows_of(local)
    line, *_ = (line for line in told_by(home) if BAD in line)
    assert line in told_by(raw.parent / "local-home"), "the bad shard is told of as by local workers"


def test_a_node_is_killed_in_the_middle(nodes: RayNodes, raw: Path, local: Path) -> None:
    storage = raw.parent / "killed"
    run = start(raw, storage, raw.parent / "killed-home", **nodes.settings)
    wait_for(lambda: any((storage / "curated").glob("*.parquet")), 120, "the first shard")
    nodes.kill_other()
    try:
        assert run.wait() == 1
    finally:
        nodes.start_other()
    assert digests(storage) == digests(local) and rows_of(storage) == rows_of(local)


def test_a_folder_that_the_other_node_does_not_see(nodes: RayNodes, raw: Path, tmp_path: Path) -> None:
    """A third node has another file system mounted over the storage."""
    storage = tmp_path / "storage"
    storage.mkdir()
    mounts = f"mount -t tmpfs none {storage} && exec {sys.executable} -m ray.scripts.scripts start"
    third = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{mounts} --address={nodes.address} --num-cpus=1 --block"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:

        def refusal() -> str:
            """What is said once the third node is there."""
            with RayPool(nodes.address, folders=[str(storage)]) as pool:
                try:
                    list(pool.map(act, [("echo", 1)]))
                except RayClusterError as error:
                    return str(error)
            return ""

        line = wait_for(refusal, 120, "the third node")
        assert line.startswith(f"{storage}: not the same folder on Ray node ")
        assert list(storage.iterdir()) == []
    finally:
        os.killpg(third.pid, signal.SIGTERM)
        third.wait()


def test_there_is_no_cluster(raw: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    began = time.monotonic()
    assert start(raw, storage, tmp_path, MM_ENGINE="ray", MM_RAY_ADDRESS="127.0.0.1:1").wait() == 1
    assert any(
        line.endswith("MM_RAY_ADDRESS=127.0.0.1:1: no Ray cluster: Connection refused")
        for line in told_by(tmp_path)
    ), told_by(tmp_path)
    assert time.monotonic() - began < 60
    assert not any((storage / folder).exists() for folder in FOLDERS)
