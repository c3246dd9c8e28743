"""The two programs, as things that convert files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import curator
from benchmarks.measuring import Measurement, measure
from benchmarks.workbench import warm
from mm_assets.pool import WORKER_ENVIRONMENT


@dataclass(frozen=True)
class Source:
    """``files`` to convert, and tiny ones of the same format that warm a process up: lazy imports are no part
    of the work.
    """

    files: list[Path]
    warm_up: list[Path]


@dataclass(frozen=True)
class Program:
    """``task`` is what `measure` calls, ``python`` the interpreter that has the program (None: this one) and
    runs with these variables.
    """

    name: str
    task: str
    python: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def convert(self, kind: str, target: str, source: Source, output: Path, **more: Any) -> Measurement:
        """Convert files of format ``kind``, which the kernel has in its cache, into a folder of format
        ``target``, and measure that.
        """
        warm_up = [str(file) for file in source.warm_up]
        return measure(
            self.task,
            python=self.python,
            environment=self.environment,
            source=kind,
            target=target,
            files=warm(source.files),
            output=str(output),
            warm_up=warm_up,
            **more,
        )


OURS = Program("mm_assets", "benchmarks.project:prepare", environment=WORKER_ENVIRONMENT)
THEIRS = Program("NeMo Curator", "benchmarks.curator:prepare", curator.PYTHON)
