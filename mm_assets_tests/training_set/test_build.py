"""Training sets of small tars: equal bytes each time, every sample once, and nothing half done."""

from __future__ import annotations

import json
import os
import re
import tarfile
import threading
import uuid
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.accounting.canonical.tar import folder_problems, has_index
from mm_assets.formats.names import PLAN_FILE
from mm_assets.formats.tar import TarDamage
from mm_assets.formats.webdataset.writer import TarFolder
from mm_assets.model.errors import DataError
from mm_assets.pool import WorkerFailure
from mm_assets.storage import stamps
from mm_assets.storage.temporary import temporary_name
from mm_assets.training_set import Fields, build
from mm_assets.training_set.build import SetExists, TrainingSet
from mm_assets.training_set.plan import Recipe
from mm_assets.training_set.proof import forget_damaged, prove
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.training_set.sets import RECIPE, Here, make_source, source, training_set, tree

KINDS = ("webdataset", "parquet", "arrow_cache", "mds")
SUFFIXES = (".tar", ".parquet", ".arrow", ".mds")


def left_by_a_dead_process(name: str) -> str:
    return temporary_name(name).replace(f"-{os.getpid()}-", "-4194303-")  # no process has so large a number


def visible(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if not name.startswith(".training/next/")}


@pytest.mark.parametrize("kind", KINDS)
def test_all_splits_together_are_the_sources(made: Path, tmp_path: Path, kind: str) -> None:
    sources = [source(made / "web"), source(made / "books")]
    target = training_set(tmp_path / "set", kind)
    report = target.make(sources, RECIPE, Here())
    assert report.failures == ()
    rows = [*read("webdataset", made / "web").to_pylist(), *read("webdataset", made / "books").to_pylist()]
    found = read(kind, tmp_path / "set").to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, rows))
    proof = prove(target, report.plan, sources, Here())
    assert (proof.samples, proof.left_out, proof.differences) == (52, 0, ())
    assert pq.read_table(tmp_path / "set" / PLAN_FILE).equals(report.plan)
    card = (tmp_path / "set" / "README.md").read_text()
    for line in ("| `train` | 3 | 4", "| `validation` | 1 |", "| `books` | not stated | 16 | 1 | 16 | 16 |"):
        assert line in card
    assert "{split: validation, path:" in card


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_recipe_gives_the_same_bytes(made: Path, tmp_path: Path, kind: str) -> None:
    sources = [source(made / "web"), source(made / "books")]
    places = [tmp_path / "of-monday", tmp_path / "elsewhere" / "of-friday"]
    for place in places:
        training_set(place, kind).make(sources, RECIPE, Here())
    files = tree(places[0])
    assert files == tree(places[1]) and {"README.md", PLAN_FILE, ".training/train-000000.json"} <= set(files)
    for text in (str(tmp_path), "of-monday"):
        assert text.encode() not in b"".join(files.values())


def test_samples_are_copied_to_the_byte(made: Path, tmp_path: Path) -> None:
    report = training_set(tmp_path / "set").make([source(made / "web")], RECIPE, Here())
    for row in report.plan.to_pylist():
        was, now = made / "web" / row["source_shard"], tmp_path / "set" / row["shard"]
        before = was.read_bytes()[row["source_offset"] :][: row["source_bytes"]]
        assert now.read_bytes()[row["offset"] :][: row["bytes"]] == before
    for tar in (tmp_path / "set").glob("*.tar"):
        with tarfile.open(tar) as members:
            names = members.getnames()
        offsets = [row["offset"] for row in report.plan.to_pylist() if row["shard"] == tar.name]
        end = tar.stat().st_size - 1024
        assert len(names) == 2 * len(offsets) and has_index(str(tar), [*offsets, end])
        assert folder_problems(str(tar), len(offsets), tar.stat().st_size) == []
    split = (tmp_path / "set" / ".nv-meta" / "split.yaml").read_text()
    train, _, rest = split.partition("  val:\n")
    assert '"train-000000.tar"' in train and rest.startswith('  - "validation-000000.tar"\n')
    assert TarFolder(str(tmp_path / "set")).finish() == ["README.md"], "without the chapters on this set"


