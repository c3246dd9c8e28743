"""The Dagster instance of a storage root, and its configuration."""

from pathlib import Path

import pytest
import yaml

from mm_assets.headless.instance import CONFIGURATION, prepare_home
from mm_assets.settings_file import FILE
from mm_assets_tests.cli.commands import only_line, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.delenv("MM_STORAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_storage_root_has_its_own_whatever_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MM_STORAGE", "s3://bucket/out/")
    of_variable = prepare_home()
    assert of_variable.parent == folder / ".dagster"
    assert of_variable.name.startswith("out-")
    monkeypatch.delenv("MM_STORAGE")
    monkeypatch.setenv("DAGSTER_HOME", "")
    Path(FILE).write_text('storage = "s3://bucket/out"')
    assert prepare_home() == of_variable, "the file names the same storage"
    monkeypatch.setenv("DAGSTER_HOME", "")
    Path(FILE).write_text('storage = "s3://other/out"')
    assert prepare_home() not in (of_variable, folder / ".dagster" / "demo")


@pytest.mark.parametrize("text", ["", 'storage = "demo/storage"', 'storage = "demo/storage/"'])
def test_the_default_storage_named_or_not_is_the_same(text: str, folder: Path) -> None:
    Path(FILE).write_text(text)
    assert prepare_home() == folder / ".dagster" / "demo"


def test_one_that_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "me"))
    monkeypatch.setenv("DAGSTER_HOME", "~/dagster")
    assert prepare_home() == folder / "me" / "dagster"
    monkeypatch.setenv("DAGSTER_HOME", "relative")
    assert prepare_home() == folder / "relative"


def test_its_configuration_is_that_of_the_working_directory_or_of_the_package(folder: Path) -> None:
    """The wheel has no working directory with one."""
    target = prepare_home() / "dagster.yaml"
    assert target.read_bytes() == CONFIGURATION.read_bytes()
    assert yaml.safe_load(target.read_text())["telemetry"] == {"enabled": False}
    target.unlink()
    (folder / "dagster.yaml").write_text("telemetry:\n  enabled: true\n")
    prepare_home()
    assert target.read_text() == "telemetry:\n  enabled: true\n"
    (folder / "dagster.yaml").unlink()
    prepare_home()
    assert target.read_text() == "telemetry:\n  enabled: true\n", "what is there stays"


def test_the_file_at_the_top_is_that_of_the_package() -> None:
    top = Path(__file__).parents[2] / "dagster.yaml"
    assert top.is_symlink()
    assert top.resolve() == CONFIGURATION


def test_a_variable_of_the_configuration_that_is_not_set_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(
        "local_artifact_storage:\n  module: dagster._core.storage.root\n"
        "  class: LocalArtifactStorage\n  config: {base_dir: {env: NOWHERE_SET}}\n"
    )
    raw = tmp_path / "a.tar"
    raw.touch()
    storage = tmp_path / "storage"
    storage.mkdir()
    settings = {"DAGSTER_HOME": str(tmp_path), "MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(storage)}
    for command in (["run", "--dry-run"], ["prove"], ["retire"]):
        told = only_line(run(*command, **settings))
        assert told == f"{tmp_path}/dagster.yaml: not set in the environment: NOWHERE_SET"
