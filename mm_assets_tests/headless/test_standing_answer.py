"""The answer that is kept where a run had nothing to do: whatever it went by takes it away by changing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.formats.raw_shards import RawLocations
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.headless import StandingAnswer
from mm_assets.settings import Settings
from mm_assets_tests.cli.commands import environment, fine
from mm_assets_tests.headless.conftest import Project

CURATED = dg.AssetKey("curated_parquet")


@pytest.fixture(scope="module")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """After a run of two shards, with Dagster's files on the disk."""
    project = Project(tmp_path_factory.mktemp("made"))
    project.shards("ab")
    fine(project.run())
    return project


@pytest.fixture
def made(_made_once: Project, tmp_path: Path) -> Project:
    shutil.copytree(_made_once.folder, tmp_path / "made")
    return Project(tmp_path / "made")


def _look(project: Project, **settings: str) -> StandingAnswer | None:
    with pytest.MonkeyPatch.context() as changed:
        for name, value in {**project.settings, **settings}.items():
            changed.setenv(name, value)
        found = Settings.load()
        return StandingAnswer.begin(found, RawLocations(found.raw_shards, excluded=found.storage).shards())


def _keep(project: Project, **settings: str) -> None:
    look = _look(project, **settings)
    assert look is not None
    look.see_storage()
    look.keep("all is well")
    assert _kept(project, **settings) == "all is well"


def _kept(project: Project, **settings: str) -> str | None:
    look = _look(project, **settings)
    return None if look is None else look.kept()


RUN = """
import sys
from mm_assets.cli import main

code = main(["run"])
print("Dagster" if "dagster" in sys.modules else "no Dagster")
sys.exit(code)
"""


def test_it_is_what_the_command_printed_and_needs_no_dagster(project_on_disk: Project) -> None:
    """Kept by the run that made all, and by one that looked."""
    project = project_on_disk
    project.shards("ab")

    def run() -> list[str]:
        command = [sys.executable, "-c", RUN]
        done = subprocess.run(
            command, env=environment(**project.settings), capture_output=True, text=True, check=False
        )
        return fine(done).splitlines()

    first, second = run(), run()
    (project.home / "nothing_to_do.json").unlink()
    third, fourth = run(), run()
    assert (first[-1], second[-1], third[-1], fourth[-1]) == (
        "Dagster",
        "no Dagster",
        "Dagster",
        "no Dagster",
    )
    assert second[0] == "nothing to do: 2 shards up to date, as published and proven"
    assert second[:-2] == third[:-2] == fourth[:-2]


def _write(path: Path, data: bytes) -> None:
    """Other bytes of a file, with its times."""
    found = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_each_file_of_the_storage_counts(made: Project) -> None:
    files = sorted(path for path in made.storage.rglob("*") if path.is_file())
    assert len(files) > 60
    for path in files:
        _keep(made)
        data = path.read_bytes()
        _write(path, data[:-1] + bytes([data[-1] ^ 1]) if data else b"x")
        assert _kept(made) is None, path
        _write(path, data)
        _keep(made)
        path.unlink()
        assert _kept(made) is None, path
        path.write_bytes(data)


def test_bytes_of_records_count_whatever_their_times(made: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a disk has decayed: what a look reads is read, not only asked for its times."""
    monkeypatch.setattr("mm_assets.headless._stamp", lambda path, found: path)
    for pattern in ("ledger/accounts/*/a.parquet", "scores/a.parquet", "proof/**/*.json", "lance/**/*.arrow"):
        found = list(made.storage.glob(pattern))
        assert found, pattern
        for path in found:
            _keep(made)
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            assert _kept(made) is None, path


def _event(project: Project) -> AbstractContextManager[dg.DagsterInstance]:
    return dg.DagsterInstance.from_config(str(project.home))


def _materialized(project: Project) -> None:
    with _event(project) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(CURATED, partition="a"))


def _wiped(project: Project) -> None:
    with _event(project) as instance:
        instance.wipe_assets([CURATED])


def _checked(project: Project) -> None:
    with _event(project) as instance:
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(asset_key=CURATED, check_name="landed", passed=False, metadata={})
        )


def _partition_gone(project: Project) -> None:
    with _event(project) as instance:
        instance.delete_dynamic_partition(str(SHARDS.name), "a")


def _run_begun(project: Project) -> None:
    with _event(project) as instance:
        instance.create_run_for_job(
            dg.GraphDefinition(name="other").to_job(), status=dg.DagsterRunStatus.STARTED
        )


def _value(project: Project) -> None:
    with _event(project) as instance:
        instance.run_storage.set_cursor_values({"mm_assets/last_whole_run": "[0, 0]"})


def _configured(project: Project) -> None:
    (project.home / "dagster.yaml").write_text("telemetry:\n  enabled: true\n")


def _raw_replaced(project: Project) -> None:
    project.shard("a", "another text")


def _raw_gone(project: Project) -> None:
    (project.raw / "a.tar").unlink()


CHANGES = (
    *(_materialized, _wiped, _checked, _partition_gone, _run_begun, _value, _configured),
    *(_raw_replaced, _raw_gone),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_look_asks_counts(made: Project, change: Callable[[Project], None]) -> None:
    _keep(made)
    change(made)
    assert _kept(made) is None


def test_settings_count_and_files_that_they_name(made: Project, tmp_path: Path) -> None:
    _keep(made)
    assert _kept(made, MM_MAX_LOSS="0.4") is None
    assert _kept(made, AWS_PROFILE="other") is None
    ids = tmp_path / "ids.txt"
    ids.write_text("a\n")
    _keep(made, MM_DROP_IDS=str(ids))
    _write(ids, b"b\n")
    assert _kept(made, MM_DROP_IDS=str(ids)) is None


def test_the_program_counts(made: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _keep(made)
    monkeypatch.setattr("mm_assets.headless.__version__", "another")
    assert _kept(made) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"MM_STORAGE": "s3://bucket/folder"},
        {"MM_FRESH_WITHIN": "1d"},
        {"MM_DROP_IDS": "s3://bucket/ids.txt"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_cannot_be_told_without_a_look_keeps_nothing(made: Project, settings: dict[str, str]) -> None:
    look = _look(made, **settings)
    if look is not None:
        look.see_storage()
        look.keep("all is well")
        assert look.kept() is None


def test_code_of_users_may_go_by_anything(
    made: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_that_adds_nothing.py").write_text("FILTERS = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert _look(made, MM_PLUGINS="plugin_that_adds_nothing") is None


def test_a_damaged_answer_is_none(made: Project) -> None:
    _keep(made)
    kept = made.home / "nothing_to_do.json"
    kept.write_bytes(kept.read_bytes().replace(b"all is well", b"all is bad!"))
    assert _kept(made) is None


def test_links_in_a_circle_are_no_trap(made: Project) -> None:
    (made.storage / "curated" / "up").symlink_to(made.storage)
    look = _look(made)
    assert look is not None
    look.see_storage()
    assert look.storage == ""
