"""The pool blames the right job, moves big results, and leaves no process behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mm_assets.pool import WorkerFailure, WorkerStartError, available_cores, workers
from mm_assets.pool.workers import WorkerPool
from mm_assets_tests.worker_jobs import RefusesPickling, Warned, WarnedKey, act, resident, warn

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Of all tests to which its start is nothing."""
    with WorkerPool(2) as two:
        yield two


def is_running(pid: int) -> bool:
    """A zombie of ours is not running; the parent has only to reap it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def results(pool: WorkerPool, jobs: list[tuple[str, Any]]) -> dict[tuple[str, Any], Any]:
    return dict(pool.map(act, jobs))


def test_every_job_has_its_own_result(pool: WorkerPool) -> None:
    jobs = [("echo", n) for n in range(40)]
    assert results(pool, jobs) == {job: job[1] for job in jobs}


def waited_for(pool: WorkerPool, end: Path, others: list[str]) -> list[Any]:
    """The results of a job that ends when those of the others are there, and of these, as they come."""
    found = []
    for _, result in pool.map(act, [("wait for", str(end)), *[("echo", other) for other in others]]):
        found.append(result)
        if found == others:
            end.touch()
    return found


def test_results_come_in_the_order_in_which_they_finish(pool: WorkerPool, tmp_path: Path) -> None:
    assert waited_for(pool, tmp_path / "end", ["fast"]) == ["fast", "waited"]


def test_exception_names_itself_in_one_line_and_keeps_its_traceback(pool: WorkerPool) -> None:
    failure = results(pool, [("raise", "bad\nshard"), ("echo", 1)])["raise", "bad\nshard"]
    assert (failure.type, failure.message, str(failure)) == ("ValueError", "bad shard", "bad shard")
    assert "raise ValueError(message)\nValueError: bad\nshard" in failure.traceback


def test_killed_worker_costs_its_own_job_only(pool: WorkerPool) -> None:
    jobs: list[tuple[str, Any]] = [("echo", n) for n in range(30)]
    jobs[3:3] = [("signal", signal.SIGKILL)]
    jobs[17:17] = [("signal", signal.SIGSEGV)]
    jobs[25:25] = [("exit", 3)]
    found = results(pool, jobs)
    failures = {job: str(result) for job, result in found.items() if isinstance(result, WorkerFailure)}
    hint = ", as the kernel does when memory runs out: fewer workers (MM_WORKERS, --workers) need less"
    assert failures == {
        ("signal", signal.SIGKILL): f"worker killed by signal 9 (SIGKILL){hint}",
        ("signal", signal.SIGSEGV): "worker killed by signal 11 (SIGSEGV)",
        ("exit", 3): "worker ended with exit status 3 in the middle of its job",
    }
    assert [result for job, result in sorted(found.items(), key=str) if job[0] == "echo"] == sorted(
        range(30), key=str
    )


def test_follower_of_a_killed_job_is_done_by_another_worker() -> None:
    with WorkerPool(1) as one:
        jobs = [("signal", signal.SIGKILL), ("echo", 1), ("signal", signal.SIGTERM), ("echo", 2)]
        outcome = [str(result) for _, result in one.map(act, jobs)]
    assert [text.split(",")[0] for text in outcome] == [
        "worker killed by signal 9 (SIGKILL)",
        "1",
        "worker killed by signal 15 (SIGTERM)",
        "2",
    ]


def test_job_that_takes_too_long_is_ended_and_the_others_are_done() -> None:
    jobs: list[tuple[str, Any]] = [("echo", 1), ("sleep", (600, "never")), ("echo", 2), ("echo", 3)]
    with WorkerPool(1, time_limit=2) as one:
        found = results(one, jobs)
    late = found.pop(("sleep", (600, "never")))
    assert (late.type, str(late)) == (
        "TookTooLong",
        "took longer than 2 seconds (MM_SHARD_TIMEOUT), and was ended",
    )
    assert found == {("echo", n): n for n in (1, 2, 3)}


def test_result_that_waits_while_its_consumer_is_busy_is_not_late() -> None:
    jobs = [("echo", n) for n in range(6)]
    with WorkerPool(2, time_limit=3) as two:
        running = two.map(act, jobs)
        found = [next(running)[1]]
        time.sleep(3.5)
        found += [result for _, result in running]
    assert sorted(found) == [0, 1, 2, 3, 4, 5]


def test_worker_without_a_job_gives_back_the_memory_it_has_kept() -> None:
    with WorkerPool(1) as one:
        ((pid, kept),) = results(one, [("keep free memory", 96 << 20)]).values()
        assert kept > 96 << 20
        wait_until(lambda: resident(pid) < kept - (80 << 20))
        assert results(one, [("echo", 1)]) == {("echo", 1): 1}


def test_worker_keeps_a_bounded_part_of_free_memory_between_jobs() -> None:
    with WorkerPool(1) as one:
        jobs = [("keep free memory", size << 20) for size in (96, 400)] + [("resident", 0)]
        found = results(one, jobs)
    (_, little), (_, much), after = (found[job] for job in jobs)
    assert little > 96 << 20
    assert much > 400 << 20
    assert after < much - (350 << 20)


def test_worker_killed_while_idle_costs_no_job() -> None:
    with WorkerPool(1) as one:
        assert results(one, [("echo", 1)]) == {("echo", 1): 1}
        os.kill(one.pids()[0], signal.SIGKILL)
        assert results(one, [("echo", 2), ("echo", 3)]) == {("echo", 2): 2, ("echo", 3): 3}


def test_death_is_seen_although_a_child_holds_the_pipe(pool: WorkerPool, tmp_path: Path) -> None:
    note = tmp_path / "child"
    found = results(pool, [("hold pipe and die", str(note)), ("echo", 1)])
    os.kill(int(note.read_text()), signal.SIGKILL)
    assert (
        str(found["hold pipe and die", str(note)])
        == "worker ended with exit status 7 in the middle of its job"
    )


def test_system_exit_in_a_job_is_its_failure(pool: WorkerPool) -> None:
    assert str(results(pool, [("system exit", 5)])["system exit", 5]) == "SystemExit: 5"


def test_big_jobs_and_big_results_do_not_block_each_other() -> None:
    size = 8 << 20
    with WorkerPool(1) as one:
        jobs = [("echo bytes", bytes([n]) * size) for n in range(6)]
        assert all(result == job[1] for job, result in one.map(act, jobs))


def test_job_that_cannot_be_pickled_fails_alone(pool: WorkerPool) -> None:
    bad = ("echo", RefusesPickling())
    outcome = {
        str(job[1])[-2:]: str(result) for job, result in pool.map(act, [("echo", "aa"), bad, ("echo", "bb")])
    }
    assert outcome.pop("aa") == "aa" and outcome.pop("bb") == "bb"
    assert list(outcome.values()) == ["RuntimeError: cannot be pickled"]


def test_result_that_cannot_be_pickled_is_a_failure(pool: WorkerPool) -> None:
    found = results(pool, [("unpicklable result", 0), ("bad result", 0)])
    assert "pickle" in str(found["unpicklable result", 0]).lower()
    assert str(found["bad result", 0]).startswith("invalid literal for int()")


def test_jobs_are_read_only_a_few_ahead() -> None:
    taken = done = most = 0

    def jobs() -> Iterator[tuple[str, int]]:
        nonlocal taken
        for n in range(60):
            taken += 1
            yield ("echo", n)

    with WorkerPool(2) as two:
        for _ in two.map(act, jobs()):
            most = max(most, taken - done)
            done += 1
    assert (taken, done) == (60, 60)
    assert most <= 3 * 2


def test_last_jobs_go_to_whoever_is_free(pool: WorkerPool, tmp_path: Path) -> None:
    assert waited_for(pool, tmp_path / "end", ["a", "b"]) == ["a", "b", "waited"]


def test_workers_stay_warm_and_are_no_more_than_asked_for(pool: WorkerPool) -> None:
    first = set(results(pool, [("pid", n) for n in range(8)]).values())
    second = set(results(pool, [("pid", n) for n in range(8)]).values())
    assert first | second <= set(pool.pids())
    assert len(pool.pids()) == 2 and os.getpid() not in first


def test_no_worker_is_started_before_or_beyond_the_work() -> None:
    with WorkerPool(8) as eight:
        assert eight.pids() == []
        assert results(eight, []) == {} and eight.pids() == []
        results(eight, [("echo", 1)])
        assert len(eight.pids()) == 1


def test_zero_processes_means_all_cores_and_less_is_an_error() -> None:
    assert WorkerPool(0).processes == available_cores() >= 1
    with pytest.raises(ValueError, match="processes must be 0"):
        WorkerPool(-1)


def test_workers_ignore_sigint(pool: WorkerPool) -> None:
    assert results(pool, [("sigint", 0)]) == {("sigint", 0): True}


def test_only_one_map_at_a_time(pool: WorkerPool) -> None:
    running = pool.map(act, [("echo", 1), ("echo", 2)])
    next(running)
    with pytest.raises(RuntimeError, match="another map"):
        next(pool.map(act, [("echo", 3)]))
    assert len(list(running)) == 1


def test_error_in_the_job_source_ends_the_workers(pool: WorkerPool) -> None:
    def jobs() -> Iterator[tuple[str, Any]]:
        yield from [("sleep", (60, n)) for n in range(3)]
        raise OSError("listing failed")

    with pytest.raises(OSError, match="listing failed"):
        list(pool.map(act, jobs()))
    assert pool.pids() == []


def test_consumer_that_stops_early_leaves_no_process(pool: WorkerPool) -> None:
    running = pool.map(act, [("echo", 1), *[("sleep", (60, n)) for n in range(5)]])
    next(running)
    pids = pool.pids()
    running.close()
    assert pids and not any(map(is_running, pids))
    assert results(pool, [("echo", 2)]) == {("echo", 2): 2}


def test_workers_that_cannot_start_are_not_blamed_on_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    start = workers.start

    def stillborn(*arguments: Any) -> Any:
        worker = start(*arguments)
        worker.process.kill()
        return worker

    monkeypatch.setattr(workers, "start", stillborn)
    with WorkerPool(2) as pool:
        with pytest.raises(WorkerStartError, match="do not start: worker killed by signal 9"):
            results(pool, [("echo", n) for n in range(5)])
        assert pool.pids() == []


def test_a_warning_of_several_workers_is_told_once_with_its_shard(capfd: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(2) as two:
        jobs = [Warned(f"/data/{name}.tar", "a bad thing") for name in "abcd"]
        assert len(list(two.map(warn, jobs))) == 4
        list(two.map(warn, [Warned("/data/e.tar", "e.tar: worse"), Warned("", "of no shard")]))
        list(two.map(warn, [WarnedKey("web/e", "of a key"), WarnedKey("web/e", "e is it")]))
    first, *others = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"mm-assets: warning: /data/[abcd]\.tar: a bad thing", first)
    assert sorted(others) == [
        "mm-assets: warning: e is it",
        "mm-assets: warning: e.tar: worse",
        "mm-assets: warning: of no shard",
        "mm-assets: warning: shard 'web/e': of a key",
    ]


def test_a_worker_tells_each_warning_once_and_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(1) as one:
        list(one.map(warnings.simplefilter, ["always"]))  # or Python itself would leave out what came before
        list(one.map(warnings.warn, ["two\nlines", "other", "two\nlines", "other"]))
    assert capfd.readouterr().err == "mm-assets: warning: two lines\nmm-assets: warning: other\n"


SCRIPT = """
import faulthandler, sys
faulthandler.dump_traceback_later(50)  # where it is, if it does not end
from mm_assets.pool.workers import WorkerPool
from mm_assets_tests.worker_jobs import act
import colorsys  # stands for a heavy import of the main program