def test_a_run_that_was_ended_goes_on(made: Path, tmp_path: Path) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "web")]
    with pytest.raises(KeyboardInterrupt):
        target.make(sources, RECIPE, Here(most=2))
    assert not (tmp_path / "set" / PLAN_FILE).exists()
    for name in (left_by_a_dead_process("train-000002.tar"), f".training/{left_by_a_dead_process('x.json')}"):
        (tmp_path / "set" / name).write_bytes(b"half")
    again = Here()
    report = target.make(sources, RECIPE, again)
    assert len(again.done) == 2 and sum(shard.is_kept for shard in report.shards) == 2
    whole = training_set(tmp_path / "whole" / "set")
    whole.make(sources, RECIPE, Here())
    assert tree(tmp_path / "set") == tree(tmp_path / "whole" / "set")
    idle = Here()
    target.make(sources, RECIPE, idle)
    assert idle.done == []


def test_a_shard_that_somebody_has_removed_is_made_again(made: Path, tmp_path: Path) -> None:
    target = training_set(tmp_path / "set")
    target.make([source(made / "web")], RECIPE, Here())
    before = tree(tmp_path / "set")
    (tmp_path / "set" / "train-000001.tar").unlink()
    again = Here()
    target.make([source(made / "web")], RECIPE, again)
    assert again.done == ["train-000001"] and tree(tmp_path / "set") == before


@pytest.mark.parametrize("lost", [(), (".mm_assets/validation-000000.tar.json", "validation-000000.tar.idx")])
def test_a_tar_of_which_nothing_is_stated_is_made_again(
    made: Path, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    target = training_set(tmp_path / "set")
    target.make([source(made / "web")], RECIPE, Here())
    before = tree(tmp_path / "set")
    for name in lost or (".mm_assets/validation-000000.tar.json",):
        (tmp_path / "set" / name).unlink()
    if lost:
        (tmp_path / "set" / "index.json").unlink()
    target.make([source(made / "web")], RECIPE, Here())
    assert tree(tmp_path / "set") == before, "its split, too"


class Fails(Here):
    """Fails each shard after the first ones."""

    def map(
        self, fn: Callable[[Any], Any], jobs: Iterable[Any]
    ) -> Generator[tuple[Any, Any | WorkerFailure], None, None]:
        for job in jobs:
            if fn.__name__ == "write_shard" and self.done:
                yield job, WorkerFailure("OSError", "no space left")
            else:
                yield from super().map(fn, [job])


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_stays_whole_until_the_one_that_replaces_it_is(made: Path, tmp_path: Path, kind: str) -> None:
    target, sources = training_set(tmp_path / "set", kind), [source(made / "web")]
    target.make(sources, RECIPE, Here())
    before = visible(tmp_path / "set")
    other = Recipe(shards=3, seed=5)
    report = target.make(sources, other, Fails(), overwrite=True)
    assert len(report.failures) == 2 and visible(tmp_path / "set") == before
    with pytest.raises(KeyboardInterrupt):
        target.make(sources, other, Here(most=1), overwrite=True)
    assert visible(tmp_path / "set") == before
    again = Here()
    target.make(sources, other, again, overwrite=True)
    assert len(again.done) == 1, "what the failed calls have made waited for it"
    training_set(tmp_path / "fresh", kind).make(sources, other, Here())
    assert tree(tmp_path / "set") == tree(tmp_path / "fresh")


def test_what_waits_is_taken_though_the_call_that_took_it_was_ended(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "web")]
    target.make(sources, RECIPE, Here())
    publish = TarFolder.publish

    def ends(folder: TarFolder, tar: Any, *others: Any) -> None:
        if Path(folder.folder) == tmp_path / "set" and "000001" in str(tar):
            raise KeyboardInterrupt
        publish(folder, tar, *others)

    monkeypatch.setattr(TarFolder, "publish", ends)
    with pytest.raises(KeyboardInterrupt):
        target.make(sources, Recipe(shards=3), Here(), overwrite=True)
    assert not (tmp_path / "set" / PLAN_FILE).exists(), "half of one, half of the other"
    monkeypatch.setattr(TarFolder, "publish", publish)
    again = Here()
    target.make(sources, Recipe(shards=3), again)
    assert again.done == []
    training_set(tmp_path / "fresh").make(sources, Recipe(shards=3), Here())
    assert tree(tmp_path / "set") == tree(tmp_path / "fresh")


