"""Training from a real store: each sample once, through local copies that stay within their bound."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from mm_assets.train import InterleavedDataset
from mm_assets_tests.cli import commands
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]

KINDS = ("webdataset", "parquet", "lance")


@pytest.fixture
def bucket(kind: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Samples in a format; and the login of the store."""
    name = s3.new_bucket()
    make_shards(tmp_path / "raw", members=5, pdf=0, samples=4)
    done = commands.run("convert", tmp_path / "raw", tmp_path / kind, "--to", kind)
    assert done.returncode == 0, done
    s3.filesystem().put(f"{tmp_path / kind}/", f"{name}/{kind}", recursive=True)
    for variable, value in s3.env.items():
        monkeypatch.setenv(variable, value)
    return f"s3://{name}"


def given(path: str, cache: Path, nbytes: int, rank: int, states: Any = None, stop: int | None = None) -> Any:
    """What one of two ranks is given, and its state."""
    dataset = InterleavedDataset(
        path, seed=2, window=2, rank=rank, world_size=2, cache_dir=cache, cache_bytes=nbytes
    )
    loader = dataset.loader(2)
    if states is not None:
        loader.load_state_dict(states)
    return [one for batch in islice(loader, stop) for one in batch], loader.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_stop_and_resume(kind: str, bucket: str, tmp_path: Path) -> None:
    local = tmp_path / kind / "items.lance" if kind == "lance" else tmp_path / kind
    remote = f"{bucket}/{kind}" + ("/items.lance" if kind == "lance" else "")
    limit = 3 * max(path.stat().st_size for path in local.rglob("*") if path.is_file())
    cache = tmp_path / "copies"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        first = [processes.submit(given, remote, cache, limit, rank, None, 2) for rank in range(2)]
        parts, states = zip(*(each.result() for each in first), strict=True)
        rest = [processes.submit(given, remote, cache, limit, rank, list(states)) for rank in range(2)]
        found = [one for part in [*parts, *(each.result()[0] for each in rest)] for one in part]
    whole = list(InterleavedDataset(local))

    def by_id(sample: Any) -> str:
        return sample["sample_id"]  # type: ignore[no-any-return]

    assert sorted(found, key=by_id) == sorted(whole, key=by_id)
    if kind != "lance":  # which reads its rows from the store
        assert 0 < sum(path.stat().st_size for path in cache.glob("*.copy")) <= limit
    assert not list(cache.glob(".*.tmp"))
