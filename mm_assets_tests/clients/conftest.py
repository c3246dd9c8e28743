"""What tests with clients share."""

from mm_assets_tests.warm_workers import shared_workers

__all__ = ["shared_workers"]
