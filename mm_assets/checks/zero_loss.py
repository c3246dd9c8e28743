"""The check `zero_loss` of every output: what lies there is what was written, to the last byte of every item."""

from collections.abc import Iterator

import dagster as dg

from mm_assets.io_managers.events import makes_asset
from mm_assets.io_managers.prover import PROVEN, ZERO_LOSS, Prover
from mm_assets.io_managers.shard_checks import report_shards, shards_to_check, specs_by_shard
from mm_assets.io_managers.shards import Check


def zero_loss_checks() -> list[dg.AssetChecksDefinition]:
    """One check for each output that is proven; launched alone it reads every shard again, and fails its run for one that is damaged."""
    return [_zero_loss(dg.AssetKey(asset)) for asset in PROVEN]


def proof_keys() -> list[dg.AssetCheckKey]:
    """The keys of these checks."""
    return [dg.AssetCheckKey(dg.AssetKey(asset), ZERO_LOSS) for asset in PROVEN]


def _zero_loss(asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{asset.to_python_identifier()}_{ZERO_LOSS}",
        specs=specs_by_shard(asset, {ZERO_LOSS: "The library that users read this format with finds every item as it was written."}),
    )
    def zero_loss(context: dg.AssetCheckExecutionContext, prover: Prover) -> Iterator[dg.Output[None]]:
        again = not makes_asset(context, asset)
        damaged: dict[str, str] = {}

        def verdicts() -> Iterator[tuple[str, list[Check]]]:
            for key, check in prover.prove(asset.to_user_string(), shards_to_check(context), again):
                if not check.passed:
                    damaged[key] = str(check.metadata["summary"])
                yield key, [check]

        yield from report_shards(context, asset, verdicts())
        if again and damaged:  # all is stored by now; where the asset is made, its check alone tells
            for key, summary in sorted(damaged.items()):
                context.log.error(f"{asset.to_user_string()}, shard {key}: {summary}")
            raise dg.Failure(f"{len(damaged)} shard(s) of {asset.to_user_string()} are not as they were written", allow_retries=False)

    return zero_loss