def test_a_link_in_the_place_of_what_waits_is_refused(made: Path, tmp_path: Path) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "books")]
    target.make(sources, Recipe(), Here())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set" / ".training" / "next").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetExists, match="next: is a symbolic link"):
        target.make(sources, Recipe(seed=1), Here(), overwrite=True)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_source_that_has_changed_is_copied_again(tmp_path: Path) -> None:
    make_source(tmp_path / "web", "web")
    target = training_set(tmp_path / "set")
    target.make([source(tmp_path / "web")], RECIPE, Here())
    tar = tmp_path / "web" / "web-1.tar"
    data = bytearray(tar.read_bytes())
    at = data.index(b"text of web/doc.020")
    data[at : at + 4] = b"TEXT"  # of equal size, so that no offset changes
    tar.write_bytes(data)
    again = Here()
    target.make([source(tmp_path / "web")], RECIPE, again, overwrite=True)
    assert again.done, "the shards with samples of this tar"
    assert "TEXT of web/doc.020" in read("webdataset", tmp_path / "set").column("text_content").to_pylist()


def test_another_plan_needs_to_be_told(made: Path, tmp_path: Path) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "web")]
    target.make(sources, RECIPE, Here())
    before = tree(tmp_path / "set")
    smaller = Recipe(shards=2)
    with pytest.raises(SetExists, match="has a training set of another plan; --overwrite replaces it"):
        target.make(sources, smaller, Here())
    assert tree(tmp_path / "set") == before
    target.make(sources, smaller, Here(), overwrite=True)
    training_set(tmp_path / "fresh" / "set").make(sources, smaller, Here())
    assert tree(tmp_path / "set") == tree(tmp_path / "fresh" / "set")


@pytest.mark.parametrize("kind", ["parquet", "arrow_cache", "mds"])
def test_a_split_that_is_gone_leaves_nothing(made: Path, tmp_path: Path, kind: str) -> None:
    target, sources = training_set(tmp_path / "set", kind), [source(made / "web")]
    target.make(sources, RECIPE, Here())
    target.make(sources, Recipe(shards=2), Here(), overwrite=True)
    training_set(tmp_path / "fresh" / "set", kind).make(sources, Recipe(shards=2), Here())
    if kind != "arrow_cache":  # whose files have other names where they replace some
        assert tree(tmp_path / "set") == tree(tmp_path / "fresh" / "set")
    assert read(kind, tmp_path / "set").num_rows == 36 * 3
    assert sorted(os.listdir(tmp_path / "set")) == [".training", "README.md", PLAN_FILE, "train"]


def test_a_folder_with_other_data_is_left_alone(made: Path, tmp_path: Path) -> None:
    make_source(tmp_path / "other", "other")
    before = tree(tmp_path / "other")
    with pytest.raises(SetExists, match="has data that is no training set; name another folder"):
        training_set(tmp_path / "other").make([source(made / "web")], RECIPE, Here())
    assert tree(tmp_path / "other") == before


