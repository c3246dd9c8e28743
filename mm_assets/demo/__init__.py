"""Demo: example shards, a run of the whole graph without a server, and its summary."""
