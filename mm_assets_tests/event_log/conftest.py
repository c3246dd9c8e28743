"""What tests share."""

from mm_assets_tests.kept_dagster import kept_dagster
from mm_assets_tests.warm_workers import shared_workers

__all__ = ["kept_dagster", "shared_workers"]
