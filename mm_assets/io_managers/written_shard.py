"""A written, unpublished shard of rows, as checks see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mm_assets.accounting.ledger import Balance
from mm_assets.formats.reports import PartitionReport
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.steps import Example, StepResult
from mm_assets.io_managers.shards import ShardCheck

Value = TypeVar("Value")


@dataclass(frozen=True)
class WrittenShard:
    """A shard whose rows are written, but not yet published.

    Args:
        policy: the error policy. A step of a check also sees the items with an error, which the policy then
            removes.
        counts: counts of the asset's steps and of the check's own step, which wins where names are equal.
        examples: examples of the same steps; `listed` makes metadata of them.
    """

    report: PartitionReport
    balance: Balance
    policy: str
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)

    def shown_to(self, check: ShardCheck) -> WrittenShard:
        """Return the shard with the counts and examples of this check's step."""
        prefix = f"{check.name}: "

        def own_last(values: Mapping[str, Value]) -> dict[str, Value]:
            own = {
                name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)
            }
            return {name: value for name, value in values.items() if not name.startswith(prefix)} | own

        report = self.report
        return replace(self, counts=own_last(report.counts), examples=own_last(report.examples))

    def listed(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the examples of this name as metadata of a check."""
        return {"json": [vars(example) for example in self.examples.get(name, ())]}


@dataclass(frozen=True)
class CheckStep:
    """A check's step as a step of the shard.

    It changes no row. Its counts are prefixed with the check's name.
    """

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