def test_a_source_that_changes_while_it_is_copied_fails_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(tmp_path / "web", "web")
    planned = training_set(tmp_path / "set").plan([source(tmp_path / "web")], RECIPE, Here())
    monkeypatch.setattr(build.TrainingSet, "plan", lambda *_: planned)
    tar = tmp_path / "web" / "web-0.tar"
    tar.write_bytes(tar.read_bytes()[512:])
    report = training_set(tmp_path / "set").make([source(tmp_path / "web")], RECIPE, Here())
    assert report.failures and all("a source has changed meanwhile" in line for line in report.failures)
    assert not (tmp_path / "set" / PLAN_FILE).exists()


def test_a_tar_that_its_folder_does_not_know_is_refused(tmp_path: Path) -> None:
    make_source(tmp_path / "web", "web")
    found = source(tmp_path / "web")
    tar = tmp_path / "web" / "web-1.tar"
    with open(tar, "ab") as file:
        file.write(bytes(512))
    with pytest.raises(DataError, match="web-1.tar: not the tar that its statistics"):
        training_set(tmp_path / "set").make([found], RECIPE, Here())
    tar.write_bytes(tar.read_bytes()[:5000])
    with pytest.raises(DataError, match="web-1.tar: byte") as caught:
        training_set(tmp_path / "set").make([found], RECIPE, Here())
    assert not isinstance(caught.value, TarDamage)


def test_values_of_samples_are_those_of_their_metadata(made: Path, tmp_path: Path) -> None:
    recipe = Recipe(fields=Fields(split_by="domain(url)", weight_by="quality", tokens="tokens"))
    sources = [source(made / "web")]
    target = training_set(tmp_path / "set")
    report = target.make(sources, recipe, Here())
    metadata = {
        row["sample_id"]: row
        for row in read("webdataset", made / "web").to_pylist()
        if row["modality"] == "metadata"
    }
    mean = sum(row["quality"] for row in metadata.values()) / len(metadata)
    for row in report.plan.to_pylist():
        of = metadata[row["sample_id"]]
        assert row["tokens"] == of["tokens"]
        assert row["weight"] == pytest.approx(of["quality"] / mean)
    assert sum(report.plan.column("repeats").to_pylist()) == len(metadata)
    proof = prove(target, report.plan, sources, Here())
    assert proof.left_out == len(metadata) - proof.samples > 0 and proof.differences == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            Fields(tokens="nowhere"),
            "nowhere is no column of its samples' metadata .url, tokens, quality., and no score in",
        ),
        (Fields(tokens="url"), "sample 'web/doc.000': url is 'https://.*, no number of tokens"),
        (Fields(weight_by="url"), "sample 'web/doc.000': url is 'https://.*, no weight from 0 on"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(
    made: Path, tmp_path: Path, fields: Fields, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        training_set(tmp_path / "set").make([source(made / "web")], Recipe(fields=fields), Here())
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_note_on_a_shard_has_the_digest_of_its_content(made: Path, tmp_path: Path, kind: str) -> None:
    target = training_set(tmp_path / "set", kind)
    target.make([source(made / "books")], Recipe(shards=2), Here())
    assert forget_damaged(target) == []
    files = [path for path in tmp_path.glob("set/**/*") if path.suffix in SUFFIXES]
    (first,) = (path for path in files if "train-000000" in str(path))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1  # the size is the same
    first.write_bytes(data)
    assert forget_damaged(target) == ["train-000000"]


def test_licences_of_the_sources_are_on_the_card(tmp_path: Path) -> None:
    for name, lines in (("a", "license: cc-by-4.0\n"), ("b", "license:\n- mit\n- cc0-1.0\n")):
        make_source(tmp_path / name, name, shards=1, samples=2)
        card = tmp_path / name / "README.md"
        card.write_text(card.read_text().replace("---\n", f"---\n{lines}", 1))
    sources = [source(tmp_path / "a"), source(tmp_path / "b")]
    training_set(tmp_path / "set").make(sources, Recipe(), Here())
    card = (tmp_path / "set" / "README.md").read_text()
    assert 'license: ["cc-by-4.0", "mit", "cc0-1.0"]\n---\n' in card
    assert "| `b` | mit, cc0-1.0 | 2 |" in card


def test_notes_are_no_data(made: Path, tmp_path: Path) -> None:
    training_set(tmp_path / "set").make([source(made / "books")], Recipe(), Here())
    note = json.loads((tmp_path / "set" / ".training" / "train-000000.json").read_text())
    assert (
        note["split"] == "train" and note["bytes"] == (tmp_path / "set" / "train-000000.tar").stat().st_size
    )
    assert read("webdataset", tmp_path / "set").num_rows == 48


@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("precious", '{"digest": "x", "split": "../victim", "bytes": 1, "size": 1}'),
        ("train-000009", '{"digest": "x", "split": "../victim", "bytes": 1, "size": 1}'),
        ("precious", '{"digest": "x", "split": "train", "bytes": 1, "size": 1}'),
        ("precious", '{"digest": "x", "split": null, "bytes": 1, "size": 1}'),
        ("train-000000", '{"digest": "x"}'),
        ("train-000000", '{"digest": "x", "split": "train", "bytes": "1", "size": 1}'),
        ("train-000000", "[" * 100_000),
    ],
)
def test_a_note_of_somebody_else_removes_nothing(
    made: Path, tmp_path: Path, kind: str, name: str, text: str
) -> None:
    victims = [tmp_path / "victim" / "precious.parquet", tmp_path / "set" / "train" / "precious.parquet"]
    victims.append(tmp_path / "victim" / "train-000009.parquet")
    for victim in (*victims, tmp_path / "set" / ".training" / f"{name}.json"):
        victim.parent.mkdir(parents=True, exist_ok=True)
        victim.write_text("mine")
    victim.write_text(text)
    report = training_set(tmp_path / "set", kind).make([source(made / "books")], Recipe(), Here())
    assert report.failures == () and [shard.is_kept for shard in report.shards] == [False]
    assert [victim.read_text() for victim in victims] == ["mine"] * 3


