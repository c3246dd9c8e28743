"""Integrity gate: checks on the raw shards.

`curated_parquet` logs them before it reads. Launched alone they read the shards and write no output.
"""

from collections.abc import Iterator

import dagster as dg

from mm_assets.io_managers.raw import RAW_SHARDS
from mm_assets.io_managers.raw_gate import GATE_CHECKS, RawGate
from mm_assets.io_managers.shard_checks import report_shards, shards_to_check, specs_by_shard


def raw_gate_checks() -> dg.AssetChecksDefinition:
    """Return the checks of the raw shards; they run in one step, as they come from one survey."""

    @dg.multi_asset_check(
        name="raw_gate",
        can_subset=True,
        specs=specs_by_shard(RAW_SHARDS, GATE_CHECKS),
    )
    def raw_gate(context: dg.AssetCheckExecutionContext, gate: RawGate) -> Iterator[dg.Output[None]]:
        yield from report_shards(context, RAW_SHARDS, gate.verdicts(shards_to_check(context)))

    return raw_gate
