"""The one partition dimension of the graph: the raw shard."""

import dagster as dg

# Partition keys are relative paths of raw shards; the sensor adds them. Ranges follow the order of addition,
# not the alphabet.
SHARDS = dg.DynamicPartitionsDefinition(name="shards")

# Shards per run of a backfill. A run costs about 10 s to launch, so one per shard is slow; each partitioned
# check stores the run's whole key set per shard, so 1,000 is heavy on the database (24 MB a check and run).
CHUNK_SHARDS = 100