def test_notes_behind_a_link_are_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".training").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetExists, match="/set/.training: is a symbolic link; a training set has a folder"):
        training_set(tmp_path / "set").make([source(made / "books")], Recipe(), Here())
    assert os.listdir(tmp_path / "elsewhere") == [] and os.listdir(tmp_path / "set") == [".training"]


def test_a_split_that_would_leave_the_set_is_refused() -> None:
    with pytest.raises(ValueError, match="splits have names such as train, not '../x'"):
        Recipe(splits={"../x": 1.0})


@pytest.mark.parametrize("is_overwrite", [False, True])
def test_two_at_once_are_refused(made: Path, tmp_path: Path, is_overwrite: bool) -> None:
    target, sources = training_set(tmp_path / "set"), [source(made / "web")]

    class Meanwhile(Here):
        """Begins a second set in the midst of the first."""

        def map(
            self, fn: Callable[[Any], Any], jobs: Iterable[Any]
        ) -> Generator[tuple[Any, Any | WorkerFailure], None, None]:
            for done in super().map(fn, jobs):
                if fn.__name__ == "write_shard":
                    with pytest.raises(
                        SetExists, match="/set: another process makes a training set there now"
                    ):
                        target.make(sources, Recipe(shards=2), Here(), is_overwrite)
                yield done

    report = target.make(sources, RECIPE, Meanwhile())
    assert len(report.shards) == 4
    training_set(tmp_path / "alone" / "set").make(sources, RECIPE, Here())
    assert tree(tmp_path / "set") == tree(tmp_path / "alone" / "set")
    target.make(sources, Recipe(shards=2), Here(), overwrite=True)


