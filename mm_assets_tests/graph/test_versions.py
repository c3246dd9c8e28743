"""Tags of whole storages, and what differs between two of them, against what was done to the raw shards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import lance
import pytest
import xxhash
from PIL import Image

from mm_assets import InterleavedLanceReader
from mm_assets.pool.workers import WorkerPool
from mm_assets.versions import OutputState, tagging
from mm_assets.versions.tagging import Manifest, Tagger, tag_names
from mm_assets_tests.cli import commands
from mm_assets_tests.graph.commands import ok, run
from mm_assets_tests.graph.deployment import Deployment, materialized, write_tar
from mm_assets_tests.graph.published import account, record_in, rewrite
from mm_assets_tests.quick_instance import quick_instance

Lines = set[tuple[str, ...]]

ROWS = "curated_parquet,filtered_parquet,final_tars,lance_table,arrow_cache"
FROM_FILTERED = ROWS.removeprefix("curated_parquet,")
BOUND = "MM_MAX_ASPECT_RATIO was 3.0, is 2.0"
FILTERED = f"position 1 filtered by aspect_ratio; {BOUND}"


def _png(width: int) -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, 10), (width, 0, 0)).save(out, format="PNG")
    return out.getvalue()


def _write(
    raw: Path | str, shard: str, more: dict[str, bytes] | None = None, **samples: tuple[str, int]
) -> None:
    """A raw shard of samples: id -> text and width of its image, of height 10."""
    members: dict[str, bytes] = {}
    for name, (text, width) in samples.items():
        document = {"texts": [text, None], "images": [None, f"{name}.png"]}
        members |= {f"{name}.json": json.dumps(document).encode(), f"{name}.png": _png(width)}
    write_tar(Path(raw, f"{shard}.tar"), {**members, **(more or {})})


def _diff(deployment: Deployment, *tags: str) -> tuple[Lines, list[str]]:
    """The lines on samples, and the summary."""
    printed = ok(deployment, "diff", *tags).splitlines()
    return {tuple(line.split("\t")) for line in printed if "\t" in line}, [
        line for line in printed if "\t" not in line
    ]


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three shards through the graph, tagged ``one``."""
    folder = tmp_path_factory.mktemp("tagged")
    _write(
        folder / "raw",
        "p",
        {"bad.json": b"{nope"},
        p1=("text", 10),
        p2=("wide", 25),
        p3=("to be removed", 10),
        p4=("behind it", 10),
    )
    _write(folder / "raw", "q", q1=("wide", 25), q2=("square", 10))
    _write(folder / "raw", "r", r1=("square", 10))
    bounds = {"MM_MIN_ASPECT_RATIO": "0.1", "MM_MAX_ASPECT_RATIO": "3.0"}
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        deployment = Deployment(
            str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "1", **bounds}
        )
        assert deployment.run().success
        assert ok(deployment, "tag", "one").startswith("tag one\n")
        yield deployment


