"""Rounds of the fault suite: a command on a store that spoils every fifth request ends as on a sound one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mm_assets_tests.live.faulty_proxy import ANSWER_LOST, INTERNAL_ERROR, KINDS, RESET, SLOW_DOWN, Faults
from mm_assets_tests.live.faulty_runs import FaultyStore, Ran

RATE = 0.2
MOST_REQUESTS = 2.0  # times those without faults
_LONGEST_LINE = 400
# Silence costs its client a time-out: s3fs waits 15 seconds, Lance 30, if they are not told otherwise.
IMPATIENT = {"FSSPEC_S3": '{"config_kwargs": {"read_timeout": 2}}', "AWS_TIMEOUT": "2s"}
_SILENCES = 1  # in a run
_ROWS = (".parquet", ".tar", ".arrow", ".gz")  # files that are not collected from all shards

RAW = "raw"
CONVERSIONS = (
    (RAW, "lance"),
    ("webdataset", "parquet"),
    (RAW, "webdataset"),
    ("lance", "parquet"),
    (RAW, "parquet"),
    (RAW, "arrow_cache"),
    (RAW, "jsonl"),
    ("parquet", "lance"),
    ("arrow_cache", "webdataset"),
    ("jsonl", "arrow_cache"),
)
GRAPH = "graph with its proof"
OUTAGE = "graph, the store goes away"

Command = Callable[[str, Faults | None], Ran]  # writes to a place


@dataclass(frozen=True)
class Round:
    """What became of one command under faults, and of the next one if it failed.

    ``lines`` are what a failure says, ``problems`` has a line for each thing that must not be.
    """

    name: str
    seed: int
    has_finished: bool
    requests: int
    requests_without_faults: int
    faults: dict[str, int]
    seconds: float
    lines: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Sound:
    """A run without faults: where its outputs are, what readers find there, and how many requests it took."""

    place: str
    contents: dict[str, str]
    requests: int


@dataclass
class FaultRounds:
    """Commands on one store, each made once without faults to compare with."""

    store: FaultyStore
    _sound: dict[str, Sound] = field(default_factory=dict)

    def convert(self, source: str, kind: str, seed: int) -> Round:
        """Convert raw shards, or what was made of them in another format, under the faults of a seed."""
        sound = self._converted(source, kind)
        return self._round(f"{source} → {kind}", seed, sound, self._conversion(source, kind), _spoilt(seed))

    def graph(self, seed: int) -> Round:
        """Run the whole graph with its proof under the faults of a seed."""
        return self._round(GRAPH, seed, self.sound_graph(), self._graph, _spoilt(seed))

    def outage(self, seed: int) -> Round:
        """Run the graph on a store that goes away at some moment and stays away, then on a sound one."""
        sound = self.sound_graph()
        kinds = (SLOW_DOWN, INTERNAL_ERROR, RESET, ANSWER_LOST)
        gone = Faults(1.0, kinds, after=random.Random(seed).randrange(sound.requests), seed=seed)
        return self._round(OUTAGE, seed, sound, self._impatient_graph, gone)

    def sound_graph(self) -> Sound:
        """The whole graph without faults."""
        return self._kept(GRAPH, self._graph)

    def _graph(self, place: str, faults: Faults | None) -> Ran:
        return self.store.run_graph(place, faults, **IMPATIENT)

    def _impatient_graph(self, place: str, faults: Faults | None) -> Ran:
        return self.store.run_graph(place, faults, **IMPATIENT, AWS_MAX_ATTEMPTS="2")

    def _conversion(self, source: str, kind: str) -> Command:
        given = self.store.raw if source == RAW else self._converted(RAW, source).place

        def convert(place: str, faults: Faults | None) -> Ran:
            return self.store.run("convert", given, place, "--to", kind, faults=faults, **IMPATIENT)

        return convert

    def _converted(self, source: str, kind: str) -> Sound:
        return self._kept(f"{source} → {kind}", self._conversion(source, kind))

    def _kept(self, name: str, command: Command) -> Sound:
        if name not in self._sound:
            place = self.store.new_place()
            ran = command(place, None)
            assert ran.code == 0, ran
            self._sound[name] = Sound(place, self.store.contents(place), ran.total)
        return self._sound[name]

    def _round(self, name: str, seed: int, sound: Sound, command: Command, faults: Faults) -> Round:
        place = self.store.new_place()
        ran = command(place, faults)
        problems = []
        if ran.total > MOST_REQUESTS * sound.requests:
            problems.append(f"{ran.total} requests instead of {sound.requests}")
        if ran.code:
            problems += [*unclear(complaints(ran)), *self._half_written(place, sound)]
            again = command(place, None)
            if again.code:
                problems.append(f"the next run failed, too: {again.out} {again.err}")
        found = self.store.contents(place)
        differing = sorted(n for n in sound.contents | found if sound.contents.get(n) != found.get(n))
        problems += [f"{n}: not as without faults" for n in differing]
        problems += [f"{upload}: an upload without an end" for upload in self.store.unfinished_uploads()]
        return Round(
            name=name,
            seed=seed,
            has_finished=ran.code == 0,
            requests=ran.total,
            requests_without_faults=sound.requests,
            faults=dict(ran.faults),
            seconds=ran.seconds,
            lines=() if ran.code == 0 else complaints(ran),
            problems=tuple(problems),
        )

    def _half_written(self, place: str, sound: Sound) -> list[str]:
        """What readers find after a failure that they would not find after success."""
        return [
            f"{name}: there after a failure, and not as it would be"
            for name, digest in self.store.contents(place).items()
            if name.endswith(_ROWS) and sound.contents.get(name) != digest
        ]


def complaints(ran: Ran) -> tuple[str, ...]:
    """What a command that failed says is wrong, line by line; a run of the graph says it in its report."""
    of_graph = [line for line in ran.out.splitlines() if line.startswith(("shard ", "step "))]
    return (*ran.err.splitlines(), *of_graph)


def unclear(lines: Iterable[str]) -> list[str]:
    """What is wrong with the lines of a failure: each names a place in the store, in a few words."""
    lines = list(lines)
    if not lines:
        return ["failed without a word"]
    return [
        f"unclear: {line}"
        for line in lines
        if "s3://" not in line or len(line) > _LONGEST_LINE or "Traceback" in line or "Error(" in line
    ]


def _spoilt(seed: int) -> Faults:
    return Faults(RATE, KINDS, seed=seed, silences=_SILENCES)
