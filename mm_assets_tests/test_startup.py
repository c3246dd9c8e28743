"""Starting up is cheap: what is heavy is imported where it is used."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.definitions import build_definitions
from mm_assets.graph.io_manager import ShardIOManager
from mm_assets.graph.resources import resources_from_environment
from mm_assets.pool import WORKER_ENVIRONMENT
from mm_assets_tests.cli.commands import REPOSITORY, imports_of
from tools.demo import make_shards

FOR_OTHERS = {"alembic", "structlog", "rich", "pygments", "mako"}
HEAVY = ("lance", "torch", "ray", "cv2", "pandas", "PIL")


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_code_location_loads_nothing_heavy() -> None:
    assert _loaded_by("from mm_assets.definitions import defs").isdisjoint(HEAVY)


def test_package_loads_nothing_at_all() -> None:
    assert _loaded_by("import mm_assets").isdisjoint({*HEAVY, "pyarrow", "dagster", "fsspec"})


def test_data_model_and_cli_load_no_dagster() -> None:
    assert _loaded_by("import mm_assets.interleaved").isdisjoint({*HEAVY, "dagster"})
    everything = (
        "from mm_assets.interleaved import *; import mm_assets.cli.convert, mm_assets.graph.shard_work"
    )
    assert "dagster" not in _loaded_by(everything)


def test_workers_load_no_dagster() -> None:
    """By the function that they are given, or by what it calls: it would take each a second of CPU."""
    resources = resources_from_environment().values()
    jobs = {resource.run_job.__module__ for resource in resources if isinstance(resource, ShardIOManager)}
    assert jobs == {"mm_assets.graph.shard_jobs"}
    assert "dagster" not in _loaded_by("import mm_assets.graph.shard_jobs, mm_assets.graph.shard_work")


@pytest.mark.parametrize("command", ["convert", "run"])
def test_a_command_forks_its_workers(tmp_path: Path, command: str) -> None:
    """No library has started a thread before: a spawned worker would import everything again."""
    assert _loaded_by("import mm_assets.cli").isdisjoint({"numpy", "pyarrow", "dagster"})
    (shard,) = make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    arguments = ["convert", shard, tmp_path / "out", "--to", "parquet"] if command == "convert" else ["run"]
    settings = {"MM_RAW_SHARDS": str(shard), "MM_STORAGE": str(tmp_path / "storage")}
    imported = imports_of(*arguments, **settings, DAGSTER_HOME=str(tmp_path / "home"))
    assert imported.count("pyarrow.lib") == 1
    assert imported.count("dagster._core.storage.sql") == (command == "run")
    assert FOR_OTHERS.isdisjoint(imported), "no migration, no daemon"


CODE_SERVER = """
from pathlib import Path
from dagster._grpc.server import DagsterApiServer
import mm_assets.definitions
import dagster._cli, dagster._grpc.impl, mm_assets.graph.shard_jobs, mm_assets.graph.shard_work
print(hasattr(DagsterApiServer, "_mp_ctx") and DagsterApiServer._mp_ctx.fget(None).get_start_method())
print(*sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("[0-9]*/comm")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux")
def test_a_code_server_forks_its_runs_if_nothing_that_they_import_has_a_thread(tmp_path: Path) -> None:
    """A plugin may have started one; what a code location of others needs is not known."""
    (tmp_path / "plugin_of_mine.py").write_text("SOURCES = ()")
    variables = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    ours, others = "mm_assets.definitions", "theirs.definitions"
    for plugins, module, runs in (
        ("", ours, "forkserver"),
        ("plugin_of_mine", ours, "False"),
        ("", others, "False"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", CODE_SERVER, "-m", module],
            capture_output=True,
            text=True,
            env=variables | {"MM_PLUGINS": plugins},
        )
        assert done.stdout.splitlines() == [runs, "jemalloc_bg_thd python"], done.stderr


MIGRATION = """
import sys
from mm_assets.headless.instance import import_dagster

import_dagster()
import mm_assets.headless.run
import mm_assets.event_log.sqlite

print([name for name in sys.argv[2:] if name in sys.modules])
import sqlite3
import dagster as dg
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._daemon.freshness import FreshnessDaemon

with dg.DagsterInstance.local_temp(sys.argv[1]) as instance:
    storage = SqliteEventLogStorage(f"{sys.argv[1]}/older")
    storage.get_dynamic_partitions("none")
    with sqlite3.connect(f"{sys.argv[1]}/older/index.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '6b7fb194ff9c'")
    before, head = storage.alembic_version()
    instance.run_storage.upgrade()
    storage.upgrade()
    print(before, storage.alembic_version()[0] == head != before)
    FreshnessDaemon().logger.info("a message")
import alembic, structlog
print(callable(alembic.command.upgrade), type(alembic.command).__name__, type(structlog).__name__)
"""


def test_commands_import_dagster_without_what_is_for_others(tmp_path: Path) -> None:
    """It is there when it is used: by a migration, and by the daemon. If this fails after an upgrade of
    Dagster, `import_dagster` may be nothing but ``import dagster``.
    """
    command = [sys.executable, "-c", MIGRATION, str(tmp_path), *FOR_OTHERS]
    done = subprocess.run(command, capture_output=True, text=True)
    first, *_, migrated, real = done.stdout.splitlines()
    assert (first, migrated, real) == ("[]", "6b7fb194ff9c True", "True module module"), done.stderr


@pytest.mark.parametrize("has_thread", [False, True])
def test_the_end_of_a_command_does_what_is_registered_for_it(has_thread: bool) -> None:
    """Where a thread goes on, the process waits for it."""
    code = f"""
import atexit, sys, threading, time
from mm_assets.terminal import end_process

atexit.register(print, "registered")
if {has_thread}:
    threading.Thread(target=lambda: (time.sleep(0.3), print("done"))).start()
sys.stdout.write("text without an end")
end_process(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    ends = ["done\n", "registered\n"] if has_thread else ["registered\n"]
    assert done.stdout == "".join(["text without an end", *ends])


def test_the_code_location_is_built_anew_by_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Dagster and a notebook ask for it: by its name, and by what `dir` lists."""
    module = importlib.reload(importlib.import_module("mm_assets.definitions"))
    assert isinstance(dict(inspect.getmembers(module))["defs"], dg.Definitions)
    first = module.defs
    assert module.defs is first
    monkeypatch.setenv("MM_OWNERS", "team:data")
    changed = importlib.reload(module).defs
    assert changed is not first
    owners = {spec.key.to_user_string(): list(spec.owners) for spec in changed.resolve_all_asset_specs()}
    assert owners["report"] == ["team:data"]
    monkeypatch.undo()
    importlib.reload(module)


def test_what_users_extend_loads_no_dagster() -> None:
    assert _loaded_by("import mm_assets.extend").isdisjoint({*HEAVY, "dagster"} - {"PIL"})


def test_lance_loads_no_client_of_a_store() -> None:
    assert _loaded_by("import mm_assets.formats.lance.reader_writer").isdisjoint(("s3fs", "botocore"))


def test_definitions_are_loadable_and_are_the_graph() -> None:
    definitions = build_definitions()
    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    parents = {
        name: sorted(dep.asset_key.to_user_string() for dep in spec.deps) for name, spec in specs.items()
    }
    assert parents == {
        "raw_shards": [],
        "curated_parquet": ["raw_shards"],
        "quarantine": ["curated_parquet", "raw_shards"],
        "image_scores": ["curated_parquet"],
        "sample_scores": ["curated_parquet"],
        "filtered_parquet": ["curated_parquet", "image_scores", "sample_scores"],
        "final_tars": ["filtered_parquet"],
        "lance_table": ["filtered_parquet"],
        "arrow_cache": ["filtered_parquet"],
        "report": ["filtered_parquet"],
        "training_set": ["final_tars"],
    }
    keys = definitions.resolve_asset_graph().asset_check_keys
    checks = {(key.asset_key.to_user_string(), key.name) for key in keys}
    rows = ("curated_parquet", "filtered_parquet", "final_tars", "lance_table", "arrow_cache")
    of_rows = ("schema_alignment", "materialization_errors", "ledger_balance", "landed", "zero_loss")
    assert checks >= {(asset, check) for asset in rows for check in of_rows} | {
        ("raw_shards", "integrity"),
        ("raw_shards", "unique_sample_ids"),
        ("raw_shards", "schema_contract"),
        ("curated_parquet", "images_decode"),
        ("quarantine", "empty"),
        ("quarantine", "landed"),
        ("image_scores", "dimensions_agree"),
        ("image_scores", "ledger_balance"),
        ("image_scores", "landed"),
        ("sample_scores", "landed"),
    }


def test_assets_have_owners_links_and_column_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM_OWNERS", "team:data, ada@example.org")
    monkeypatch.setenv("MM_STORAGE", "/data/it's here")
    specs = {spec.key.to_user_string(): spec for spec in build_definitions().resolve_all_asset_specs()}
    for name, spec in specs.items():
        assert list(spec.owners) == ([] if name == "raw_shards" else ["team:data", "ada@example.org"])
        assert spec.kinds, name
    filtered = specs["filtered_parquet"].metadata
    assert filtered["output"] == dg.MetadataValue.path("/data/it's here/filtered")
    accounts = "'/data/it''s here/ledger/accounts/filtered_parquet/*.parquet'"
    assert filtered["lost_items"] == f"SELECT * FROM {accounts} WHERE kind IS NOT NULL"
    assert filtered["report"] == dg.MetadataValue.asset(dg.AssetKey("report"))
    lineage = filtered["dagster/column_lineage"].deps_by_column
    curated = dg.AssetKey("curated_parquet")
    assert lineage["binary_content"] == [dg.TableColumnDep(curated, "binary_content")]
    width = specs["image_scores"].metadata["dagster/column_lineage"].deps_by_column["width"]
    assert width == [dg.TableColumnDep(curated, "binary_content")]
    assert "dagster/column_lineage" not in specs["curated_parquet"].metadata, "raw shards have no columns"
