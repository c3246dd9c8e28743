"""The worker's side of the toy format: a shard is a text file, a step changes its lines. Imports no Dagster,
like every real one.

Some lines of a raw shard are orders to the worker: RAISE, KILL (itself, by SIGKILL), HALF <note> (stop in the
middle of the output and write its process id into a note).
"""

import hashlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from mm_assets.accounting import ShardRecord
from mm_assets.accounting.accounts import Ledger, WrittenAccount
from mm_assets.graph import Check, ShardJob, ShardResult, blocked_by
from mm_assets.storage.files import staged


@dataclass(frozen=True)
class Upper:
    def __call__(self, lines: list[str]) -> list[str]:
        return [line.upper() for line in lines]


@dataclass(frozen=True)
class Lower:
    def __call__(self, lines: list[str]) -> list[str]:
        return [line.lower() for line in lines]


@dataclass(frozen=True)
class Measure:
    def __call__(self, lines: list[str]) -> list[str]:
        return [str(len(line)) for line in lines]


@dataclass(frozen=True)
class MinLength:
    """Keeps lines whose score, taken from the side input, is at least `minimum`."""

    minimum: int

    def with_scores(self, lines: list[str], scores: list[str]) -> list[str]:
        return [line for line, score in zip(lines, scores, strict=True) if int(score) >= self.minimum]


def obey(lines: list[str]) -> None:
    for line in lines:
        match line.split():
            case ["RAISE", *_]:
                raise ValueError("line says RAISE")
            case ["KILL", *_]:
                os.kill(os.getpid(), signal.SIGKILL)


def stop_halfway(job: ShardJob) -> None:
    for line in Path(job.shard.uri).read_text().splitlines():
        if line.startswith("HALF "):
            Path(line.removeprefix("HALF ")).write_text(str(os.getpid()))
            time.sleep(120)


def transform(job: ShardJob) -> list[str]:
    lines = Path(job.shard.uri).read_text().splitlines()
    obey(lines)
    for step in job.steps:
        if isinstance(step, MinLength):
            lines = step.with_scores(lines, Path(job.side_inputs["scores"].uri).read_text().splitlines())
        else:
            lines = step(lines)
    return lines


def not_empty(lines: list[str]) -> Check:
    return Check("not_empty", passed=bool(lines), metadata={"lines": len(lines)})


def short_lines(lines: list[str]) -> Check:
    return Check("short_lines", passed=all(len(line) < 20 for line in lines), severity="WARN")


def run(job: ShardJob) -> ShardResult:
    """Write the transformed lines beside a suffix from the options; one file per shard."""
    lines = transform(job)
    text = "".join(f"{line}{job.options['suffix']}\n" for line in lines)
    version = hashlib.sha256(text.encode()).hexdigest()[:16]
    checks = tuple(check.outcome(lines) for check in job.checks)
    if blocked := blocked_by(checks, job.blocking):
        return ShardResult(job.key, ok=False, checks=checks, error=blocked)
    with staged(job.dest) as file:
        Path(file.path).write_text(text)
        stop_halfway(job)
        file.publish()
    metadata = {
        "lines": len(lines),
        "share": len(lines) / 10,
        "first": {"md": f"**{lines[0]}**" if lines else "-"},
        "lengths": {"json": [len(line) for line in lines]},
        "dagster/column_schema": {"table_schema": [["line", "string"]]},
    }
    return ShardResult(job.key, True, job.dest, version, metadata, checks)


def run_fragment(job: ShardJob) -> ShardResult:
    """For the toy table: prepare the shard's lines; they appear in the table when the parent commits."""
    lines = transform(job)
    version = hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
    return ShardResult(
        job.key,
        True,
        job.dest,
        version,
        {"lines": len(lines), "fields": job.options["fields"]},
        payload=lines,
    )


def die_while_writing(job: ShardJob) -> ShardResult:
    """As if the kernel killed the worker in the middle of its output."""
    with staged(job.dest) as file:
        Path(file.path).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def run_and_fill_disk(job: ShardJob) -> ShardResult:
    """`run`, in a worker that cannot write the account of shard k01."""
    write = Ledger.write

    def full(self: Ledger, record: ShardRecord, rows: pa.Table | None = None) -> WrittenAccount:
        Ledger.write = write  # type: ignore[method-assign]  # the worker may serve other tests
        if record.key == "k01":
            raise OSError(28, "No space left on device")
        return write(self, record, rows)

    Ledger.write = full  # type: ignore[method-assign]
    return run(job)


def die_before_account(job: ShardJob) -> ShardResult:
    """As if the kernel killed the worker between the output and its account."""
    run(job)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def die_after_account(job: ShardJob) -> ShardResult:
    """`run`, in a worker that is killed when the account is there and its answer is not."""
    write = Ledger.write

    def killed(self: Ledger, record: ShardRecord, rows: pa.Table | None = None) -> WrittenAccount:
        write(self, record, rows)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    Ledger.write = killed  # type: ignore[method-assign]
    return run(job)


def run_longer_scores(job: ShardJob) -> ShardResult:
    """`run`, but with every measured length one more."""
    if job.steps and isinstance(job.steps[0], Measure):
        return run(replace(job, steps=(*job.steps, PlusOne())))
    return run(job)


@dataclass(frozen=True)
class PlusOne:
    def __call__(self, lines: list[str]) -> list[str]:
        return [str(int(line) + 1) for line in lines]


def run_unblocked(job: ShardJob) -> ShardResult:
    """A careless format: it forgets that a check may forbid to publish."""
    return run(replace(job, blocking=frozenset()))


def run_badly(job: ShardJob) -> ShardResult:
    """Answers that break the contract of `run_job`, by shard."""
    return {
        "k01": None,
        "k02": ShardResult("k99", True),
        "k03": ShardResult("k03", False),
        "k04": ShardResult("k04", False, error="sorry", detail="because"),
    }.get(job.key, run(job))  # type: ignore[return-value]
