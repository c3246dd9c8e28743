"""The Dagster side: assets, checks, IO managers, resources, and what is asked of Dagster itself."""