@pytest.fixture
def one(tagged: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    """A copy, to be changed."""
    with quick_instance(tmp_path / "home") as instance:
        yield replace(tagged.copied(tmp_path), instance=instance)


def test_every_line_of_a_diff_is_what_was_done(one: Deployment) -> None:
    assert _diff(one, "one") == (set(), ["no difference"])
    mended = {"bad.json": json.dumps({"texts": ["mended"]}).encode()}
    _write(one.raw, "p", mended, p1=("a longer text", 10), p2=("wide", 25), p4=("behind it", 10))
    Path(one.raw, "r.tar").unlink()
    _write(one.raw, "s", s1=("new", 10), s2=("new", 25))
    assert run(one, "retire").returncode == 0
    one.environment["MM_MAX_ASPECT_RATIO"] = "2.0"
    assert one.run().success
    expected = {
        ("added", "p", "bad", ROWS, "no longer quarantined: bad_json; raw data changed"),
        ("changed", "p", "p1", ROWS, "raw data changed"),
        (
            "changed",
            "p",
            "p2",
            FROM_FILTERED,
            f"{FILTERED}; raw data changed",
        ),
        ("dropped", "p", "p3", ROWS, "raw data changed"),
        ("changed", "q", "q1", FROM_FILTERED, FILTERED),
        ("dropped", "r", "r1", ROWS, "shard removed"),
        ("added", "s", "s1", ROWS, "shard added"),
        ("added", "s", "s2", ROWS, "shard added"),
    }
    now, summary = _diff(one, "one")
    assert now == expected
    of_curated = ["samples 3 added, 2 dropped, 1 changed; shards 1 added, 1 dropped, 1 changed"]
    of_filtered = ["samples 3 added, 2 dropped, 3 changed; shards 1 added, 1 dropped, 2 changed"]
    heads = [line.partition(": ")[2:] for line in summary if not line.startswith(" ")]
    assert heads == [(line,) for line in of_curated + 4 * of_filtered]
    tars = summary[summary.index(f"final_tars: {of_filtered[0]}") + 1 :]
    assert tars[: tars.index(f"lance_table: {of_filtered[0]}")] == [
        "  1 added: no longer quarantined: bad_json",
        "  2 added: shard added",
        "  2 changed: filtered by aspect_ratio",
        "  1 changed: raw data changed",
        "  1 dropped: raw data changed",
        "  1 dropped: shard removed",
    ]
    ok(one, "tag", "two")
    assert _diff(one, "one", "two") == (expected, summary)
    opposite = {"added": "dropped", "dropped": "added", "changed": "changed"}
    back, _ = _diff(one, "two", "one")
    assert {line[:4] for line in back} == {(opposite[line[0]], *line[1:4]) for line in expected}
    assert ("changed", "q", "q1", FROM_FILTERED) in {line[:4] for line in back}
    assert {line[4] for line in back if line[2] == "q1"} == {
        "position 1 no longer filtered by aspect_ratio; MM_MAX_ASPECT_RATIO was 2.0, is 3.0"
    }


def test_what_is_no_longer_filtered_drops_no_sample(one: Deployment) -> None:
    one.environment |= {"MM_MAX_ASPECT_RATIO": "2.0"}
    assert one.run().success
    ok(one, "tag", "narrow")
    one.environment |= {"MM_MAX_ASPECT_RATIO": "3.0", "MM_MIN_WORDS": "2"}
    assert one.run().success
    forth, _ = _diff(one, "narrow")
    settings = "MM_MAX_ASPECT_RATIO was 2.0, is 3.0; MM_MIN_WORDS was unset, is 2"
    assert {line[2:] for line in forth if line[1] == "q"} == {
        ("q1", FROM_FILTERED, f"filtered by words; {settings}"),
        ("q2", FROM_FILTERED, f"filtered by words; {settings}"),
    }
    back, _ = _diff(one, "now", "narrow")
    assert {(line[0], line[2], line[4].partition(";")[0]) for line in back if line[1] == "q"} == {
        ("added", "q1", "no longer filtered by words"),
        ("added", "q2", "no longer filtered by words"),
    }


def test_settings_put_back_make_the_tagged_outputs_again(one: Deployment) -> None:
    tagged = lance.dataset(f"{one.storage}/lance/items.lance").to_table().sort_by("sample_id")
    one.environment["MM_MAX_ASPECT_RATIO"] = "2.0"
    assert one.run().success
    changed, _ = _diff(one, "one")
    assert {line[2] for line in changed} == {"p2", "q1"}
    uri = f"{one.storage}/lance/items.lance"
    at_tag = InterleavedLanceReader(uri, read_kwargs={"version": "one"})
    rows = [row for batch in at_tag for row in batch.data.select(["sample_id", "modality"]).to_pylist()]
    assert len(rows) == tagged.num_rows
    assert {"sample_id": "q1", "modality": "image"} in rows
    assert lance.dataset(uri, version="one").to_table().sort_by("sample_id").equals(tagged)
    assert lance.dataset(uri).count_rows() == tagged.num_rows - 2
    one.environment["MM_MAX_ASPECT_RATIO"] = "3.0"
    assert one.run().success
    assert _diff(one, "one") == (set(), ["no difference"])


def test_the_manifest_names_every_file(one: Deployment) -> None:
    manifest = Manifest(one.storage, "one")
    states = list(manifest.states())
    assert [(state.partition, state.asset) for state in states] == sorted(
        ((state.partition, state.asset) for state in states), key=lambda pair: pair[0]
    )
    named = {file.path: file for state in states for file in state.files}
    named_bytes = {path: (file.bytes, file.digest) for path, file in named.items()}
    named_bytes |= {f["path"]: (f["bytes"], f["digest"]) for f in manifest.header["shared_files"]}
    outputs = ("curated", "scores", "sample_scores", "filtered")
    outputs += ("webdataset", "arrow_cache", "quarantine", "lance")
    found = {
        str(path.relative_to(one.storage)): path.read_bytes()
        for folder in outputs
        for path in Path(one.storage, folder).rglob("*")
        if path.is_file() and path.name != "lock" and ("lance" not in path.parts or "data" in path.parts)
    }
    assert {name: (len(data), xxhash.xxh3_128_hexdigest(data)) for name, data in found.items()} == {
        **named_bytes
    }
    filtered = _state(states, "q", "filtered_parquet")
    assert filtered.settings["steps"] == {
        "aspect_ratio": {"action": "drop_item", "min_ratio": 0.1, "max_ratio": 3.0}
    }
    assert filtered.settings["options"]["on_materialize_error"] == "drop_sample"
    assert set(filtered.inputs) == {"curated_parquet", "image_scores", "sample_scores"}
    assert filtered.inputs["curated_parquet"] == _state(states, "q", "curated_parquet").version
    curated = _state(states, "q", "curated_parquet")
    assert curated.settings["options"]["layout"]["texts_field"] == "texts"
    assert set(curated.inputs) == {"raw_shards"}
    table = lance.dataset(f"{one.storage}/lance/items.lance", version="one")
    assert manifest.header["lance_version"] == table.version


def _state(states: list[OutputState], partition: str, asset: str) -> OutputState:
    (found,) = [state for state in states if (state.partition, state.asset) == (partition, asset)]
    return found


def test_a_name_marks_one_state(one: Deployment) -> None:
    kept = {path: path.read_bytes() for path in Path(one.storage, "versions").rglob("*") if path.is_file()}
    assert ok(one, "tag", "one").startswith("tag one marks this state already\n")
    ok(one, "tag", "same")
    one.environment["MM_MAX_ASPECT_RATIO"] = "2.0"
    assert one.run().success
    told = "tag 'one' exists and marks another state; choose another name"
    assert commands.only_line(run(one, "tag", "one")) == f"{one.storage}: {told}"
    assert {path: path.read_bytes() for path in kept} == kept
    ok(one, "tag", "two")
    listed = [line.partition(":")[0] for line in ok(one, "tag", "--list").splitlines()]
    assert listed == ["one", "same", "two"]
    assert not list(Path(one.storage, "versions").glob(".*"))
    assert set(lance.dataset(f"{one.storage}/lance/items.lance").tags.list()) == {"one", "same", "two"}


def test_equal_content_is_kept_once(one: Deployment) -> None:
    """Outputs that hold the same rows share a file, and so do tags."""
    samples = set(os.listdir(Path(one.storage, "versions", "samples")))
    assert len(samples) == 3
    _write(one.raw, "q", q1=("another text", 25), q2=("square", 10))
    assert one.run().success
    ok(one, "tag", "two")
    assert len(set(os.listdir(Path(one.storage, "versions", "samples"))) - samples) == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (
            "filtered/q.parquet",
            "filtered_parquet, shard 'q': filtered/q.parquet has other rows",
        ),
        ("scores/q.parquet", "image_scores, shard 'q': scores/q.parquet is not as it was written"),
        ("webdataset/q.tar", "final_tars, shard 'q': webdataset/q.tar is gone"),
    ],
)
def test_an_output_that_is_not_as_recorded_is_not_tagged(one: Deployment, path: str, told: str) -> None:
    if told.endswith("gone"):
        Path(one.storage, path).unlink()
    else:
        shutil.copyfile(Path(one.storage, path.replace("q.", "p.")), Path(one.storage, path))
    line = commands.only_line(run(one, "tag", "two"))
    assert line.startswith(told) and "materialize the shard again" in line
    assert tag_names(one.storage) == ["one"]
    assert not list(Path(one.storage, "versions").glob("two*"))


