"""What a canonical reader finds of an output: counts, digest, columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from mm_assets.interleaved.digest import ContentDigest


@dataclass(frozen=True)
class Derived:
    """What a canonical reader finds. ``samples`` are runs of rows of one sample id, ``schema`` the columns,
    each in one type for all.

    ``offsets`` are where the samples of a tar of ours begin and where the last ends, in bytes; None where
    they were not looked at.
    """

    rows: int = 0
    samples: int = 0
    images: int = 0
    texts: int = 0
    digest: str = ContentDigest().hexdigest()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    offsets: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