def lock_of(process: str) -> str:
    """The name of a lock: of a process that runs, of one that has ended, or of one on another machine."""
    if process == "running":
        return temporary_name("lock")
    if process == "ended":
        return left_by_a_dead_process("lock")
    return re.sub(r"\.on-[0-9a-f]{8}-", ".on-00000000-", temporary_name("lock"))


@pytest.mark.parametrize("process", ["running", "ended", "elsewhere", "ended elsewhere"])
def test_in_a_store_the_lock_of_a_living_process_is_respected(
    made: Path, monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    monkeypatch.setattr(stamps, "_WATCH_SECONDS", 0.8)
    monkeypatch.setattr(stamps, "_BEAT_SECONDS", 0.2)
    store = MemoryFileSystem()
    folder = f"/sets/{uuid.uuid4().hex}"
    lock = f"{folder}/.training/{lock_of(process)}"
    store.pipe_file(lock, b"0")
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(0.05):
            number += 1
            store.pipe_file(lock, str(number).encode())

    thread = threading.Thread(target=beat)
    if process == "elsewhere":
        thread.start()
    target = TrainingSet(f"memory:/{folder}")
    try:
        if process in ("running", "elsewhere"):
            with pytest.raises(SetExists, match="another process makes a training set there now"):
                target.make([source(made / "books")], RECIPE, Here())
            assert store.find(folder) == [lock]
        else:
            assert target.make([source(made / "books")], RECIPE, Here()).failures == ()
            assert not any("lock" in path for path in store.find(folder))
    finally:
        ended.set()
        if thread.ident:
            thread.join()


def test_two_that_come_to_a_store_at_the_same_time_do_not_both_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has put its lock before the other looks, and none takes its own away before both have looked."""
    put, looked = threading.Barrier(2), threading.Barrier(2)
    listing = stamps._locks

    def locks(*arguments: Any) -> Any:
        put.wait(10)
        found = list(listing(*arguments))
        looked.wait(10)
        return found

    monkeypatch.setattr(stamps, "_locks", locks)
    folder = f"memory://sets/{uuid.uuid4().hex}"
    went_on: list[bool] = []

    def come() -> None:
        with stamps.sole_writer(folder) as is_ours:
            went_on.append(is_ours)

    threads = [threading.Thread(target=come) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert went_on == [False, False]
    monkeypatch.setattr(stamps, "_locks", listing)
    with stamps.sole_writer(folder) as is_ours:
        assert is_ours, "both have taken theirs away"


@pytest.mark.parametrize("name", ["train-000000", "train-000077"])
def test_shards_of_another_plan_that_came_meanwhile_are_an_error(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Object stores have no locks."""
    finish = TarFolder.finish

    def meanwhile(*arguments: Any) -> list[str]:
        note = {"digest": "another", "split": "train", "bytes": 1, "size": 1}
        (tmp_path / "set" / ".training" / f"{name}.json").write_text(json.dumps(note))
        return finish(*arguments)

    monkeypatch.setattr(TarFolder, "finish", meanwhile)
    with pytest.raises(SetExists, match=f"another process makes a training set there, too .shard {name}."):
        training_set(tmp_path / "set").make([source(made / "web")], RECIPE, Here())
    assert not (tmp_path / "set" / PLAN_FILE).exists()


def test_bytes_that_change_between_plan_and_copy_fail_the_shard(tmp_path: Path) -> None:
    make_source(tmp_path / "web", "web", shards=1)
    found = source(tmp_path / "web")
    tar = tmp_path / "web" / "web-0.tar"
    tar.write_bytes(tar.read_bytes().replace(b"text of web/doc.003", b"TEXT of web/doc.003"))
    report = training_set(tmp_path / "set").make([found], Recipe(), Here())
    assert len(report.failures) == 1
    assert report.failures[0].endswith(f": the source {tar} has changed meanwhile; run it again")
    assert not (tmp_path / "set" / PLAN_FILE).exists() and not list((tmp_path / "set").glob("*.tar"))
