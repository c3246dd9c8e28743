"""What a run of new shards, and each part of the control path, costs beside many known shards."""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.asset_runs import AssetRuns, database_bytes
from benchmarks.event_rows import EventRows
from benchmarks.events import event_log_configuration
from benchmarks.known_shards import Copies, copied_name, noted_fingerprints
from benchmarks.measuring import ROOT, Measurement, TaskFailed, Work, measure, measure_command
from benchmarks.orchestration import small_shards
from benchmarks.results import Results
from benchmarks.scale_parts import PARTS
from benchmarks.scale_tables import add_tables
from benchmarks.workbench import fresh_output

_RUN = 100  # shards of a run
_LATER = 100  # raw shards that nobody has seen, for sensors and plans
_SHOWN_SECONDS = 0.3  # of steps and functions that the tables name
_INSTALLED = re.compile(r"^.*/lib/python[0-9.]+/(site-packages/)?")
_PLAN = ("run", "--dry-run", "--missing")


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("scale", help="a run of 100 shards beside 1,000, 10,000, 100,000 known ones")
    parser.add_argument(
        "--shards",
        type=int,
        nargs="+",
        default=[1_000],
        help=f"known ones, multiples of {_RUN} (default: 1000; published: 1000 10000 100000)",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="a second run of 100, by function")
    parser.add_argument(
        "--prove", type=int, default=0, metavar="N", help="prove all outputs up to N known shards"
    )
    parser.add_argument(
        "--earlier", type=Path, metavar="FILE", help="results (JSON) with other numbers, for the same tables"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the storage of each size, and measure beside it."""
    found = {}
    for known in options.shards:
        found[known] = _measure(known, options)
        _publish(options, found)
    return 0


def _measure(known: int, options: argparse.Namespace) -> dict[str, Any]:
    with fresh_output() as output:
        home, raw = output.with_name("home"), output.with_name("raw")
        home.mkdir()
        raw.mkdir()
        (home / "dagster.yaml").write_text(json.dumps(event_log_configuration("ours")))  # JSON is YAML
        environment = {
            "DAGSTER_HOME": str(home),
            "MM_RAW_SHARDS": str(raw),
            "MM_STORAGE": str(output),
            "MM_WORKERS": str(options.workers),
            "MM_AUTOMATION": "new",
            "PYTHONPATH": str(ROOT),
        }
        real, new, more = _link_raw_shards(raw)

        def measured(task: str, **arguments: Any) -> Measurement:
            done = measure(f"benchmarks.{task}", environment=environment, **arguments)
            print(f"{known} {task} {done.wall:.1f} s wall, {done.cpu:.1f} s CPU", flush=True)
            return done

        made = measured("scale:prepare_known", real=real, raw=str(raw), known=known)
        found: dict[str, Any] = {"known": known, "made": made.__dict__}
        known_one = copied_name(real[0], 1)
        found["run"] = measured("scale:prepare_run", known=known_one, new=new).__dict__
        if options.profile:
            profiled = measured("scale:prepare_run", known=known_one, new=more, is_profiled=True)
            found["profile"] = profiled.result["functions"]
        if known <= options.prove:
            found["proof"] = _command(environment, "prove")
        found["parts"] = {
            name: measured("scale_parts:prepare_part", name=name, keys=new).__dict__ for name in PARTS
        }
        found["bytes"] = {"database": made.result["bytes"], "manifest": _manifest_bytes(output)}
        for number in range(_LATER):
            os.link(raw / f"{real[number % len(real)]}.tar", raw / f"later-{number:05}.tar")
        found["plan"] = _command(environment, *_PLAN)
        found["ticks"] = measured("ticks:prepare_ticks").__dict__
    return found


def _link_raw_shards(raw: Path) -> tuple[list[str], list[str], list[str]]:
    """Link real raw shards, of both layouts alike, for three runs; return their partitions."""
    files = sorted(small_shards(3 * _RUN).glob("*.tar"), key=lambda file: (file.stem[-5:], file.stem))
    for file in files[: 3 * _RUN]:
        os.link(file, raw / file.name)
    keys = [file.stem for file in files]
    return keys[:_RUN], keys[_RUN : 2 * _RUN], keys[2 * _RUN : 3 * _RUN]


def prepare_known(real: list[str], raw: str, known: int) -> Work:
    """Make real shards, and of all that they left as many copies as make ``known`` shards."""
    runs = AssetRuns()
    root = os.environ["MM_STORAGE"]

    def work() -> dict[str, Any]:
        from mm_assets.accounting import LANCE, TARS, index_folder
        from mm_assets.formats.lance.table import LanceTable
        from mm_assets.formats.webdataset.writer import TarFolder

        runs.add_partitions(real)
        with noted_fingerprints() as made_from:
            runs.materialize(real)
        rows, stored = EventRows(runs.instance, real), 0
        copies = Copies(root, raw, tuple(real), made_from, known // len(real) - 1)
        for number, versions in copies.make():
            names = {key: copied_name(key, number) for key in real}
            runs.add_partitions(list(names.values()))
            stored += rows.store(names, number, versions)
        TarFolder(f"{root}/{TARS.folder}", index=index_folder(root, "tars")).finish()
        LanceTable(LANCE.place(root, "")).ensure_indexes()
        return {"rows": stored, "bytes": database_bytes(runs.instance)}

    return work


def prepare_run(known: str, new: list[str], is_profiled: bool = False) -> Work:
    """Check that nothing is to be done for a known shard, which warms up; the work is a run of new ones."""
    runs = AssetRuns()
    made_again = _made_again(runs.materialize([known]))
    runs.add_partitions(new)

    def work() -> dict[str, Any]:
        profile = cProfile.Profile()
        with _step_costs(runs.instance) as steps, profile if is_profiled else nullcontext():
            result = runs.materialize(new)
        return {
            "cpu": runs.cpu[-1],
            "wall": runs.wall[-1],
            "resident": _peak(),
            "steps": steps,
            "events": len(result.all_events),
            "made_again": made_again,
            "check": {"cpu": runs.cpu[0], "wall": runs.wall[0]},
            "functions": _functions(profile) if is_profiled else {},
        }

    return work


def _made_again(result: Any) -> list[str]:
    """The assets that a run did not find unchanged."""
    found = []
    for event in result.get_asset_materialization_events():
        made = event.materialization
        if "unchanged" not in made.metadata:
            found.append(made.asset_key.to_user_string())
    return sorted(found)


@contextmanager
def _step_costs(instance: Any) -> Iterator[dict[str, list[float]]]:
    """CPU seconds of this process, and wall seconds, of each step that is executed meanwhile."""
    costs: dict[str, list[float]] = {}
    handle = instance.handle_new_event

    def handled(event: Any, **more: Any) -> None:
        kind = event.dagster_event.event_type_value if event.dagster_event is not None else ""
        if kind in ("STEP_START", "STEP_SUCCESS", "STEP_FAILURE"):
            before = costs.get(event.step_key, [0.0, 0.0])
            now = (time.process_time(), time.monotonic())
            costs[event.step_key] = [at - earlier for at, earlier in zip(now, before, strict=True)]
        handle(event, **more)

    with mock.patch.object(instance, "handle_new_event", handled):
        yield costs


def _functions(profile: cProfile.Profile) -> dict[str, tuple[int, float, float]]:
    """Calls, own seconds and seconds with all they call, of functions that took long."""
    found = {}
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, line, name), (_, calls, own, whole, _) in stats.items():
        place = _INSTALLED.sub("", file).removeprefix(f"{ROOT}/")
        if max(own, whole if place.startswith("mm_assets/") else 0) > _SHOWN_SECONDS / 10:
            found[f"{place}:{line} {name}"] = (calls, own, whole)
    return found


def _peak() -> float:
    """MiB that this process had resident at its peak, since the work began."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def _manifest_bytes(output: Path) -> int:
    versions = output.joinpath("lance", "items.lance", "_versions").glob("*.manifest")
    return min(versions).stat().st_size  # names count down


def _command(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    try:
        done = measure_command([sys.executable, "-m", "mm_assets.cli", *arguments], environment)
    except TaskFailed as error:
        return {"failed": str(error)[-1000:]}
    print(f"{' '.join(arguments)}: {done.wall:.1f} s wall, {done.cpu:.1f} s CPU", flush=True)
    return done.__dict__


def _publish(options: argparse.Namespace, found: dict[int, dict[str, Any]]) -> None:
    if options.earlier is not None:
        earlier = json.loads(options.earlier.read_text())["sizes"]
        found = {each["known"]: each for each in earlier} | found
    results = Results(f"scale-{max(options.shards)}", f"A run of {_RUN} shards beside many known ones")
    results.say(
        f"Shards of 2 samples, all assets and checks, {options.workers} workers, event log of mm_assets on "
        f"SQLite, local files. {_RUN} shards are real; what they left is copied under other names until so "
        "many are known as the head of the column says. Rows of the event log, records, surveys, notes, "
        "proofs, statistics of tars and records of Lance partitions are made for each copy, with sample ids "
        "of its own. Raw shards and data files, of Lance, too, are hard links, so that the rows in them and "
        "the indexes of the Lance table have the sample ids of the real shards; the fragments came in one "
        "commit, not in one for each run. CPU is that of the process that runs Dagster, without workers."
    )
    for each in found.values():
        again = each["run"]["result"]["made_again"]
        results.say(
            f"Beside {each['known']:,}: a run of all assets for a copied shard found "
            f"{'all unchanged' if not again else 'changed: ' + ', '.join(again)}."
        )
    add_tables(results, [found[known] for known in sorted(found)])
    results.keep({"workers": options.workers, "sizes": list(found.values())})
    results.publish()