def test_a_lost_record_is_told(one: Deployment) -> None:
    account(one.storage, "final_tars", "q").write_text("{")
    line = commands.only_line(run(one, "tag", "two"))
    assert line.startswith(f"{one.storage}/ledger/accounts/final_tars/q.parquet: unreadable")


def test_records_of_earlier_releases_stay_as_they_are_and_can_be_tagged(one: Deployment) -> None:
    """They say neither settings nor inputs."""
    shutil.rmtree(Path(one.storage, "versions"))
    for path in Path(one.storage, "ledger", "accounts").glob("*/*.parquet"):
        record = record_in(path)
        for name in ("settings", "inputs"):
            del record["account"][name]
        rewrite(path, record)
    result = one.run()
    assert all(
        made.metadata["unchanged"].value for of in materialized(result).values() for made in of.values()
    )
    dataset = lance.dataset(f"{one.storage}/lance/items.lance")
    dataset.tags.delete("one")
    ok(one, "tag", "old")
    one.environment["MM_MAX_ASPECT_RATIO"] = "2.0"
    assert one.run().success
    why = "position 1 filtered by aspect_ratio; code or settings have changed"
    assert _diff(one, "old")[0] == {
        ("changed", shard, sample, FROM_FILTERED, why) for shard, sample in (("p", "p2"), ("q", "q1"))
    }


