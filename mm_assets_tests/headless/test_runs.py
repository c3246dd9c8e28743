"""`mm-assets run` and `mm-assets prove`: exit codes, runs of a few shards, processes that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import dagster as dg
import pytest

from mm_assets.graph.dagster_internals import chunks
from mm_assets.headless import request
from mm_assets_tests.cli.commands import REPOSITORY, STILLBORN, environment, fine, only_line
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import ASSETS, Project


def test_many_shards_are_several_runs_and_one_summary(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run with a bad shard keeps none of the others back."""
    monkeypatch.setattr(request, "chunks", partial(chunks, size=2))
    project.shards("abde")
    project.broken("c")
    done = project.run("--assets", "curated_parquet,image_scores")
    told = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert told[1:4] == [
        "run 1 of 3: 2 shards, a to b",
        "run 2 of 3: 2 shards, c to d",
        "run 3 of 3: 1 shard, e",
    ]
    assert told[4].startswith("shard 'c' of curated_parquet: ")
    table = {line.split()[0]: line.split()[1:3] for line in told[5:8]}
    assert table == {
        "asset": ["partitions", "unchanged"],
        "curated_parquet": ["4", "0"],
        "image_scores": ["4", "0"],
    }
    assert told[8] == "NOT PROVEN: 4 of 5 shards in 1 output; the others: c failed in curated_parquet"
    assert project.runs() == 3
    tags = {"mm_assets/started_by": "mm-assets run"}
    with project.instance() as instance:
        assert all(tags.items() <= run.tags.items() for run in instance.get_runs())


