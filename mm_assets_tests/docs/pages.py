"""The pages that readers see, and the code blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RUNNABLE = ("sh", "bash", "python", "sql")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+); tested by (?P<test>\S+) -->")
_WITH_CLIENTS = "<!-- run with the clients -->"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, from ``line``.

    ``output`` is the text block that follows it directly: what it prints. ``not_run`` is the test that stands
    for a block which cannot be run here.
    """

    page: Path
    line: int
    language: str
    code: str
    output: str | None = None
    not_run: str | None = None
    with_clients: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def pages() -> tuple[Path, ...]:
    """The README and every page below ``docs/``."""
    return (README, *sorted((ROOT / "docs").rglob("*.md")))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The fenced blocks of a page, in their order."""
    found: list[Block] = []
    for block, follows in _fenced(page):
        if follows and block.language == "text" and found[-1].language in RUNNABLE:
            found[-1] = Block(**{**found[-1].__dict__, "output": block.code})
        found.append(block)
    return tuple(found)


def runnable(page: Path) -> list[Block]:
    """The blocks of a page that a reader would paste and run."""
    return [block for block in blocks(page) if block.language in RUNNABLE and block.not_run is None]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```\s*?$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _fenced(page: Path) -> Iterator[tuple[Block, bool]]:
    """Each block, and whether nothing but blank lines lies between it and the one before."""
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    last, follows = "", False
    for number, line in lines:
        if (opening := _FENCE.match(line)) is None:
            if line.strip():
                last, follows = line.strip(), False
            continue
        code: list[str] = []
        for _, inside in lines:
            if inside.strip() == "```":
                break
            code.append(inside.removeprefix(opening["indent"]))
        not_run = _NOT_RUN.fullmatch(last)
        text = "\n".join(code) + "\n"
        yield (
            Block(
                page,
                number,
                opening["language"],
                text,
                not_run=not_run["test"] if not_run else None,
                with_clients=opening["language"] == "sql" or last == _WITH_CLIENTS,
            ),
            follows,
        )
        last, follows = "", True
