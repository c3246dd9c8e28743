"""The one partition dimension of the graph: the raw shard."""

from collections.abc import Iterable

import dagster as dg

# Partition keys are relative paths of raw shards; the sensor adds them. Ranges follow the order of addition,
# not the alphabet.
SHARDS = dg.DynamicPartitionsDefinition(name="shards")

# Shards per run of a backfill. A run costs about 10 s to launch, so one per shard is slow; each partitioned
# check stores the run's whole key set per shard, so 1,000 is heavy on the database (24 MB a check and run).
CHUNK_SHARDS = 100


def delete_partitions(instance: dg.DagsterInstance, keys: Iterable[str]) -> list[str]:
    """Delete partitions from an instance, and return those that it had; their events stay in its log."""
    known = set(instance.get_dynamic_partitions(str(SHARDS.name)))
    deleted = [key for key in keys if key in known]
    for key in deleted:
        instance.delete_dynamic_partition(str(SHARDS.name), key)
    return deleted
