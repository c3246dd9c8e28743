"""Runs of the real graph through Dagster's own event log and through ours: the stock class reads the same."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.view import run_view, view
from mm_assets_tests.graph.deployment import FILTERED, Deployment
from tools.demo import make_shards

SETTINGS = {"MM_WORKERS": "2", "MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards that are sound, and one of which nothing can be read."""
    folder = tmp_path_factory.mktemp("raw")
    make_shards(folder, members=1, pdf=1, samples=3)
    (folder / "bad.tar").write_bytes(b"no tar" * 1000)
    return folder


def _deployment(folder: Path, raw: Path, instance: Any) -> Deployment:
    return Deployment(str(raw), str(folder / "storage"), instance, SETTINGS)


def _run_and_look(folder: Path, raw: Path, kind: str, url: str | None) -> tuple[Any, Any, Any]:
    """The first run, and all of it again: what the stock class sees of both, and after each of them."""
    found = []
    runs = []
    for _ in range(2):
        with open_instance(folder / "home", kind, url) as instance:
            runs.append(_deployment(folder, raw, instance).run().run_id)
        with open_instance(folder / "home", STOCK, url) as instance:
            found.append(view(_deployment(folder, raw, instance)))
    with open_instance(folder / "home", STOCK, url) as instance:
        return (*found, [run_view(_deployment(folder, raw, instance), run) for run in runs])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The database of our class; none for SQLite files in the home."""
    with ExitStack() as databases:
        server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
        yield databases.enter_context(server.database(OURS)) if server else None


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> tuple[Any, Any, Any]:
    """What the stock class writes, into SQLite files: of any other database it reads the same."""
    return _run_and_look(tmp_path_factory.mktemp("stock"), raw, STOCK, None)


def test_all_that_the_stock_class_reads_is_as_if_it_had_written_it(
    tmp_path: Path, raw: Path, url: str | None, stock: tuple[Any, Any, Any]
) -> None:
    first, again, runs = _run_and_look(tmp_path / "ours", raw, OURS, url)
    stock_first, stock_again, stock_runs = stock
    assert first == stock_first
    assert again == stock_again
    assert runs == stock_runs
    # What is compared is not empty.
    assert first["unfinished"]["curated_parquet"] == ["bad"]
    assert len(first["latest"]["lance_table"]) == 2 and len(first["evaluations"]) > 50
    assert {"SUCCEEDED", "FAILED"} <= {name for states in first["check states"].values() for name in states}


def test_a_home_may_change_from_one_class_to_the_other_and_back(tmp_path: Path, raw: Path) -> None:
    seen = []
    for kind in (STOCK, OURS, STOCK):
        with open_instance(tmp_path / "home", kind) as instance:
            deployment = _deployment(tmp_path, raw, instance)
            assert deployment.run(["pdf-00000"], [*FILTERED, "lance_table"]).success
            seen.append(view(deployment))
    for found in seen[1:]:
        assert found["check states"] == seen[0]["check states"]
        assert found["tags"] == seen[0]["tags"]
        assert found["unfinished"] == seen[0]["unfinished"]
    made = seen[-1]["latest"]["lance_table"]["pdf-00000"]
    assert made[0]["unchanged"].value is True
