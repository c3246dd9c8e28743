"""Tables of `benchmarks.scale`: a row for each part, a column for each number of known shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.results import Results

_SHOWN_SECONDS = 0.2  # of steps and functions that get a row
_FUNCTIONS = 40
_LEFT_OUT = 0.05  # seconds: growth of less is noise

Found = Mapping[str, Any]


def add_tables(results: Results, found: Sequence[Found]) -> None:
    """Add all tables; ``found`` has what was measured at each number of known shards."""
    known = [f"{each['known']:,}" for each in found]
    growth = "×, for ten times as many"

    def table(first: str, rows: Sequence[tuple[str, Sequence[float | None]]], digits: int = 2) -> None:
        results.table((first, *known, growth), [_row(name, values, digits) for name, values in rows])

    def all_of(value: Callable[[Found], float | None]) -> list[float | None]:
        return [value(each) for each in found]

    run = [each["run"]["result"] for each in found]
    results.say("A run of 100 new shards: seconds of the process that runs Dagster.")
    steps = sorted({step for each in run for step in each["steps"]}, key=lambda s: -run[-1]["steps"][s][0])
    shown = [step for step in steps if max(each["steps"][step][0] for each in run) >= _SHOWN_SECONDS]
    others = [step for step in steps if step not in shown]
    table(
        "CPU s",
        [
            ("whole run", [each["cpu"] for each in run]),
            *((step, [each["steps"][step][0] for each in run]) for step in shown),
            (f"{len(others)} other steps", [sum(each["steps"][s][0] for s in others) for each in run]),
            (
                "outside of steps",
                [each["cpu"] - sum(cpu for cpu, _ in each["steps"].values()) for each in run],
            ),
            ("a run of one known shard, unchanged", [each["check"]["cpu"] for each in run]),
        ],
    )
    table(
        "wall s",
        [
            ("whole run", [each["wall"] for each in run]),
            *((step, [each["steps"][step][1] for each in run]) for step in shown),
            ("a run of one known shard, unchanged", [each["check"]["wall"] for each in run]),
        ],
    )
    table(
        "memory and files, MiB",
        [
            ("the process of the run, at its peak", [each["resident"] for each in run]),
            ("database", all_of(lambda each: each["bytes"]["database"] / 2**20)),
            ("manifest of the Lance table", all_of(lambda each: each["bytes"]["manifest"] / 2**20)),
        ],
    )
    _add_parts(results, found, known, growth)
    _add_functions(results, found, known, growth)


def _add_parts(results: Results, found: Sequence[Found], known: Sequence[str], growth: str) -> None:
    results.say(
        "Each part alone, in a process of its own, with what it imports; memory is the peak above what the "
        "process had before."
    )
    parts: dict[str, list[Found]] = {
        name: [each["parts"].get(name, {}) for each in found] for name in found[0]["parts"]
    }
    parts["mm-assets run --dry-run --missing"] = [each.get("plan", {}) for each in found]
    if any("proof" in each for each in found):
        parts["mm-assets prove"] = [each.get("proof", {}) for each in found]
    ticks: dict[str, list[Found]] = {}
    for number, each in enumerate(found):
        for tick in each["ticks"]["result"]["ticks"] if "ticks" in each else ():
            ticks.setdefault(f"tick of {tick['name']}", [{}] * len(found))[number] = tick
    for name, unit, digits in (("cpu", "CPU s", 2), ("wall", "wall s", 2), ("peak", "memory, MiB", 0)):
        rows = [(part, [each.get(name) for each in measured]) for part, measured in parts.items()]
        if name == "peak":
            rows.append(("all ticks", [each.get("ticks", {}).get("peak") for each in found]))
        else:
            rows += [(tick, [each.get(name) for each in measured]) for tick, measured in ticks.items()]
        results.table((unit, *known, growth), [_row(part, values, digits) for part, values in rows])


def _add_functions(results: Results, found: Sequence[Found], known: Sequence[str], growth: str) -> None:
    profiled = [each for each in found if each.get("profile")]
    if not profiled:
        return
    profiles, known = [each["profile"] for each in profiled], [f"{each['known']:,}" for each in profiled]
    names = {name for profile in profiles for name in profile}
    for title, column, is_shown in (
        ("own seconds", 1, lambda name: True),
        ("seconds with all it calls", 2, lambda name: name.startswith("mm_assets/")),
    ):
        rows = [
            (name, [profile[name][column] if name in profile else None for profile in profiles])
            for name in names
            if is_shown(name)
        ]
        rows.sort(key=lambda row: (row[1][0] or 0) - (row[1][-1] or 0))
        results.say(f"Another run of 100 new shards under the profiler: functions that grow most, {title}.")
        results.table((title, *known, growth), [_row(*row, 2) for row in rows[:_FUNCTIONS]])


def _row(name: str, values: Sequence[float | None], digits: int) -> tuple[str, ...]:
    cells = ("–" if value is None else f"{value:,.{digits}f}" for value in values)
    ratios = (
        f"{later / earlier:.1f}" if earlier and later and later > _LEFT_OUT and earlier > 0 else "–"
        for earlier, later in zip(values, values[1:], strict=False)
    )
    return (name, *cells, ", ".join(ratios) or "–")
