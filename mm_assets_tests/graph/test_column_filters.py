"""Runs with conditions on columns, and with lists of ids: refused in time, in the ledger, as `convert`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.headless.summary import RunSummary
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import FILTERED, Deployment, materialized
from mm_assets_tests.graph.published import lost_items

Deploy = Callable[..., Deployment]
URL, IMAGES = "url not like '%spam%' and license in ('cc-by', 'cc0')", "alt is not null and width < 50"


def fill(deployment: Deployment) -> None:
    """Shard a has no licence; that of b's second sample is another, its third one is spam."""
    good = {"url": "https://x/", "alt": ["one", None], "meta": {"lang": "en"}}
    shards = {
        "a": [sample("a0", **good)],
        "b": [
            sample("b0", **good, license="cc0"),
            sample("b1", **good, license="mine"),
            sample("b2", **{**good, "url": "https://spam/"}, license="cc0"),
            sample("b3", **{**good, "meta": {"lang": "de"}}, license="cc-by"),
            sample("broken", b"\xff\xd8\xff none", **good, license="cc0"),
        ],
    }
    for name, samples in shards.items():
        make_tar(Path(deployment.raw, f"{name}.tar"), [member for members in samples for member in members])


@pytest.fixture
def filled(deploy: Deploy) -> Deployment:
    deployment = deploy(MM_PER_IMAGE_FIELDS="alt", MM_ON_MATERIALIZE_ERROR="warn")
    fill(deployment)
    return deployment


def left(folder: str | Path) -> list[str]:
    tables = [pq.read_table(path) for path in sorted(Path(folder).glob("*.parquet"))]
    places = [row for table in tables for row in table.select(["sample_id", "position"]).to_pylist()]
    return sorted(f"{row['sample_id']}[{row['position']}]" for row in places)


def unchanged(result: Any) -> dict[str, bool]:
    made = materialized(result)["filtered_parquet"]
    return {key: "unchanged" in event.metadata for key, event in made.items()}