if __name__ == "__main__" or True:  # no guard on purpose: workers must not run this file
    with WorkerPool(2, may_fork=sys.argv[2] == "fork") as pool:
        for job, result in pool.map(act, eval(sys.argv[1])):
            print(job, result, flush=True)
"""


BOTH_STARTS = pytest.mark.parametrize("start", ["fork", "spawn"])


def script(tmp_path: Path, jobs: list[tuple[str, Any]], start: str) -> "subprocess.Popen[str]":
    """A program whose workers are forked or spawned."""
    file = tmp_path / "main_program.py"
    file.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # Tests started in the background inherit ignored signals; a program of its own has the default ones.
    restored = (
        "import signal, os, sys; [signal.signal(s, signal.SIG_DFL) for s in (2, 15)]; "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", restored, sys.executable, str(file), repr(jobs), start],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_temporary_files_are_in_a_folder_that_goes_with_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with WorkerPool(2) as pool:
        found = results(pool, [("temporary", n) for n in range(4)])
        made = [Path(str(path)) for path in found.values()]
        assert len(made) == 4 and all(path.is_file() and path.is_relative_to(tmp_path) for path in made)
        assert len({path.parent for path in made}) == 1
    assert list(tmp_path.iterdir()) == []


def test_spawned_workers_do_not_import_the_main_program(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        [("modules", "colorsys"), ("modules", "dagster"), ("modules", "mm_assets.pool.workers")],
        "spawn",
    )
    out, _ = program.communicate(timeout=60)
    assert sorted(out.splitlines()) == [
        "('modules', 'colorsys') []",
        "('modules', 'dagster') []",
        "('modules', 'mm_assets.pool.workers') ['mm_assets.pool.workers']",
    ]


def pool_script(code: str, *arguments: str) -> str:
    """What a program of its own prints: this process has threads of the test runner, and is never forked."""
    code = f"""
