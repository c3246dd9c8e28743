"""Tables of results, printed and stored."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.measuring import ROOT

FOLDER = ROOT / "benchmarks" / "results"


class Results:
    """The results of one benchmark at one size: paragraphs and tables of Markdown, and the figures they were
    made from.
    """

    def __init__(self, name: str, title: str) -> None:
        self._name = name
        self._facts = machine_facts()
        self._parts = [
            f"# {title}",
            ", ".join(f"{name} {value}" for name, value in self._facts.items()) + ".",
        ]
        self._figures: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        self._parts.append(markdown_table(header, rows))

    def keep(self, figures: Mapping[str, Any]) -> None:
        """Add raw figures, for the JSON file only."""
        self._figures.update(figures)

    def publish(self) -> None:
        """Print everything and store it as ``results/<name>.md`` and ``.json``."""
        text = "\n\n".join(self._parts) + "\n"
        print(text)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{self._name}.md").write_text(text, encoding="utf-8")
        figures = {"machine": self._facts, **self._figures}
        (FOLDER / f"{self._name}.json").write_text(_json_lines(figures), encoding="utf-8")


def _json_lines(figures: Mapping[str, Any]) -> str:
    """JSON with a line for each entry, and for each element of an entry that is a list."""
    entries = []
    for name, value in figures.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = (
                "[\n  " + ",\n  ".join(json.dumps(element, ensure_ascii=False) for element in value) + "\n ]"
            )
        entries.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with its columns in line; those that begin with a digit are set to the right."""
    columns = [[name, *cells] for name, *cells in zip(header, *rows, strict=True)]
    lines = zip(*map(_aligned, columns), strict=True)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float]) -> str:
    """Median and, behind it, least and greatest."""
    middle, low, high = (f"{value:.2f}" for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def _aligned(column: Sequence[str]) -> list[str]:
    """The cells of one column in equal width, with the line that belongs below its name."""
    is_number = all(cell[:1].isdigit() for cell in column[1:])
    width = max(3, *map(len, column))
    cells = [cell.rjust(width) if is_number else cell.ljust(width) for cell in column]
    return [cells[0], f"{'-' * (width - 1)}:" if is_number else "-" * width, *cells[1:]]
