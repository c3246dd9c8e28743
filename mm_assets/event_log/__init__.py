"""Event logs of Dagster that write many events in one transaction.

Everything they write the stock classes can read. They are configured as ``event_log_storage`` in
``dagster.yaml``. Without that, Dagster's own class works on the same databases.
"""