import os, sys, threading, time, types
from mm_assets.pool.workers import WorkerPool
from mm_assets_tests.worker_jobs import act
{code}"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OBSTACLES = {
    "nothing": ("", ["colorsys"]),
    "a thread": ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", []),
    "lance": ("sys.modules['lance'] = types.ModuleType('lance')", []),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_nothing_is_forked_that_would_break(obstacle: str) -> None:
    """Only a forked worker has what the program has imported."""
    code, found = OBSTACLES[obstacle]
    ask = """
import colorsys
with WorkerPool(1, may_fork=True) as pool:
    print([result for _, result in pool.map(act, [("modules", "colorsys")])])
"""
    assert pool_script(code + ask) == f"{[found]}\n"


@BOTH_STARTS
def test_workers_have_the_environment_and_folder_of_now(tmp_path: Path, start: str) -> None:
    ask = """
for folder in sys.argv[2:]:
    os.mkdir(folder)
    os.chdir(folder)
    os.environ["MM_ASSETS_TEST"] = folder
    with WorkerPool(1, may_fork=sys.argv[1] == "fork") as pool:
        print(*(result for _, result in pool.map(act, [("environment", "MM_ASSETS_TEST"), ("folder", 0)])))
"""
    folders = [str(tmp_path / name) for name in "ab"]
    assert pool_script(ask, start, *folders).splitlines() == [f"{folder} {folder}" for folder in folders]


