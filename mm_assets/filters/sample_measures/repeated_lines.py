"""Share of a sample's texts in lines that stood before."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure

CHARACTERS = 1_000_000
"""Characters from the beginning of the texts that are looked at, a bound on memory."""


@dataclass(frozen=True)
class RepeatedLines(SampleMeasure):
    """The fraction of characters in duplicate lines.

    Lines are compared without white space at their ends; empty ones do not count. Each text begins a line. A
    line that is equal to an earlier one is a duplicate. The value is the characters of all duplicates divided
    by those of all lines. Gopher (Rae et al. 2021, table A1) drops documents above 0.2.
    """

    name = "repeated_lines"
    type = pa.float32()
    version = "1"
    meaning = (
        "share of the characters that lie in lines which stood before, 0 to 1, in the first "
        f"{CHARACTERS:,} characters of the texts; null where all lines are empty"
    )

    def measure(self, sample: SampleContent) -> float | None:
        seen: set[str] = set()
        repeated = total = 0
        for line in map(str.strip, sample.beginning(CHARACTERS).splitlines()):
            total += len(line)
            if line in seen:
                repeated += len(line)
            else:
                seen.add(line)
        return repeated / total if total else None
