"""Canonical readers: the rows of our outputs as their users' libraries read them, not our own readers.

They share no code with our readers and writers that reads or writes rows. Both sides only share:

- the data model (`mm_assets.interleaved`): schema, JSON values, digest;
- opening and listing files, the names of partitions, the wording of errors;
- the Arrow types that a Parquet file or Lance table of ours states, so that its columns get them back;
- which rows of a Lance table are a partition's: its records, and the one of them that holds for a version;
- the metadata of an Arrow cache and the digest of its files, to check the files against; its rows are read
  without them;
- the reader of files of others, which have no canonical reader.

A test holds the imports to this list.
"""

from mm_assets.accounting.canonical.account import Derived
from mm_assets.accounting.canonical.derive import CanonicalSource, derive

__all__ = ["CanonicalSource", "Derived", "derive"]