def test_forked_workers_do_not_hold_the_pipes_of_others() -> None:
    """Each would keep the others alive after the death of their parent."""
    ask = """
with WorkerPool(3, may_fork=True) as pool:
    jobs = [("sleep", (0.5, n)) for n in range(3)] + [("sockets", n) for n in range(9)]
    print([result for job, result in pool.map(act, jobs) if job[0] == "sockets"])
"""
    assert pool_script(ask) == f"{[1] * 9}\n"


@BOTH_STARTS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_go_when_their_parent_is_killed(tmp_path: Path, number: signal.Signals, start: str) -> None:
    notes = [tmp_path / "a", tmp_path / "b"]
    program = script(tmp_path, [("touch then sleep", (str(note), 120)) for note in notes], start)
    wait_until(lambda: all(note.exists() and note.read_text() for note in notes))
    pids = [int(note.read_text()) for note in notes]
    assert all(map(is_running, pids))
    os.kill(program.pid, number)
    # A pool that is closed waits 10 s for each worker that it has killed.
    assert program.wait(timeout=45) == -number
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_fork_server_serves_all_pools_of_its_block() -> None:
    """Its workers have what was imported before it, and what it imports for them, though there are threads.

    A dead one costs its job alone; the server ends with the block, with its folder.
    """
    ask = """
import tempfile
from multiprocessing import forkserver
from mm_assets.pool.workers import fork_server
import colorsys
tempfile.tempdir = sys.argv[1]
sys.stdout.write("printed once ")
with fork_server(["wave"]):
    import shelve
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    server = forkserver._forkserver._forkserver_pid
    for run in range(2):
        with WorkerPool(2) as pool:
            asked = [("modules", name) for name in ("colorsys", "wave", "shelve")]
            print(sorted(name for _, names in pool.map(act, asked) for name in names))
            for pid in pool.pids():
                os.kill(pid, 9)
            print([len(result) for _, result in pool.map(act, asked[:2])])
            print(*(result for _, result in pool.map(os._exit, [3])))
print(os.listdir(sys.argv[1]), os.path.exists(f"/proc/{server}"))
with WorkerPool(1) as pool:
    print([names for _, names in pool.map(act, asked[:1])])
"""
    each = ["['colorsys', 'wave']", "[1, 1]", "worker ended with exit status 3 in the middle of its job"]
    each[0:0] = ["printed once ['colorsys', 'wave']"]
    with TemporaryDirectory(dir="/tmp") as folder:  # of a path that a socket may have
        told = pool_script(ask, folder).splitlines()
    assert told == [each[0], *each[2:], *each[1:], "[] False", "[[]]"]


