"""Canonical readers: the rows of our outputs as their users' libraries read them, not our own readers.

What they share with our code is stated here: opening of files, the schema, JSON values and digest of
``interleaved/``; for Parquet and Lance the mapping between stored and original types; for Lance also the
partition records and their snapshot; for Arrow caches the parsing of the metadata. Files of other tools have
no other reader than ours.
"""

from mm_assets.accounting.canonical.derive import derive
from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.source import READERS, CanonicalSource

__all__ = ["READERS", "CanonicalSource", "Derived", "derive"]
