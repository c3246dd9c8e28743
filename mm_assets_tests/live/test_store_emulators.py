"""Google's and Azure's stores, by emulators: nobody has tried the services themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from mm_assets_tests.cli.commands import run, run_process
from mm_assets_tests.live.store_emulators import AZURITE, StoreEmulator, azure_emulator, google_emulator
from mm_assets_tests.warm_workers import warm_workers
from tools.demo import make_shards

pytestmark = pytest.mark.clients

EMULATORS = {"google": google_emulator, "azure": azure_emulator}


@pytest.fixture(scope="module")
def azurite() -> None:
    if not AZURITE.exists():
        pytest.skip("Azurite comes from npm, which this machine has not")


@pytest.fixture(scope="module", params=EMULATORS)
def store(request: pytest.FixtureRequest) -> Iterator[StoreEmulator]:
    if request.param == "azure":
        request.getfixturevalue("azurite")
    with (
        EMULATORS[request.param]() as emulator,
        mock.patch.dict(os.environ, emulator.env),
        warm_workers(apart=True),
    ):
        emulator.filesystem().mkdir(emulator.bucket)
        yield emulator


@pytest.fixture(scope="module")
def raw(store: StoreEmulator, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three raw shards in the store."""
    for shard in make_shards(tmp_path_factory.mktemp("raw"), members=2, pdf=1, samples=3):
        store.filesystem().put_file(str(shard), f"{store.bucket}/raw/{shard.name}")
    return f"{store.bucket}/raw/"


def command(store: StoreEmulator, *words: object, **settings: str) -> str:
    done = run(*words, **store.env, **settings)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_every_format_is_equal_in_an_emulator(store: StoreEmulator, raw: str) -> None:
    places = [f"{store.bucket}/{kind}" for kind in store.formats]
    source = raw
    for kind, place in zip(store.formats, places, strict=True):
        command(store, "convert", source, place, "--to", kind, "--workers", "1")
        source = place
    compared = command(store, "verify", raw, *places).splitlines()
    assert compared[-1] == "equal" and len(compared) == len(places) + 2
    assert all(", 9 samples, " in line for line in compared[:-1])


def test_the_graph_in_an_emulator(store: StoreEmulator, raw: str, tmp_path: Path) -> None:
    settings = {
        "MM_RAW_SHARDS": raw,
        "MM_STORAGE": f"{store.bucket}/storage",
        "MM_MIN_ASPECT_RATIO": "1",
        "MM_WORKERS": "1",
        "DAGSTER_HOME": str(tmp_path / "home"),
    }
    assets = [
        "curated_parquet",
        "image_scores",
        "quarantine",
        "sample_scores",
        "filtered_parquet",
        "arrow_cache",
        "final_tars",
    ]
    if "lance" in store.formats:
        assets.append("lance_table")
    for unchanged in (0, 3):
        told = command(store, "run", "--assets", ",".join(assets), **settings)
        made = {name: counts for name, *counts in map(str.split, told.splitlines()) if name in assets}
        assert {name: counts[:2] for name, counts in made.items()} == {
            name: ["3", str(unchanged)] for name in assets
        }, told
        assert "checks failed: 0" in told


@pytest.mark.usefixtures("azurite")
def test_a_wrong_key_of_an_emulator_is_one_line(tmp_path: Path) -> None:
    make_shards(tmp_path, members=1, pdf=0, samples=1)
    with azure_emulator() as emulator:
        env = {name: value.replace("Eby8", "Fby8") for name, value in emulator.env.items()}
        for kind in ("parquet", "lance"):  # each by a client of its own
            done = run_process("convert", tmp_path, f"{emulator.bucket}/out", "--to", kind, env=env)
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"mm-assets: {emulator.bucket}/out: permission denied: the credentials")
            assert "AZURE_STORAGE_CONNECTION_STRING" in line and "AWS" not in line
            assert done.returncode == 1


def test_a_bucket_that_an_emulator_has_not(store: StoreEmulator, tmp_path: Path) -> None:
    done = run("convert", f"{store.scheme}://nowhere/raw", tmp_path, "--to", "parquet", **store.env)
    name = {"gs": "bucket", "az": "container"}[store.scheme]
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"mm-assets: {store.scheme}://nowhere/raw: no such {name}"