def test_a_fork_server_is_not_forced(tmp_path: Path) -> None:
    """Beside a thread there is none, nor where the path of its socket is too long; workers are spawned."""
    ask = """
import colorsys, tempfile
from mm_assets.pool.workers import fork_server
tempfile.tempdir = os.path.join(sys.argv[1], "x" * 100)
os.mkdir(tempfile.tempdir)
for obstacle in ("path", "thread"):
    if obstacle == "thread":
        tempfile.tempdir = sys.argv[1]
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    with fork_server(), WorkerPool(1) as pool:
        print([names for _, names in pool.map(act, [("modules", "colorsys")])])
os.rmdir(os.path.join(sys.argv[1], "x" * 100))
"""
    assert pool_script(ask, str(tmp_path)).splitlines() == ["[[]]", "[[]]"]


def test_a_fork_server_that_dies_is_started_again() -> None:
    ask = """
import colorsys
from multiprocessing import forkserver
from mm_assets.pool.workers import fork_server
with fork_server():
    for kills in (True, True, False):
        with WorkerPool(1) as pool:
            print([names for _, names in pool.map(act, [("modules", "colorsys")])])
            if kills:
                os.kill(forkserver._forkserver._forkserver_pid, 9)
"""
    assert pool_script(ask).splitlines() == ["[['colorsys']]", "[[]]", "[[]]"]


def test_the_fork_server_of_somebody_else_is_not_used() -> None:
    """As that of a Dagster executor, which has another environment."""
    ask = """
from multiprocessing import get_context
process = get_context("forkserver").Process(target=int)
process.start()
process.join()
os.environ["MM_LATER"] = "set"
with WorkerPool(1) as pool:
    print([value for _, value in pool.map(os.getenv, ["MM_LATER"])])
"""
    assert pool_script(ask).splitlines() == ["['set']"]


def test_a_fork_server_ends_with_a_killed_command() -> None:
    """It is no child of anybody then, and has none."""
    code = """
import time
from multiprocessing import forkserver
from mm_assets.pool.workers import WorkerPool, fork_server
with fork_server(), WorkerPool(1) as pool:
    list(pool.map(abs, [1]))
    print(forkserver._forkserver._forkserver_pid, *pool.pids(), flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        program.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))
