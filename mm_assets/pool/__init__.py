"""Workers that make shards: processes of this machine, or a Ray cluster."""
