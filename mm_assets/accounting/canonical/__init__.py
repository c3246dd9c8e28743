"""Canonical readers: the rows of our outputs as the libraries of their users find them, not as our own
readers and writers do.
"""

from mm_assets.accounting.canonical.derive import derive
from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.source import CanonicalSource

__all__ = ["CanonicalSource", "Derived", "derive"]
