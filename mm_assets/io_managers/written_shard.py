"""What checks are shown of a shard of rows before it is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mm_assets.accounting.ledger import Balance
from mm_assets.formats.reports import PartitionReport
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.steps import Example, StepResult
from mm_assets.io_managers.shards import ShardCheck


@dataclass(frozen=True)
class WrittenShard:
    """A shard whose rows are written, but not yet published: its report, its balance, the error policy.

    ``counts`` and ``examples`` are those of the steps of the asset and of the check's own step; `listed`
    makes metadata of examples. A step of a check also sees the items with an error, which the policy then
    takes out.
    """

    report: PartitionReport
    balance: Balance
    policy: str
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)

    def shown_to(self, check: ShardCheck) -> WrittenShard:
        """The shard with what the step of this check counted."""
        own = f"{check.name}: "
        return replace(
            self,
            counts={name.removeprefix(own): count for name, count in self.report.counts.items()},
            examples={name.removeprefix(own): found for name, found in self.report.examples.items()},
        )

    def listed(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """The examples of this name as metadata of a check."""
        return {"json": [vars(example) for example in self.examples.get(name, ())]}


@dataclass(frozen=True)
class CheckStep:
    """The step of a check as a step of the shard: it changes no row, and its names are the check's own."""

    check: ShardCheck

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        assert self.check.step is not None
        try:
            found = self.check.step(batch)
        except Exception as error:
            raise self.check.fault(error) from error
        counts, examples = (
            {f"{self.check.name}: {name}": value for name, value in values.items()}
            for values in (found.counts, found.examples)
        )
        return StepResult(batch, counts=counts, examples=examples)
