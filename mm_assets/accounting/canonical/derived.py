"""Result of a canonical reader: counts, digest and columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from mm_assets.interleaved.digest import ContentDigest


@dataclass(frozen=True)
class Derived:
    """Counts and digest by a canonical reader.

    Attributes:
        rows: number of rows.
        samples: number of runs of rows with one sample id.
        images: image rows.
        texts: text rows.
        digest: sum of the digests of all rows, in hex.
        schema: the columns, each in one type for all rows.
        offsets: for our tars, the byte offsets at which samples begin, and the end of the last one; None if
            not determined.
    """

    rows: int = 0
    samples: int = 0
    images: int = 0
    texts: int = 0
    digest: str = ContentDigest().hexdigest()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    offsets: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
