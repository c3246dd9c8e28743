"""The one partition dimension of the graph: the raw shard."""

from collections.abc import Iterable, Sequence

import dagster as dg

# Partition keys are relative paths of raw shards; the sensor adds them. Ranges follow the order of addition,
# not the alphabet.
SHARDS = dg.DynamicPartitionsDefinition(name="shards")

# Shards per run of a backfill. A run costs about 10 s to launch, so one per shard is slow; each partitioned
# check stores the run's whole key set per shard, so 1,000 is heavy on the database (24 MB a check and run).
CHUNK_SHARDS = 100

# Pool of the steps that commit to the Lance table. Of two commits at once one is done again; where
# `dagster.yaml` limits pools, the other step waits instead.
LANCE_POOL = "lance_table"


def chunks(keys: Iterable[str], order: Sequence[str], size: int = CHUNK_SHARDS) -> list[list[str]]:
    """Return partitions in chunks for one run each: neighbours, as a run takes a range of partitions.

    Args:
        keys: some of ``order``.
        order: all partitions, as they were added.
        size: largest number of partitions in a chunk.
    """
    positions = {key: position for position, key in enumerate(order)}
    found: list[list[str]] = []
    last = -2
    for position in sorted(positions[key] for key in set(keys)):
        if position != last + 1 or len(found[-1]) == size:
            found.append([])
        found[-1].append(order[position])
        last = position
    return found


def delete_partitions(instance: dg.DagsterInstance, keys: Iterable[str]) -> list[str]:
    """Delete partitions from an instance, and return those that it had; their events stay in its log."""
    known = set(instance.get_dynamic_partitions(str(SHARDS.name)))
    deleted = [key for key in keys if key in known]
    for key in deleted:
        instance.delete_dynamic_partition(str(SHARDS.name), key)
    return deleted
