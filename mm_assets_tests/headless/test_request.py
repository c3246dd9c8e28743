"""`mm-assets run`: which shards and assets it makes, and what it says of them before."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg
import pytest

from mm_assets.headless.request import Selection
from mm_assets_tests.cli.commands import fine, only_line
from mm_assets_tests.graph.published import lost_items
from mm_assets_tests.headless.conftest import ASSETS, Project

SOME = ("--missing", "--failed", "--changed")


def test_missing_shards_a_few_at_a_time(project: Project) -> None:
    project.shards("abcde")
    assert project.plan("--limit", "2") == [
        f"missing: never made: 2 shards in {len(ASSETS)} assets (a, b)",
        "2 of 5 shards would be taken in 1 run; 3 more are beyond the limit",
    ]
    assert not project.storage.exists(), "a dry run makes nothing"
    fine(project.run("--missing", "--limit", "2"))
    assert project.made() == {asset: ["a", "b"] for asset in ASSETS}
    fine(project.run("--missing", "--limit", "2"))
    assert project.made() == {asset: ["c", "d"] for asset in ASSETS}
    fine(project.run(*SOME))
    assert project.made() == {asset: ["e"] for asset in ASSETS}
    runs = project.runs()
    assert fine(project.run(*SOME)).splitlines()[-1] == "nothing to do"
    assert project.runs() == runs
    assert project.plan() == [
        "5 of 5 shards would be taken in 1 run; 5 of them are up to date, and would be left as they are"
    ]


def test_named_shards_and_assets(project: Project) -> None:
    project.shards("abc")
    fine(project.run("a", "c", "a", "--assets", "curated_parquet,quarantine"))
    assert project.runs() == 2, "a run takes neighbours"
    assert [project.made(run) for run in (1, 0)] == [
        {"curated_parquet": [key], "quarantine": [key]} for key in "ac"
    ]
    done = fine(project.run("--missing", "--assets", "image_scores,curated_parquet"))
    # Each shard in those assets that it is missing in; nothing is proven of scores alone.
    assert {str(project.made(run)) for run in (0, 1)} == {
        str({"curated_parquet": ["b"], "image_scores": ["b"]}),
        str({"image_scores": ["a", "c"]}),
    } or project.runs() == 5
    assert "proven: every item of 1 shard is in 1 output" in done
    assert project.plan("--missing", "b", "--assets", "filtered_parquet") == [
        "missing: never made: 1 shard in filtered_parquet (b)",
        "1 of 3 shards would be taken in 1 run",
    ]
    fine(project.run("--missing"))
    assert project.plan(*SOME) == ["0 of 3 shards would be taken"]


def test_a_run_goes_over_a_few_shards_that_are_as_they_should_be() -> None:
    order = [f"{number:03}" for number in range(200)]
    asset = (dg.AssetKey("filtered_parquet"),)
    chosen = ["000", "020", "100", "110", "111"]

    def runs(current: Iterable[str]) -> list[tuple[str, str]]:
        selection = Selection({asset: chosen}, {}, current=frozenset(current))
        return [(keys[0], keys[-1]) for assets, keys in selection.runs(order) if assets == asset]

    others = set(order).difference(chosen)
    assert runs(others) == [("000", "020"), ("100", "111")]
    assert runs(others - {"105"}) == [("000", "020"), ("100", "100"), ("110", "111")]
    assert runs([]) == [("000", "000"), ("020", "020"), ("100", "100"), ("110", "111")]


def test_shards_that_are_due_in_different_assets_are_proven_in_those(project: Project) -> None:
    project.shards("ab")
    fine(project.run("a"))
    made = "curated_parquet,image_scores,quarantine,sample_scores,filtered_parquet"
    fine(project.run("b", "--assets", made))
    project.shard("a", "other text")
    done = fine(project.run(*SOME))
    assert "proven: every item of 2 shards is in the outputs that were made as it was written" in done
    assert [project.made(run) for run in (1, 0)] == [
        {asset: ["a"] for asset in ASSETS if asset != "image_scores"} | {"image_scores": ["a"]},
        {asset: ["b"] for asset in ASSETS[-3:]},
    ]


def test_an_input_that_is_not_read_makes_nobody_stale(project: Project) -> None:
    """Without bounds on samples the filter reads no scores of samples."""
    project.shards("ab")
    some = ["curated_parquet", "image_scores", "filtered_parquet", "final_tars"]
    fine(project.run("--assets", ",".join(some)))
    others = [asset for asset in ASSETS if asset not in some]
    assert (
        project.plan("--missing")
        == project.plan(*SOME)
        == [
            f"missing: never made: 2 shards in {', '.join(others)} (a, b)",
            "2 of 2 shards would be taken in 1 run",
        ]
    )
    assert project.plan("--changed") == ["0 of 2 shards would be taken"]
    fine(project.run("--missing", "--assets", "sample_scores"))
    assert project.plan("--changed") == ["0 of 2 shards would be taken"], "nor is it a change to be made"

    bound = {"MM_MIN_WORDS": "1"}
    assert project.plan("--changed", **bound) == [
        "stale: sample_scores has changed: 2 shards in filtered_parquet, and in what is made from it: "
        "final_tars (a, b)",
        "missing: never made: 2 shards in arrow_cache, lance_table (a, b)",
        "2 of 2 shards would be taken in 1 run",
    ]


def test_a_shard_that_fails_and_is_mended(project: Project) -> None:
    project.shards("ac")
    project.broken("b")
    done = project.run()
    assert done.returncode == 1
    assert project.made() == {asset: ["a", "c"] for asset in ASSETS}
    assert project.plan("--missing") == ["0 of 3 shards would be taken"]
    assert project.plan("--changed") == ["0 of 3 shards would be taken"]
    assert project.plan("--failed") == [
        f"failed in a run: 1 shard in {len(ASSETS)} assets (b)",
        "1 of 3 shards would be taken in 1 run",
    ]
    done = project.run("--failed")
    assert (done.returncode, project.made()) == (1, {}), "it fails again, and the others are left alone"
    project.shard("b")
    assert "; the raw shard has changed since: 1 shard in" in project.plan("--failed")[0]
    fine(project.run("--failed"))
    assert project.made() == {asset: ["b"] for asset in ASSETS}
    assert project.plan(*SOME) == ["0 of 3 shards would be taken"]


def test_what_has_changed(project: Project) -> None:
    """A raw shard, a bound, an output that is gone: each reaches what is made from it, and nothing else."""
    project.shards("abc")
    fine(project.run())
    project.shard("b", "other text")
    assert project.plan("--changed") == [
        "stale: the raw shard has changed: 1 shard in curated_parquet, and in all that is made from it (b)",
        "1 of 3 shards would be taken in 1 run",
    ]
    fine(project.run("--changed"))
    made = project.made()
    assert made["curated_parquet"] == made["filtered_parquet"] == made["lance_table"] == ["b"]

    bound = {"MM_MIN_ASPECT_RATIO": "100"}
    plan = project.plan("--changed", **bound)
    assert plan == [
        "stale: MM_MIN_ASPECT_RATIO was unset, is 100.0: 3 shards in filtered_parquet, and in what is made "
        "from it: "
        f"{', '.join(ASSETS[-3:])} (a, b, c)",
        "3 of 3 shards would be taken in 1 run",
    ]
    fine(project.run("--changed", "a", **bound))
    assert project.made() == {asset: ["a"] for asset in ASSETS[-4:]}
    assert project.plan("--changed", **bound)[0].endswith(" (b, c)")
    assert project.plan("--changed")[0].endswith(" (a)"), "without the bound it is a that differs"
    fine(project.run("--changed", **bound))
    assert project.plan(*SOME, **bound) == ["0 of 3 shards would be taken"]

    (project.storage / "webdataset" / "c.tar").unlink()
    assert project.plan("--changed", **bound) == ["0 of 3 shards would be taken"], "nobody has looked yet"
    proof = project.command("prove", **bound)
    assert proof.returncode == 1
    assert "NOT PROVEN: 2 of 3 shards in all 5 outputs; the others: c not as written in final_tars" in (
        proof.stdout
    )
    assert project.plan("--changed", **bound) == [
        "stale: not as it was written: 1 shard in final_tars (c)",
        "1 of 3 shards would be taken in 1 run",
    ]
    fine(project.run("--changed", **bound))
    assert project.made() == {"final_tars": ["c"]}
    assert (project.storage / "webdataset" / "c.tar").exists()
    fine(project.command("prove", **bound))


def test_a_raw_shard_that_is_gone_and_a_location_that_cannot_be_reached(made: Project) -> None:
    project = made
    locations = {"MM_RAW_SHARDS": f"{project.raw}/a.tar {project.raw}/b*.tar"}
    (project.raw / "b.tar").rename(project.raw / "b.gone")
    done = project.run(*SOME)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing to do")
    assert done.stderr == (
        "mm-assets: warning: 1 raw shard is gone, or not in MM_RAW_SHARDS any more; the outputs stay: b "
        "(mm-assets retire removes them)\n"
    )
    done = project.run(*SOME, **locations)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing to do")
    assert done.stderr.startswith(f"mm-assets: warning: {project.raw}/b*.tar: no such file")
    done = project.run(**locations)
    assert (done.returncode, project.made()) == (1, {asset: ["[a]"] for asset in ASSETS}), "b is not known"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("web-1",), "'web-1': no such raw shard; the nearest is 'web-0'"),
        (("--assets", "lance"), "'lance': no such asset; the nearest is 'lance_table'"),
        (("--assets", "raw_shards"), "'raw_shards': an asset that is observed, not made"),
        (("--dry-run", "web-0", "x"), "'x': no such raw shard"),
    ],
)
def test_names_that_there_are_not(arguments: tuple[str, ...], line: str, project: Project) -> None:
    project.shard("web-0")
    assert only_line(project.run(*arguments)) == line
    assert not project.storage.exists() or list(project.storage.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--limit", "x"), ("--assets", ","), ("--all",)])
def test_wrong_usage(arguments: tuple[str, ...], project: Project) -> None:
    assert project.run(*arguments).returncode == 2
    assert project.runs() == 0


def test_filters_of_one_run(project: Project) -> None:
    project.shards("a")
    done = fine(
        project.run("--set", "max_image_side=1", "--set", "min_words=99", "--filter-actions", "words=flag")
    )
    (line,) = (line.split() for line in done.splitlines() if line.startswith("filtered_parquet"))
    assert line[1:6] == ["1", "0", "1", "0", "1"], "one partition, one sample, no image, one filtered"
    listed = lost_items(project.storage, "filtered_parquet")
    assert {(row["outcome"], row["kind"]) for row in listed} == {
        ("filtered", "image_size"),
        ("flagged", "words"),
    }


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ("--set", "min_wrds=3"),
            "--set min_wrds: there is no such setting of a filter; the nearest is min_words",
        ),
        (("--set", "min_words"), "--set 'min_words': write it as NAME=VALUE"),
        (("--set", "min_words=many"), "MM_MIN_WORDS must be a whole number, not 'many'"),
        (
            ("--filter-preset", "curator", "--set", "min_sharpness="),
            "--set NAME= cannot unset what a preset sets; give it a value that refuses nothing",
        ),
    ],
)
def test_filters_that_do_not_fit(project: Project, flags: tuple[str, ...], line: str) -> None:
    project.shards("a")
    assert only_line(project.run(*flags)) == line
    assert not project.storage.exists()