def test_the_exit_code_is_that_of_the_loss_policy(project: Project) -> None:
    documents = [("s.json", {"texts": ["x"]}), ("t.json", b"{"), ("u.json", {"texts": ["y"]})]
    make_tar(project.raw / "a.tar", documents)
    only = ("--assets", "curated_parquet")
    done = project.run(*only, MM_MAX_LOSS="0.1")
    assert (done.returncode, "shards failed: 1" in done.stdout) == (1, True)
    done = project.run(*only, MM_MAX_LOSS="0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "members and items lost: 20%" in done.stdout, "one member of five members and items"


@pytest.mark.parametrize(("sound", "told"), [(150, "0.3%"), (750, "0.07%, 1 of 1,501")])
def test_a_little_that_is_lost_is_not_nothing(project: Project, sound: int, told: str) -> None:
    documents = [(f"{number}.json", {"texts": ["x"]}) for number in range(sound)]
    make_tar(project.raw / "a.tar", [*documents, ("bad.json", b"{")])
    assert f"members and items lost: {told};" in fine(project.run("--assets", "curated_parquet"))


def test_a_shard_that_was_made_when_more_was_allowed_has_lost_too_much(project: Project) -> None:
    """Images that cannot be decoded are found when they are read, and it is not read again."""
    document = {"texts": ["x", None], "images": [None, "s.png"]}
    png = picture(0)[1]
    cut = ("s.png", png[: len(png) // 2])
    make_tar(project.raw / "a.tar", [("s.json", document), cut, ("t.json", {"texts": ["y"]})])
    only = ("--assets", "curated_parquet")
    assert project.run(*only, MM_MAX_LOSS="0.9").returncode == 0
    done = project.run(*only, MM_MAX_LOSS="0.1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "lost more than MM_MAX_LOSS allows, 10%: a " in done.stdout.splitlines()[-2]


def test_prove(project: Project) -> None:
    missing = f"{project.storage}: no such storage, so there is nothing to prove (MM_STORAGE)"
    assert only_line(project.command("prove")) == missing
    project.storage.mkdir()
    assert fine(project.command("prove")) == "nothing to prove: no shard was ever made\n"
    project.shards("ab")
    fine(project.run())
    *table, last = fine(project.command("prove")).splitlines()
    assert last == "proven: every item of 2 shards is in 5 outputs as it was written (proof/proof.json)"
    assert [line.split() for line in table] == [
        ["asset", "partitions", "proven", "changed", "not", "examined", "where"],
        ["curated_parquet", "2", "2", "0", "0", "curated"],
        ["filtered_parquet", "2", "2", "0", "0", "filtered"],
        ["final_tars", "2", "2", "0", "0", "webdataset"],
        ["lance_table", "2", "2", "0", "0", "lance/items.lance"],
        ["arrow_cache", "2", "2", "0", "0", "arrow_cache"],
    ]
    assert only_line(project.command("prove", "c")) == "'c': no such partition"
    (project.storage / "filtered" / "b.parquet").write_bytes(b"")
    assert fine(project.command("prove", "a")).splitlines()[-1].startswith("proven: every item of 1 shard ")
    done = project.command("prove", "b", "b")
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if "b.parquet" in line] == [
        "shard 'b': filtered_parquet.zero_loss: filtered/b.parquet: cannot be read: "
        "filtered/b.parquet: pyarrow cannot read it: Parquet file size is 0 bytes"
    ]
    assert "filtered_parquet 1 0 1 0 filtered" in [
        " ".join(line.split()) for line in done.stdout.splitlines()
    ]
    assert done.stdout.splitlines()[-1] == (
        "NOT PROVEN: 0 of 1 shard in all 5 outputs; the others: b not as written in filtered_parquet; "
        "the next run makes it again"
    )
    (project.storage / "filtered" / "z.parquet").write_bytes(b"")
    (line,) = [line for line in project.command("prove").stdout.splitlines() if "z.parquet" in line]
    assert line.startswith("step filtered_parquet_zero_loss failed: ") and line.endswith("z.parquet")


def test_what_was_never_made_is_not_unproven(project: Project) -> None:
    project.shards("a")
    project.broken("b")
    assert project.run().returncode == 1
    done = fine(project.command("prove")).splitlines()
    assert done[0] == "never made, nothing to prove: b"
    assert done[-1] == "proven: every item of 1 shard is in 5 outputs as it was written (proof/proof.json)"


def test_what_only_the_records_know_of_is_proven_too(made: Project) -> None:
    with made.instance() as instance:
        instance.wipe_assets([dg.AssetKey([asset]) for asset in ASSETS])
    (made.storage / "filtered" / "b.parquet").write_bytes(b"")
    done = made.command("prove")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "NOT PROVEN: 0 of 1 shard in the outputs that were made; the others: b not as written in "
        "filtered_parquet; the next run makes it again"
    )


def test_what_a_shard_has_lost_is_told_in_each_run(project: Project) -> None:
    document = {"texts": ["x", "y", None], "images": [None, None, "a.png"]}
    images = [(name, picture(0)[1]) for name in ("a.png", "unused-0.png", "unused-1.png")]
    make_tar(project.raw / "a.tar", [("a.json", document), *images])
    told = (
        "shard 'a': lost 33.3% of its members and items: 2 unreferenced members (unused-0.png, unused-1.png)"
    )
    first, second = (fine(project.run()).splitlines() for _ in range(2))
    assert [line for line in first if line.startswith("shard ")] == [told]
    assert [line for line in second if line.startswith("shard ")] == [told]
    assert first[-2].endswith("members and items lost: 33%; checks failed: 0")
    assert second[-2].endswith(
        "members and items lost: 33%; checks failed: 0 (unchanged shards were not checked again)"
    )


def test_a_run_whose_process_is_killed_is_made_up_for(project_on_disk: Project) -> None:
    """To Dagster it goes on for ever: its shards would count as in progress."""
    project = project_on_disk
    note = project.folder / "started"
    wait = f"open({str(note)!r}, 'w').close(); import time; time.sleep(600)"
    (project.folder / "sitecustomize.py").write_text(STILLBORN.format(wait))
    project.shards("ab")
    variables = environment(
        PYTHONPATH=f"{project.folder}{os.pathsep}{REPOSITORY}",
        DAGSTER_HOME=str(project.home),
        MM_RAW_SHARDS=str(project.raw),
        MM_STORAGE=str(project.storage),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "mm_assets.cli", "run"],
        cwd=project.folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not note.exists():
        assert process.poll() is None
        time.sleep(0.02)
    assert project.plan("--missing", "--failed") == ["0 of 2 shards would be taken"], "it is being made"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    plan = project.plan("--failed")
    assert len(plan) == 2
    assert re.fullmatch(r"failed: a run ended before it was made: 2 shards in \d assets \(a, b\)", plan[0]), (
        plan
    )
    # They were never made, either.
    assert project.plan("--missing") == plan
    fine(project.run("--missing"))
    assert project.made() == {asset: ["a", "b"] for asset in ASSETS}
