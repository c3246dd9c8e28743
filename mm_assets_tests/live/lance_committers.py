"""Two processes that commit to one Lance table on S3 at the same time, round by round."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from mm_assets.formats.lance.reader_writer import lance_options
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.formats.lance.tables import content, expected, names, rows, write
from mm_assets_tests.live.s3_server import S3Server

_COMMITTERS = ("a", "b")
_SHARED = "shared"  # a partition that both commit
_SECONDS = 120


@dataclass(frozen=True)
class CommitRound:
    """One commit of each process, and a line for each way in which the table is not what it should be."""

    number: int
    is_same_partition: bool
    version: int
    problems: tuple[str, ...]


def _committed(uri: str, options: Mapping[str, str], pipe: Connection) -> None:
    """Commit what is asked for, and answer with the error or nothing, until there is nothing more."""
    while (asked := pipe.recv()) is not None:
        partitions: Mapping[str, str] = asked
        try:
            arguments: dict[str, Any] = {"storage_options": lance_options(uri, dict(options))}
            sets = [
                write(uri, name, rows(names(name), mark=mark), **arguments)
                for name, mark in partitions.items()
            ]
            table = LanceTable(uri, lance_options(uri, dict(options)))
            table.commit(sets)
            table.ensure_indexes()
            pipe.send("")
        except Exception as error:  # noqa: BLE001 (told to the parent)
            pipe.send(f"{type(error).__name__}: {error}")


@contextmanager
def _processes(uri: str, options: Mapping[str, str]) -> Iterator[dict[str, Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    try:
        for name in _COMMITTERS:
            pipes[name], other = context.Pipe()
            processes.append(context.Process(target=_committed, args=(uri, dict(options), other)))
            processes[-1].start()
        yield pipes
        for pipe in pipes.values():
            pipe.send(None)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()


def commit_rounds(uri: str, sound: S3Server, seen: S3Server, rounds: int) -> Iterator[CommitRound]:
    """Let both processes replace a partition of their own each round, every second time the same one, too.

    Args:
        uri: the table.
        sound: the server as the test sees it.
        seen: the server as the processes see it, perhaps through a proxy.
        rounds: how many.
    """
    table = LanceTable(uri, _options(sound))
    with _processes(uri, _options(seen)) as pipes:
        for number in range(rounds):
            is_same = number % 2 == 1
            for name, pipe in pipes.items():
                mark = f"{name}{number}"
                partitions = [f"own {name}", f"{number} of {name}", *([_SHARED] if is_same else [])]
                pipe.send(dict.fromkeys(partitions, mark))
            problems = []
            for name, pipe in pipes.items():
                answer = pipe.recv() if pipe.poll(_SECONDS) else "no answer"
                problems += [f"{name}: {answer}"] if answer else []
            yield CommitRound(
                number, is_same, int(table.dataset().version), (*problems, *_problems(table, number))
            )


def _options(server: S3Server) -> dict[str, str]:
    return {
        "aws_access_key_id": server.key,
        "aws_secret_access_key": server.secret,
        "aws_endpoint": server.endpoint,
        "aws_region": server.env["AWS_REGION"],
        "allow_http": "true",
        "timeout": "5s",
    }


def _problems(table: LanceTable, number: int) -> list[str]:
    """What is not in the table after a round, or more than once, and partitions that are told wrongly."""
    own: Counter[tuple[Any, ...]] = Counter()
    for name in _COMMITTERS:
        own += _rows_of(f"own {name}", f"{name}{number}")
        for earlier in range(number + 1):
            own += _rows_of(f"{earlier} of {name}", f"{name}{earlier}")
    found = content(table)
    last = number if number % 2 else number - 1
    either = [_rows_of(_SHARED, f"{name}{last}") for name in _COMMITTERS] if last > 0 else [Counter()]
    problems = []
    if found not in [own + shared for shared in either]:
        nearest = min(((found - (own + s)) + ((own + s) - found) for s in either), key=Counter.total)
        problems.append(f"{nearest.total()} rows are lost, doubled or of another round: {list(nearest)[:3]}")
    stats = table.partitions()
    if sum(part.rows for part in stats.values()) != found.total() or not all(
        p.is_whole for p in stats.values()
    ):
        problems.append(f"the partitions have {sum(p.rows for p in stats.values())} rows of {found.total()}")
    return problems


def _rows_of(partition: str, mark: str) -> Counter[tuple[Any, ...]]:
    return expected(rows(names(partition), mark=mark))