def test_a_tag_of_the_table_from_someone_else_is_left_alone(one: Deployment) -> None:
    dataset = lance.dataset(f"{one.storage}/lance/items.lance")
    dataset.tags.create("theirs", 1)
    line = commands.only_line(run(one, "tag", "theirs"))
    assert line.endswith("the table has a tag 'theirs' that is not ours; choose another name")
    assert dataset.tags.get_version("theirs") == 1
    assert tag_names(one.storage) == ["one"]


_KILLED = """
import os, signal, sys
import mm_assets.versions.tagging as tagging
from mm_assets.storage.files import StagedFile
from mm_assets.pool.workers import WorkerPool
at = sys.argv[2]
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if at == "before the states":
    tagging.state_rows = kill
elif at == "before the table's tag":
    from mm_assets.formats.lance.table import PinnedTable
    PinnedTable.tag = kill
elif at == "before the header":
    tagging.publish_header = kill
if __name__ == "__main__":
    with WorkerPool(1) as pool:
        tagging.Tagger(sys.argv[1], "two", pool).run()
"""


@pytest.mark.parametrize("at", ["before the states", "before the table's tag", "before the header"])
def test_a_tag_whose_process_was_killed_does_not_exist_and_can_be_made(
    at: str, one: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "killed.py").write_text(_KILLED)
    command = [sys.executable, tmp_path / "killed.py", one.storage, at]
    killed = subprocess.run(command, env=commands.environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [line.partition(":")[0] for line in ok(one, "tag", "--list").splitlines()] == ["one"]
    assert "no tag 'two'" in commands.only_line(run(one, "diff", "two"))
    one.environment["MM_MAX_ASPECT_RATIO"] = "2.0"
    assert one.run().success
    ok(one, "tag", "two")
    assert _diff(one, "two") == (set(), ["no difference"])
    assert {line[2] for line in _diff(one, "one", "two")[0]} == {"p2", "q1"}
    dataset = lance.dataset(f"{one.storage}/lance/items.lance")
    assert dataset.tags.get_version("two") == dataset.version
    assert not list(Path(one.storage, "versions").rglob(".*"))


def test_a_version_that_was_cleaned_up_stays_where_it_is_tagged(one: Deployment) -> None:
    from datetime import timedelta

    uri = f"{one.storage}/lance/items.lance"
    tagged = lance.dataset(uri).version
    for bound in ("2.0", "0.5", "3.0"):
        one.environment["MM_MAX_ASPECT_RATIO"] = bound
        assert one.run().success
    dataset = lance.dataset(uri)
    dataset.cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    assert [entry["version"] for entry in dataset.versions()] == [tagged, dataset.version]
    assert lance.dataset(uri, version="one").to_table()["sample_id"].to_pylist().count("q1") == 3
    again = one.run()
    assert again.success


HOSTILE = [
    "../x",
    "a/b",
    ".hidden",
    "",
    "now",
    "ä",
    "版本",
    "x" * 101,
    "a..b",
    "a.lock",
    "a\nb",
    "-x",
    "é/../..",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_tags_are_refused(tagged: Deployment, name: str) -> None:
    before = set(Path(tagged.storage).parent.rglob("*"))
    commands_with_it = [["tag", "--", name]]
    if name != "now":
        commands_with_it += [["diff", "--", name, "one"], ["diff", "--", "one", name]]
    for command in commands_with_it:
        line = commands.only_line(run(tagged, *command))
        assert "is no name of a tag" in line or "choose another name" in line
    assert set(Path(tagged.storage).parent.rglob("*")) == before


def test_a_name_is_printed_as_it_was_given(tagged: Deployment) -> None:
    assert commands.only_line(run(tagged, "tag", "版本")).startswith("'版本' is no name of a tag")


@pytest.mark.parametrize(
    ("name", "other"),
    [("NOW", "'now', which stands for the current state"), ("ONE", "'one', which there is")],
)
def test_names_that_differ_by_case_only_are_refused(tagged: Deployment, name: str, other: str) -> None:
    before = set(Path(tagged.storage).parent.rglob("*"))
    assert commands.only_line(run(tagged, "tag", name)) == (
        f"{name!r} differs by case only from {other}: choose another name"
    )
    assert set(Path(tagged.storage).parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["t1", "T1"])
def test_two_tags_that_are_made_at_the_same_time(one: Deployment, name: str) -> None:
    """The first one made counts: the other is refused, unless it is the same."""
    with WorkerPool(1, may_fork=True) as pool:
        taggers = [Tagger(one.storage, each, pool) for each in ("t1", name)]
        assert taggers[0].run()
        if name == "t1":
            assert not taggers[1].run()
        else:
            with pytest.raises(ValueError, match="^'T1' differs by case only from 't1', which there is"):
                taggers[1].run()
    assert tag_names(one.storage) == ["one", "t1"]
    assert set(lance.dataset(f"{one.storage}/lance/items.lance").tags.list()) == {"one", "t1"}
    assert _diff(one, "t1") == (set(), ["no difference"])


def test_a_tag_gives_way_to_one_that_came_between(one: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store nobody can wait for others."""
    publish = tagging.publish_header

    def publish_two(root: str, name: str, *more: Any) -> None:
        publish(root, "T1", *more)
        publish(root, name, *more)

    monkeypatch.setattr(tagging, "publish_header", publish_two)
    told = "^'t1' differs by case only from 'T1', which there is"
    with WorkerPool(1, may_fork=True) as pool, pytest.raises(ValueError, match=told):
        Tagger(one.storage, "t1", pool).run()
    assert tag_names(one.storage) == ["T1", "one"]


def test_a_changed_manifest_is_refused(one: Deployment) -> None:
    versions = Path(one.storage, "versions")
    data = (versions / "one.parquet").read_bytes()
    (versions / "one.parquet").write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    told = "one.parquet: not readable: other bytes than were written"
    assert told in commands.only_line(run(one, "diff", "one"))
    (versions / "one.json").write_text((versions / "one.json").read_text().replace('"one"', '"eno"'))
    assert "one.json: not a manifest" in commands.only_line(run(one, "diff", "one"))
    assert commands.only_line(run(one, "diff", "three")) == f"{one.storage}: no tag 'three'; tags here: one"
