"""The headless run: its exit code, what it tells, and which partitions it leaves alone or forgets; also as a
process of its own, as `make demo` is.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._utils.error import SerializableErrorInfo

from mm_assets.definitions import build_definitions
from mm_assets.graph.instance_queries import failing_shards
from mm_assets.headless.instance import was_interrupted
from mm_assets_tests.cli.commands import STILLBORN, environment, interrupt, only_line, run, run_process
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import Loading
from mm_assets_tests.headless.conftest import Project
from tools.demo import demo_thresholds, make_shards

ROOT = Path(__file__).parents[2]


def demo(folder: Path, locations: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`make demo` over these raw shards, with the outputs in a folder's ``storage``."""
    return run_process(module="tools.demo", cwd=folder, env={**_settings(folder, locations), **variables})


def _settings(folder: Path, locations: str) -> dict[str, str]:
    places = {"MM_STORAGE": str(folder / "storage"), "DAGSTER_HOME": str(folder / "home")}
    return {"MM_RAW_SHARDS": locations, "MM_WORKERS": "1", **places}


def run_over(folder: Path, locations: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The same in this process, as `mm-assets run`; with `project`, its runs are in memory."""
    return run("run", **{**_settings(folder, locations), **variables})


def test_the_demo_prints_its_thresholds_for_make_ui(tmp_path: Path) -> None:
    """And makes nothing: the shell evaluates all that it prints."""
    done = run_process("--exports", module="tools.demo", cwd=tmp_path, env={"MM_RAW_SHARDS": None})
    assert done.stdout == "export MM_MIN_ASPECT_RATIO=1.0\nexport MM_MAX_ASPECT_RATIO=2.0\n"
    assert list(tmp_path.iterdir()) == []
    shown = subprocess.run(["make", "-n", "ui"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m tools.demo --exports)" in shown


def test_a_bad_line_of_a_hash_list_is_refused_before_anything_is_made(
    tmp_path: Path, project: Project
) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=2)
    listed = tmp_path / "known.txt"
    listed.write_text("# from the office\n12\n")
    done = run_over(tmp_path, str(tmp_path / "raw"), MM_HASH_LISTS=str(listed))
    assert (done.returncode, done.stdout) == (1, "")
    expected = f"MM_HASH_LISTS: {listed}: row 2: sha256: '12' is not 64 hex digits"
    assert done.stderr == f"mm-assets: {expected}\n"
    assert list((tmp_path / "storage").rglob("*.parquet")) == []


def test_partitions_of_shards_that_are_gone(tmp_path: Path, project: Project) -> None:
    """They are told, and neither made nor forgotten: `mm-assets retire` does that."""
    gone = make_shards(tmp_path / "raw", members=2, pdf=0, samples=2)[1]
    assert run_over(tmp_path, str(tmp_path / "raw")).returncode == 0
    gone.unlink()
    done = run_over(tmp_path, str(tmp_path / "raw"))
    assert done.returncode == 0
    assert done.stderr == (
        "mm-assets: warning: 1 raw shard is gone, or not in MM_RAW_SHARDS any more; "
        "the outputs stay: web-00001 (mm-assets retire removes them)\n"
    )
    with project.instance() as instance:
        known = instance.get_dynamic_partitions("shards")
    assert list(known) == ["web-00000", "web-00001"]


def test_what_is_wrong_with_raw_shards_is_told_in_lines(tmp_path: Path) -> None:
    """One is absent, one has no samples, a folder is gone, an image is absent, a list is too long: the rest
    lands, and no line is Python's own.
    """
    raw = tmp_path / "raw"
    document = {"texts": ["x", None], "images": [None, "none.png"], "widths": [1, 2, 3]}
    make_tar(raw / "a.tar", [("s.json", document)])
    make_tar(raw / "b.tar", [("t.json", {"texts": ["y"], "images": [None]})])
    make_tar(raw / "d.tar", [])
    done = run_over(
        tmp_path,
        f"{raw}/{{a,b,c,d}}.tar {raw}/gone",
        MM_ON_MATERIALIZE_ERROR="warn",
        MM_PER_IMAGE_FIELDS="widths",
    )
    assert done.returncode == 1
    told = done.stdout.splitlines()
    assert told[1] == f"shard 'c' of curated_parquet: {raw}/c.tar: no such file or folder"
    assert told[2].startswith("shard 'a': raw_shards.integrity: 1 unresolved")
    assert told[3] == "no samples in 1 of 3 shards: d"
    assert told[4].startswith("asset ")
    assert sum("c.tar" in line or "'c'" in line for line in told[1:]) == 1
    assert sorted(path.name for path in (tmp_path / "storage" / "webdataset").glob("*.tar")) == [
        "a.tar",
        "b.tar",
    ]
    lines = done.stderr.splitlines()
    assert len(set(lines)) == len(lines)
    assert f"mm-assets: warning: {raw}/gone: no such file" in lines
    assert (
        "mm-assets: warning: a.tar: s.json: 'widths' has 3 values for 1 items; kept whole on the metadata row"
        in lines
    )
    assert f"mm-assets: warning: {raw}/a.tar: sample 's', position 1: missing member 'none.png'" in lines
    assert [line for line in lines if not line.startswith("mm-assets: warning: ")] == []
    printed_by_tail = list((tmp_path / "home").rglob("compute_logs"))
    assert printed_by_tail == []  # on a busy machine Dagster ends it before it has printed them all


def test_partitions_of_a_folder_that_is_gone_are_not_forgotten(tmp_path: Path, project: Project) -> None:
    for name in "ab":
        make_tar(tmp_path / name / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "images": [None]})])
    locations = f"{tmp_path}/a {tmp_path}/b"
    assert run_over(tmp_path, locations).returncode == 0
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    done = run_over(tmp_path, locations)
    assert done.returncode == 1
    assert (
        done.stdout.splitlines()[1]
        == "shard 'b/b' of curated_parquet: input missing: shard 'b/b' of raw_shards: no such raw shard"
    )
    proof = "NOT PROVEN: 1 of 2 shards in all 5 outputs; the others: b/b failed in curated_parquet"
    assert done.stdout.splitlines()[-3] == proof
    assert done.stdout.count("b/b") == 3, "in its own line, in that of the proof, and nowhere else"


def test_every_shard_that_failed_has_one_line_with_its_own_cause(tmp_path: Path, project: Project) -> None:
    """One is absent, one has types that do not fit, one fails in an asset further on: what only follows from
    that is not repeated.
    """
    raw, storage = tmp_path / "raw", tmp_path / "storage"
    for name in "abd":
        make_tar(raw / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "n": 1})])
    (storage / "filtered" / "d.parquet").mkdir(parents=True)
    (storage / "filtered" / "d.parquet" / "x").touch()
    assert run_over(tmp_path, f"{raw}/{{a,b}}.tar").returncode == 0
    make_tar(raw / "b.tar", [("b.json", {"texts": ["x"], "n": "text"})])
    done = run_over(tmp_path, f"{raw}/{{a,b,c,d}}.tar")
    assert done.returncode == 1
    _, *told = done.stdout.splitlines()
    assert told[0].startswith(
        "shard 'b' of curated_parquet: column 'n': string in this shard, int64 in shard 'a'"
    )
    assert told[1] == f"shard 'c' of curated_parquet: {raw}/c.tar: no such file or folder"
    assert told[2] == f"shard 'd' of filtered_parquet: {storage}/filtered/d.parquet: a folder, not a file"
    assert told[3].startswith("asset ")
    assert not any("input missing" in line or "landed" in line for line in told)
    assert (
        f"raw shards: {raw}/{{a,b,c,d}}.tar; shards failed: 3; members and items lost of the others: "
        f"0%; checks failed: 2 (1 integrity, 1 schema_contract, see above; "
        "unchanged shards were not checked again)" in told
    )


def test_shards_that_turn_a_column_into_json_text_are_told_once(tmp_path: Path, project: Project) -> None:
    for name in "abcde":
        year = "1999" if name in "bd" else 1999
        make_tar(tmp_path / "raw" / f"{name}.tar", [(f"{name}.json", {"texts": ["x"], "year": year})])
    line = (
        "column 'year' becomes JSON text in all shards as they are made: "
        "int64 in 3 shards, but string in shards 'b', 'd'; "
        "see docs/accounting.md"
    )
    settings = _settings(tmp_path, str(tmp_path / "raw"))
    for arguments in ((), ("--assets", "curated_parquet"), ("b",)):
        done = run("run", *arguments, **settings)
        assert (done.returncode, done.stdout.count("year")) == (0, 1)
        assert line in done.stdout.splitlines() and done.stdout.count("schema_contract") == 1
    assert "year" not in run("run", "a", **settings).stdout
    with project.instance() as instance:
        check = dg.AssetCheckKey(dg.AssetKey("raw_shards"), "schema_contract")
        found = failing_shards(instance, check, 100)
    assert {(key, each.severity) for key, each in found.items()} == {
        ("b", dg.AssetCheckSeverity.WARN),
        ("d", dg.AssetCheckSeverity.WARN),
    }
    assert {each.metadata["summary"].value for each in found.values()} == {line.partition(";")[0]}


def test_after_a_run_every_check_of_each_asset_is_evaluated(tmp_path: Path, project: Project) -> None:
    """With `up_to_date`: no sensor has looked. But for the training set, which no run makes unless asked."""
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["x"]})])
    for arguments in ((), ("a",)):
        assert run("run", *arguments, **_settings(tmp_path, str(tmp_path / "raw"))).returncode == 0
        with project.instance() as instance:
            every = build_definitions().resolve_asset_graph().asset_check_keys
            keys = [key for key in every if key.asset_key.to_user_string() != "training_set"]
            records = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
            assert set(records) == set(keys)
            for key, record in records.items():
                assert record.evaluation is not None and record.evaluation.passed, key
                assert asyncio.run(record.targets_latest_materialization(Loading(instance))), key


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"MM_RAW_SHARDS": "{folder}/s-{{0..999999999999}}.tar"},
            "{folder}/s-{{0..999999999999}}.tar: the braces stand for 1,000,000",
        ),
        (
            {"MM_RAW_SHARDS": "{folder}/notes.txt"},
            "no raw shards: {folder}/notes.txt: no raw shard: the name of one ends in .tar",
        ),
        (
            {"MM_RAW_SHARDS": "s3://no-bucket/a"},
            "no raw shards: s3://no-bucket/a: no credentials: set AWS_ACCESS_KEY_ID and",
        ),
        ({"MM_STORAGE": "s3://no-bucket/a"}, "s3://no-bucket/a: no credentials: set AWS_ACCESS_KEY_ID and"),
        ({"MM_STORAGE": "{folder}/notes.txt"}, "{folder}/notes.txt: a file, not a folder"),
        ({"DAGSTER_HOME": "{folder}/notes.txt"}, "{folder}/notes.txt: a file, not a folder"),
        ({"MM_STORAGE": "{folder}/odd-\udcff"}, "MM_STORAGE must be UTF-8 text without null characters"),
        ({"MM_WORKERS": "many"}, "MM_WORKERS must be a whole number, not 'many'"),
    ],
)
def test_settings_that_cannot_work_are_one_line(tmp_path: Path, variables: dict[str, str], line: str) -> None:
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["x"]})])
    (tmp_path / "notes.txt").write_text("not a folder")
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    done = run_over(tmp_path, str(tmp_path / "raw"), **given)
    assert only_line(done).startswith(line.format(folder=tmp_path))


def test_a_storage_that_is_closed_is_one_line(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["x"]})])
    (tmp_path / "closed").mkdir(mode=0o555)
    given = {**_settings(tmp_path, str(tmp_path / "raw")), "MM_STORAGE": str(tmp_path / "closed")}
    done = run_process(module="tools.demo", env=given, cwd=tmp_path, as_user=True)
    assert only_line(done).startswith(f"{tmp_path}/closed: permission denied")


def test_workers_that_cannot_start_are_one_line(tmp_path: Path) -> None:
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["x"]})])
    (tmp_path / "sitecustomize.py").write_text(STILLBORN.format("raise SystemExit('no memory for this')"))
    done = demo(tmp_path, str(tmp_path / "raw"), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        done.stdout.splitlines()[1]
        == "step curated_parquet failed: worker processes do not start: SystemExit: no memory for this"
    )


def test_a_run_that_fails_before_its_first_step_says_why(tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=2)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text(
        "compute_logs:\n"
        "  module: dagster_aws.s3.compute_log_manager\n"
        "  class: S3ComputeLogManager\n"
        "  config: {bucket: {env: NO_SUCH_VARIABLE}}\n"
    )
    done = run_over(tmp_path, str(tmp_path / "raw"))
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if "the run failed" in line]
    assert "NO_SUCH_VARIABLE" in line


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_interrupt_inside_an_io_manager_is_one(wrapped: bool) -> None:
    """Dagster wraps what an IO manager raises."""
    error = SerializableErrorInfo("", [], "DagsterExecutionInterruptedError")
    if wrapped:
        error = SerializableErrorInfo("", [], "DagsterExecutionHandleOutputError", cause=error)
    other = SerializableErrorInfo("", [], "DagsterExecutionHandleOutputError")
    for found, expected in ((error, True), (other, False), (None, False)):
        event = SimpleNamespace(
            event_type=None,
            is_step_failure=True,
            is_job_failure=False,
            step_failure_data=SimpleNamespace(error=found),
        )
        assert was_interrupted(SimpleNamespace(all_events=[event])) is expected


def test_a_terminal_without_such_letters(tmp_path: Path) -> None:
    make_tar(tmp_path / "größe" / "日.tar", [("a.json", {"texts": ["x"]}), ("b.json", b"{")])
    done = demo(tmp_path, str(tmp_path / "größe"), PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout.splitlines()[0]
        == rf"materializing all assets for the raw shards in {tmp_path}/gr\xf6\xdfe ..."
    )
    assert (
        done.stdout.splitlines()[1]
        == r"shard '\u65e5': raw_shards.integrity: 1 unreadable; quarantine.empty: not empty: 1 bad_json"
    )


def test_an_interrupt_that_a_parent_blocks_is_received() -> None:
    """With Ray nothing else takes the block away, as `multiprocessing` does when it starts a process."""
    code = (
        "import time; from mm_assets.headless.instance import watch_for_interrupts as watch; watch(); "
        "print(flush=True); "
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Another thread gets the signal, which ends no long sleep of this one.
        process = subprocess.Popen(
            [sys.executable, "-c", f"{code}[time.sleep(0.05) for _ in range(1200)]"], stdout=subprocess.PIPE
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    process.stdout.close()


@pytest.mark.parametrize("moment", ["before the run", "in the run"])
def test_an_interrupt_is_one_line_and_leaves_no_process(tmp_path: Path, moment: str) -> None:
    """Dagster's helpers get the signal, too, and so do workers that are still starting."""
    note = tmp_path / "started"
    wait = f"open({str(note)!r}, 'w').write(str(os.getpid())); import time; time.sleep(60)"
    condition = "True" if moment == "in the run" else "False"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys\nif {condition} and '--multiprocessing-fork' in sys.orig_argv:\n    {wait}\n"
        f"if not {condition} and sys.orig_argv[-1] == 'tools.demo':\n    import threading\n"
        f"    def watch():\n        while 'dagster' not in sys.modules: pass\n        "
        f"open({str(note)!r}, 'w').write('')\n"
        "    threading.Thread(target=watch, daemon=True).start()\n"
    )
    make_tar(tmp_path / "raw" / "a.tar", [("a.json", {"texts": ["x"]})])
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    folders = {"MM_RAW_SHARDS": str(tmp_path / "raw"), "MM_STORAGE": str(tmp_path / "storage")}
    variables = environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", **folders)
    command = [sys.executable, "-m", "tools.demo"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert interrupt(process, note) == (130, "mm-assets: interrupted; nothing half-written was published\n")


@pytest.mark.parametrize(
    ("locations", "message"),
    [
        ("{storage}/x.tar {storage}", "mm-assets: no raw shards: those found lie below MM_STORAGE\n"),
        ("{storage}/../gone/*.tar", "mm-assets: no raw shards: {storage}/../gone/*.tar: no such file\n"),
    ],
)
def test_without_raw_shards_one_line_says_why(tmp_path: Path, locations: str, message: str) -> None:
    storage = tmp_path / "storage"
    make_tar(storage / "x.tar", [])
    done = run_over(tmp_path, locations.format(storage=storage))
    assert (done.returncode, done.stderr) == (1, message.format(storage=storage).replace("/storage/..", ""))


@pytest.mark.parametrize("name", ["MM_RAW_SHARDS", "MM_MAX_ASPECT_RATIO", "MM_MIN_IMAGE_SIDE"])
def test_the_thresholds_of_the_demo_give_way_to_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MM_RAW_SHARDS", "MM_MIN_ASPECT_RATIO", "MM_MAX_ASPECT_RATIO"):
        monkeypatch.delenv(variable, raising=False)
    assert demo_thresholds() == {"MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}
    monkeypatch.setenv(name, "3")
    assert demo_thresholds() == {}


HANGS = """
import time
from dataclasses import dataclass
from mm_assets.extend import ScoreFilter, minimum

@dataclass(frozen=True)
class Hanging(ScoreFilter):
    name = "hanging"
    min_patience: int = minimum("patience", int, "any number")
    def verdict(self, score):
        while score.byte_size == {nbytes}:
            time.sleep(60)

FILTERS = (Hanging,)
"""


def test_a_shard_that_never_ends_fails_alone(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is ended after `MM_SHARD_TIMEOUT`, and no asset that is made from it waits."""
    pictures = {"hangs": picture(0)[1], "lands": picture(1)[1]}
    for name, image in pictures.items():
        document = {"sample_id": name, "texts": [None], "images": ["i.png"]}
        make_tar(tmp_path / "raw" / f"{name}.tar", [("s.json", document), ("i.png", image)])
    (tmp_path / "hanging.py").write_text(HANGS.format(nbytes=len(pictures["hangs"])))
    settings = {"MM_PLUGINS": "hanging", "MM_MIN_PATIENCE": "1", "MM_SHARD_TIMEOUT": "10s"}
    monkeypatch.syspath_prepend(tmp_path)
    done = run_over(tmp_path, str(tmp_path / "raw"), **settings)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if "took longer" in line]
    assert (
        line
        == "shard 'hangs' of filtered_parquet: took longer than 10 seconds (MM_SHARD_TIMEOUT), and was ended"
    )
    assert [path.name for path in (tmp_path / "storage" / "webdataset").glob("*.tar")] == ["lands.tar"]