def test_conditions_on_columns(filled: Deployment, tmp_path: Path) -> None:
    filled.environment |= {"MM_KEEP_SAMPLES": URL, "MM_KEEP_IMAGES": IMAGES}
    assert filled.run(assets=FILTERED).success
    whole = [f"{name}[{position}]" for name in ("b0", "b3") for position in (-1, 0, 1)]
    # The error row stays for the policy.
    assert left(f"{filled.storage}/filtered") == [*whole, *(f"broken[{n}]" for n in (-1, 0, 1))]
    lost = lost_items(filled.storage, "filtered_parquet")
    told = Counter((row["kind"], row["reason"], row["threshold"]) for row in lost)
    reason = "the condition does not hold"
    assert told == {("keep_images", reason, IMAGES): 6, ("keep_samples", reason, URL): 9}

    flags = ("--keep-samples", URL, "--keep-images", IMAGES, "--on-materialize-error", "warn")
    ok(filled, "convert", filled.raw, tmp_path / "out", "--to", "parquet", *flags, MM_PER_IMAGE_FIELDS="alt")
    assert left(tmp_path / "out") == left(f"{filled.storage}/filtered")
    # A shard that comes with other columns changes nothing of those that are there.
    make_tar(Path(filled.raw, "c.tar"), sample("c0", url="https://x/", license=None, added=5))
    assert unchanged(filled.run(assets=FILTERED)) == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(
    ("setting", "condition", "line"),
    [
        ("MM_KEEP_SAMPLES", "licence = 'cc0'", "no shard has a column 'licence'; the nearest is license"),
        ("MM_KEEP_IMAGES", "alt > 3", "shard 'a': Binder Error: Cannot compare values of type VARCHAR"),
        ("MM_KEEP_SAMPLES", "meta.lang = 'en'", "shard 'a': Binder Error: Cannot extract field 'lang'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    filled: Deployment, tmp_path: Path, setting: str, condition: str, line: str
) -> None:
    filled.environment[setting] = condition
    result = filled.run(assets=FILTERED)
    assert not result.success
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert failed.step_key == "curated_parquet"
    name = setting.removeprefix("MM_").lower()
    assert failed.step_failure_data.user_failure_data.description.startswith(f"{name}: {condition!r}: {line}")
    assert not Path(filled.storage, "curated").exists()

    flag = f"--{name.replace('_', '-')}"
    done = run(filled, "convert", filled.raw, tmp_path / "out", "--to", "parquet", flag, condition)
    assert done.returncode != 0
    told = line.replace("'a'", repr(str(Path(filled.raw, "a.tar"))))
    assert done.stderr.startswith(f"mm-assets: {name}: {condition!r}: {told.partition('; ')[0]}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_type_about_which_shards_disagree_is_told(
    deploy: Deploy, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = deploy(MM_KEEP_SAMPLES="score > 0")
    for name, score in (("p0", 1), ("p1", 2), ("p2", [1])):
        make_tar(Path(deployment.raw, f"{name}.tar"), sample(name, score=score))
    result = deployment.run(assets=FILTERED)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    told = str(failed.step_failure_data.user_failure_data.description)
    assert told.startswith("keep_samples: 'score > 0': shard 'p0': Binder Error: ")
    assert told.endswith(
        "; column 'score' is JSON text in all shards, which disagree: int64 in shard 'p0', json in shard 'p2'"
    )
    summary = RunSummary({"curated_parquet": ["p0", "p1", "p2"]})
    summary.add(deployment.instance, result)
    summary.print("raw")
    lines = capsys.readouterr().out.splitlines()
    assert f"step curated_parquet failed: {told}" in lines
    assert "raw shards: raw; shards failed: 0, and 1 step as a whole (see above); " in lines[-1]
    deployment.environment["MM_KEEP_SAMPLES"] = "try_cast(score as int) > 0"
    assert deployment.run(assets=FILTERED).success


def test_a_condition_that_comes_later_is_refused_by_the_curated_columns(filled: Deployment) -> None:
    assert filled.run(assets=FILTERED).success
    before = left(f"{filled.storage}/filtered")
    filled.environment["MM_KEEP_SAMPLES"] = "licence = 'cc0'"
    result = filled.run(assets=["filtered_parquet"])
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "the nearest is license" in str(failed.step_failure_data.user_failure_data.description)
    assert left(f"{filled.storage}/filtered") == before
    # Of a run of shard a alone, which lacks the column.
    filled.environment["MM_KEEP_SAMPLES"] = "license is null and meta->>'lang' = 'en'"
    assert filled.run(["a"], assets=["filtered_parquet"]).success
    assert [place for place in left(f"{filled.storage}/filtered") if place.startswith("a")] == [
        *(f"a0[{n}]" for n in (-1, 0, 1, 2)),
    ]


def test_a_list_of_ids(filled: Deployment, tmp_path: Path) -> None:
    ids = tmp_path / "dup.csv"
    ids.write_text("sample_id,reason\nb0,near duplicate of a0\nb2,\n")
    filled.environment["MM_DROP_IDS"] = str(ids)
    assert unchanged(filled.run(assets=FILTERED)) == {"a": False, "b": False}
    assert {place[:2] for place in left(f"{filled.storage}/filtered")} == {"a0", "b1", "b3", "br"}
    lost = lost_items(filled.storage, "filtered_parquet")
    assert {row["kind"] for row in lost} == {"drop_ids"}
    assert Counter(row["reason"] for row in lost) == {"near duplicate of a0": 4, "listed in dup.csv": 4}
    (copy,) = Path(filled.storage, "ledger", "lists").iterdir()
    assert {row["threshold"] for row in lost} == {f"dup.csv xxh3:{copy.stem}"}
    assert pq.read_table(copy, columns=["sample_id"])["sample_id"].to_pylist() in (["b0", "b2"], ["b2", "b0"])

    other = tmp_path / "elsewhere.csv"
    ids.rename(other)  # the same list under another name filters nothing again
    filled.environment["MM_DROP_IDS"] = str(other)
    assert unchanged(filled.run(assets=FILTERED)) == {"a": True, "b": True}
    other.write_text(other.read_text() + "b3,\n")
    assert unchanged(filled.run(assets=FILTERED)) == {"a": False, "b": False}
    assert {place[:2] for place in left(f"{filled.storage}/filtered")} == {"a0", "b1", "br"}

    flags = ("--drop-ids", other, "--on-materialize-error", "warn")
    ok(filled, "convert", filled.raw, tmp_path / "out", "--to", "parquet", *flags, MM_PER_IMAGE_FIELDS="alt")
    assert left(tmp_path / "out") == left(f"{filled.storage}/filtered")


def test_bytes_are_listed_without_a_setting_of_scores(filled: Deployment, tmp_path: Path) -> None:
    """The first image of all samples but one is the same file."""
    filled.environment["MM_SCORES"] = "sha256"
    assert filled.run(assets=FILTERED).success
    scores = pq.read_table(Path(filled.storage, "scores", "a.parquet")).to_pylist()
    (first, _) = (row["sha256"] for row in scores)
    (tmp_path / "seen.csv").write_text(f"sha256\n{first}\n")
    del filled.environment["MM_SCORES"]
    filled.environment["MM_DROP_IDS"] = str(tmp_path / "seen.csv")
    assert filled.run(assets=FILTERED).success
    firsts = [place for place in left(f"{filled.storage}/filtered") if place.endswith("[1]")]
    assert firsts == ["broken[1]"]


def test_a_bad_list_is_refused_before_anything_is_made(filled: Deployment, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("sample_id,position\nb0,1\nb1,one\n")
    filled.environment["MM_KEEP_IDS"] = str(tmp_path / "bad.csv")
    result = filled.run(assets=FILTERED)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    described = failed.step_failure_data.user_failure_data.description
    assert described == f"keep_ids: {tmp_path}/bad.csv: row 2: position: 'one' is no position"
    assert not Path(filled.storage, "curated").exists()
