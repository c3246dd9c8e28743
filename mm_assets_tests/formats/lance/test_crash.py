"""Committers that race, and committers that are killed: run again, and the rows are exact."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.records import PartitionRecords
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.formats.lance.tables import content, expected, names, rows, write

SPAWN = multiprocessing.get_context("spawn")


def race(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[str]:
    """Run in spawned processes that start together; what each put into the queue."""
    barrier, answers = SPAWN.Barrier(len(arguments)), SPAWN.Queue()
    processes = [SPAWN.Process(target=target, args=(barrier, answers, *args)) for args in arguments]
    for process in processes:
        process.start()
    found = [answers.get(timeout=50) for _ in processes]
    for process in processes:
        process.join(timeout=50)
    return found


def commit_several(barrier: Any, answers: Any, uri: str, worker: int) -> None:
    table = LanceTable(uri)
    barrier.wait()
    problem = "ok"
    try:
        for mark in ("first", "second"):
            for partition in (f"own{worker}", "shared"):
                ids = names(
                    partition if partition != "shared" else f"shared-{worker}" if worker % 2 else "shared"
                )
                text = f"{mark}-{worker}"
                new = write(uri, partition, rows(ids, mark=text))
                table.commit([new])
                table.commit([new])
    except Exception as error:  # noqa: BLE001 - the parent asserts what it was
        problem = f"{type(error).__name__}: {error}"
    answers.put(problem)


def test_committers_race_from_creation_on(tmp_path: Path) -> None:
    uri = str(tmp_path / "items.lance")
    assert race(commit_several, [(uri, worker) for worker in range(4)]) == ["ok"] * 4
    table = LanceTable(uri)
    found = table.dataset().to_table(columns=["sample_id", "text_content"], filter="position = -1")
    by_id = dict(zip(found["sample_id"].to_pylist(), found["text_content"].to_pylist(), strict=True))
    assert len(by_id) == found.num_rows == 4 * 3 + 3  # no doubles; one writer's rows in the shared partition
    assert {by_id[i] for worker in range(4) for i in names(f"own{worker}")} == {
        f"second-{w}" for w in range(4)
    }
    assert len({text for i, text in by_id.items() if i.startswith("shared")}) == 1
    assert sorted(table.partitions()) == ["own0", "own1", "own2", "own3", "shared"]


def replace_again_and_again(barrier: Any, answers: Any, uri: str, partition: str, rounds: int) -> None:
    table = LanceTable(uri)
    barrier.wait()
    problem = "ok"
    try:
        for number in range(rounds):
            new = write(uri, partition, rows(names(partition, 2 + number % 2), mark=f"{number}"))
            assert table.repeated_ids([new]) == {}
            table.commit([new])
    except Exception as error:  # noqa: BLE001 - the parent asserts what it was
        problem = f"{type(error).__name__}: {error}"
    answers.put(problem)


def compact_again_and_again(barrier: Any, answers: Any, uri: str, rounds: int) -> None:
    table = LanceTable(uri)
    barrier.wait()
    landed = 0
    for _ in range(rounds):
        try:
            table.dataset().optimize.compact_files()
            landed += 1
        except OSError:  # a commit came first: Lance's own compaction gives up
            continue
    answers.put("ok" if landed else "no compaction landed")


def test_committers_race_with_compaction(tmp_path: Path) -> None:
    uri = str(tmp_path / "items.lance")
    table = LanceTable(uri)
    partitions = ["a", "b", "c"]
    table.commit([write(uri, name) for name in [*partitions, "still"]])
    table.dataset().optimize.compact_files()
    context = [(replace_again_and_again, (uri, name, 6)) for name in partitions]
    assert race(run_one, [*context, (compact_again_and_again, (uri, 12))]) == ["ok"] * 4
    assert content(table) == expected(
        *(rows(names(name), mark="5") for name in partitions), rows(names("still"))
    )
    assert all(facts.is_whole for facts in table.partitions().values())
    assert table.orphan_rows() == []


def run_one(barrier: Any, answers: Any, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    target(barrier, answers, *arguments)


def commit_prepared(barrier: Any, answers: Any, uri: str, new: FragmentSet) -> None:
    barrier.wait()
    try:
        LanceTable(uri).commit([new])
        answers.put("ok")
    except Exception as error:  # noqa: BLE001 - the parent asserts what it was
        answers.put(f"{type(error).__name__}: {error}")


def test_one_set_committed_by_several(tmp_path: Path) -> None:
    uri = str(tmp_path / "items.lance")
    new = write(uri, "a")
    assert race(commit_prepared, [(uri, new)] * 3) == ["ok"] * 3
    table = LanceTable(uri)
    assert content(table) == expected(rows(names("a")))
    assert list(table.partitions()) == ["a"]


def test_one_sample_id_brought_by_two_at_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "items.lance")
    table = LanceTable(uri)
    table.commit([write(uri, "z")])
    parts = {name: rows(["x", f"{name}/own"]) for name in ("a", "b", "c")}
    answers = race(commit_prepared, [(uri, write(uri, name, part)) for name, part in parts.items()])
    assert sorted(answer.partition(":")[0] for answer in answers) == ["ValueError", "ValueError", "ok"]
    (winner,) = set(table.partitions()) - {"z"}
    assert content(table) == expected(rows(names("z")), parts[winner])


def test_schema_changes_race(tmp_path: Path) -> None:
    uri = str(tmp_path / "items.lance")
    parts = {
        f"p{i}": rows(names(f"p{i}"), {f"c{i}": (pa.int64(), [i, i, i]), "n": (pa.null(), [None] * 3)})
        for i in range(3)
    }
    parts["p3"] = rows(names("p3"), {"n": (pa.string(), ["x"] * 3)})
    answers = race(commit_prepared, [(uri, write(uri, name, part)) for name, part in parts.items()])
    assert answers == ["ok"] * 4
    table = LanceTable(uri)
    assert content(table) == expected(*parts.values())
    data = table.dataset().to_table(filter="position = -1").to_pylist()
    for row in data:
        name = row["sample_id"].split("/")[0]
        number = int(name[1:])
        assert [row.get(f"c{i}") for i in range(3)] == [i if i == number else None for i in range(3)]
        assert row["n"] == ("x" if number == 3 else None)


# --- killed between phases
# --------------------------------------------------------------------------------------------

PHASES = ["before_intent", "after_intent", "after_schema", "after_commit", "after_put", "before_prune"]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit_and_die(uri: str, sets: list[FragmentSet], phase: str) -> None:
    from mm_assets.formats.lance import table as module

    puts = 0
    put, evolve, apply = PartitionRecords.put, module.evolve, LanceTable._apply

    def dying_put(self: PartitionRecords, records: Any) -> None:
        nonlocal puts
        puts += 1
        if phase == "before_intent":
            die()
        put(self, records)
        if phase == ("after_intent" if puts == 1 else "after_put"):
            die()

    def dying_evolve(dataset: Any, target: Any) -> Any:
        result = evolve(dataset, target)
        if phase == "after_schema":
            die()
        return result

    def dying_apply(self: LanceTable, *args: Any) -> Any:
        result = apply(self, *args)
        if phase == "after_commit":
            die()
        return result

    def dying_delete(self: PartitionRecords, records: Any) -> None:
        die()

    PartitionRecords.put = dying_put  # type: ignore[method-assign]
    module.evolve = dying_evolve
    LanceTable._apply = dying_apply  # type: ignore[method-assign]
    PartitionRecords.delete = dying_delete  # type: ignore[method-assign]
    LanceTable(uri).commit(sets)


@pytest.mark.parametrize("phase", PHASES)
def test_killed_then_run_again(tmp_path: Path, phase: str) -> None:
    """The same sets again; other sets of the same partitions; and all of it with a compaction in between."""
    extra = {"url": (pa.string(), ["u", "v", "w", "x"])}
    killed = LanceTable(tmp_path / "killed" / "items.lance").uri
    LanceTable(killed).commit([write(killed, "a"), write(killed, "b"), write(killed, "c")])
    changed_a, new_d = rows(names("a", 4), extra, mark="new"), rows(names("d", 4), extra)
    given = [write(killed, "a", changed_a), write(killed, "d", new_d), write(killed, "c", rows([]))]
    process = SPAWN.Process(target=commit_and_die, args=(killed, given, phase))
    process.start()
    process.join(timeout=50)
    assert process.exitcode == -signal.SIGKILL
    landed = PHASES.index(phase) >= PHASES.index("after_commit")
    old = expected(rows(names("a")), rows(names("b")), rows(names("c")))
    for then in ("same", "compacted", "cleaned", "anew"):
        shutil.copytree(tmp_path / "killed", tmp_path / then)
        table = LanceTable(tmp_path / then / "items.lance")
        uri, sets, new_a = table.uri, list(given), changed_a
        new = expected(new_a, rows(names("b")), new_d)
        assert content(table) == (new if landed else old)
        assert sorted(table.partitions()) == (["a", "b", "d"] if landed else ["a", "b", "c"])
        if then in ("compacted", "cleaned"):
            table.dataset().optimize.compact_files()
            assert sorted(table.partitions()) == (["a", "b", "d"] if landed else ["a", "b", "c"])
        if then == "cleaned":
            table.dataset().cleanup_old_versions(older_than=timedelta(0))
            assert sorted(table.partitions()) == (["a", "b", "d"] if landed else ["a", "b", "c"])
        if then == "anew":
            new_a = rows(names("a", 2), mark="newer")
            new = expected(new_a, rows(names("b")), new_d)
            sets[0] = write(uri, "a", new_a)
        version = table.dataset().version
        if then == "cleaned" and phase == "after_commit":
            # Landed, never said so, compacted, and every version and file that could tell is gone: refused,
            # not guessed.
            with pytest.raises(FileNotFoundError, match="write it again"):
                table.commit(sets)
            sets = [write(uri, "a", new_a), write(uri, "d", new_d), sets[2]]
        again = table.commit(sets)
        if landed and then in ("same", "compacted"):
            assert again == version
        assert content(table) == new
        assert {name: f.rows for name, f in table.partitions().items()} == {
            "a": new_a.num_rows,
            "b": 6,
            "d": 8,
        }
        assert table.commit(sets) == again
