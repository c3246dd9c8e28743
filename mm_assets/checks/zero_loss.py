"""Check `zero_loss`: every published output still has every item as it was written, to the last byte."""

from collections.abc import Iterator

import dagster as dg

from mm_assets.accounting.outputs import OUTPUTS
from mm_assets.formats.error_lines import readable_store_errors
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers import events
from mm_assets.io_managers.proof_resource import ZERO_LOSS, ProofRequest, Prover
from mm_assets.io_managers.shard_checks import report_shards, specs_by_shard
from mm_assets.io_managers.shards import Check
from mm_assets.partitions import SHARDS

UNKNOWN_FILES = "unknown_files"  # metadata of a failure: how many files no shard has written
_NAMED = 5  # shards in the message of a failure


def zero_loss_checks() -> list[dg.AssetChecksDefinition]:
    """Return the check of each output that is proven.

    Launched alone it reads every shard again, and fails its run for one that is damaged.
    """
    return [_zero_loss(dg.AssetKey(output.asset)) for output in OUTPUTS]


def proof_keys() -> list[dg.AssetCheckKey]:
    """Return the keys of these checks."""
    return [dg.AssetCheckKey(dg.AssetKey(output.asset), ZERO_LOSS) for output in OUTPUTS]


def _zero_loss(asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{asset.to_python_identifier()}_{ZERO_LOSS}",
        specs=specs_by_shard(
            asset,
            {ZERO_LOSS: "The library that users read this format with finds every item as it was written."},
        ),
    )
    def zero_loss(context: dg.AssetCheckExecutionContext, prover: Prover) -> Iterator[dg.Output[None]]:
        with readable_store_errors():
            yield from verify(context, prover)

    def verify(context: dg.AssetCheckExecutionContext, prover: Prover) -> Iterator[dg.Output[None]]:
        request = _request(context, asset)
        damaged: dict[str, str] = {}

        def verdicts() -> Iterator[tuple[str, list[Check]]]:
            for key, check in prover.prove(request):
                if not check.passed:
                    damaged[key] = str(check.metadata["summary"])
                yield key, [check]

        unknown: list[str] = []

        def beyond_shards() -> dict[str, list[str]]:
            unknown.extend(prover.unknown_files(request.asset) if request.is_whole else ())
            return {ZERO_LOSS: [f"{file}: no shard has written it" for file in unknown]}

        yield from report_shards(context, asset, verdicts(), beyond_shards)
        if request.again and (
            damaged or unknown
        ):  # all is stored by now; in a run that makes the asset, the check alone reports it
            for key, summary in sorted(damaged.items()):
                context.log.error(f"{request.asset}, shard {key}: {summary}")
            for file in unknown:
                context.log.error(f"{request.asset}: {file}: no shard has written it")
            raise dg.Failure(
                _failure(request.asset, damaged, unknown),
                metadata={UNKNOWN_FILES: len(unknown)},
                allow_retries=False,
            )

    return zero_loss


def _request(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> ProofRequest:
    selected = events.keys_of_run(context.run, SHARDS, context.instance)
    again = not events.makes_asset(context, asset)
    keys = selected or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))
    latest = events.latest_materializations(context.instance, asset, keys)
    versions = {key: found.version for key, found in latest.items()}
    return ProofRequest(asset.to_user_string(), keys, versions, again, is_whole=again and not selected)


def _failure(asset: str, damaged: dict[str, str], unknown: list[str]) -> str:
    parts = []
    if damaged:
        listed = "; ".join(f"{key}: {summary}" for key, summary in sorted(damaged.items())[:_NAMED])
        more = f"; and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        which = counted(
            len(damaged),
            f"shard of {asset} is not as it was written",
            f"shards of {asset} are not as they were written",
        )
        parts.append(f"{which}: {listed}{more}")
    if unknown:
        parts.append(
            f"{len(unknown)} file(s) that no shard has written: "
            f"{', '.join(unknown[:_NAMED])}{', …' if unknown[_NAMED:] else ''}"
        )
    return "; ".join(parts)
