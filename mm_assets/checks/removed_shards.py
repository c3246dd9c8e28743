"""Check `present`: no raw shard that has a partition is gone."""

from collections.abc import Sequence

import dagster as dg

from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.raw import RAW_SHARDS
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards

PRESENT = "present"
_LISTED = 50


@dg.asset_check(
    asset=RAW_SHARDS, name=PRESENT, description="No raw shard whose outputs are there has been removed."
)
def present(context: dg.AssetCheckExecutionContext, raw: RawShards) -> dg.AssetCheckResult:
    listed = raw.listing()
    known = context.instance.get_dynamic_partitions(str(SHARDS.name))
    removed = [] if listed.unmatched else sorted(set(known).difference(listed))
    return dg.AssetCheckResult(
        passed=not removed, severity=dg.AssetCheckSeverity.WARN, metadata=_metadata(removed)
    )


def removed_shards_evaluation(
    instance: dg.DagsterInstance, removed: Sequence[str]
) -> dg.AssetCheckEvaluation | None:
    """Return an evaluation of the check for a sensor; None where the latest one says the same.

    Args:
        removed: partitions whose raw shards are gone, sorted.
    """
    key = dg.AssetCheckKey(RAW_SHARDS, PRESENT)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    latest = record.evaluation if record is not None else None
    if latest is None and not removed:
        return None
    metadata = _metadata(removed)
    if latest is not None and dict(latest.metadata) == metadata:
        return None
    return dg.AssetCheckEvaluation(
        asset_key=RAW_SHARDS,
        check_name=PRESENT,
        passed=not removed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata,
        blocking=False,
    )


def _metadata(removed: Sequence[str]) -> dict[str, dg.MetadataValue]:
    summary = f"{len(removed)} raw shards are gone; mm-assets retire removes their outputs" if removed else ""
    return metadata_values(
        {"removed": len(removed), "shards": {"json": list(removed[:_LISTED])}, "summary": summary}
    )
