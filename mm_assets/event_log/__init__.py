"""Event logs of Dagster that write many events in one transaction; everything they write the stock classes
read.

Configured as ``event_log_storage`` in ``dagster.yaml``. Without it Dagster's own class works on the same
databases.
"""
