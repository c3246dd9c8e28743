"""Hashes of images that are known, such as those of a user's list of images that may not come in.

* `KnownHashes`: PDQ hashes, which those of pictures are compared with.
* `HashList`: a file of SHA-256, MD5 and PDQ hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.id_list import (
    HASH_DIGITS,
    MD5,
    PDQ,
    RADIUS,
    SAMPLE_ID,
    SHA256,
    BadList,
    IdList,
    SortedIds,
    as_text,
    opened_copy,
    there_are,
)
from mm_assets.filters.measure import LEAST_QUALITY
from mm_assets.formats.parquet import read_small_table
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join

DEFAULT_RADIUS = MOST_RADIUS = 31
"""Bits that the PDQ hash of an image may differ in from the one given; beyond 31 pictures are others."""


class KnownHashes:
    """PDQ hashes that those of pictures are compared with.

    Args:
        hashes: as hexadecimal digits.
        radius: most bits that differ, of all or of each.
    """

    def __init__(self, hashes: Sequence[str], radius: int | Sequence[int]) -> None:
        self._bits = _bits(hashes)
        self._radius = np.asarray(radius)

    def __len__(self) -> int:
        return len(self._bits)

    def nearest(self, hash_: str) -> tuple[int, int] | None:
        """Return number and distance in bits of the nearest hash within its radius; None without any."""
        distances = np.bitwise_count(self._bits ^ _bits([hash_])).sum(axis=1, dtype=np.int64)
        near = np.flatnonzero(distances <= self._radius)
        if not len(near):
            return None
        found = int(near[distances[near].argmin()])
        return found, int(distances[found])

    @staticmethod
    def hash_of(image: bytes | memoryview) -> str | None:
        """Return the PDQ hash of an image; None where it says little, and of what cannot be decoded."""
        named = {"sample_id": [""], "position": [0], "modality": ["image"]}
        table = pa.table({**named, "binary_content": pa.array([bytes(image)], pa.large_binary())})
        try:
            return picture_hashes(table, [0]).get(0)
        except ValueError:  # decoded, it takes more memory than there is
            return None


def picture_hashes(table: pa.Table, rows: Sequence[int]) -> dict[int, str]:
    """Return the PDQ hashes of images by row; those that say little, and of what is no picture, are left out.

    Args:
        table: rows in the columns of the data model.
        rows: numbers of rows with the bytes of images.
    """
    from mm_assets.filters.measures import PerceptualHash, PerceptualQuality
    from mm_assets.filters.scores import score_rows

    scores = score_rows(table, rows, measures=(PerceptualHash(), PerceptualQuality())) if rows else []
    hashes = {row: score.get("perceptual_hash") for row, score in zip(rows, scores, strict=True)}
    quality = {row: score.get("perceptual_quality") for row, score in zip(rows, scores, strict=True)}
    return {row: hash_ for row, hash_ in hashes.items() if hash_ and quality[row] >= LEAST_QUALITY}


def _bits(hashes: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytes.fromhex("".join(hashes)), np.uint64).reshape(-1, 4)


@dataclass(frozen=True)
class HashList(IdList):
    """One file with hashes of images: ``sha256``, ``md5`` and ``pdq`` with its ``radius``, or lines of hex.

    A line of 64 digits is a SHA-256, one of 32 an MD5, one that begins with # nothing.

    Args:
        folder: where its copy is; empty: the file itself is read.
    """

    folder: str = field(default="", compare=False)

    @staticmethod
    def columns_in(uri: str, names: Sequence[str] | None) -> tuple[str, ...]:
        if names is None:
            return (SHA256, MD5)
        if not (found := tuple(name for name in HASH_DIGITS if name in names)):
            raise BadList(f"{uri}: no column {' or '.join(HASH_DIGITS)}; {there_are(names)}")
        return found

    def published(self, folder: str) -> str:
        return join(folder, f"{self.digest}.hashes.parquet")

    def rows_of(self, table: pa.Table) -> pa.Table:
        """Return a row for each hash: kind and digits as ``key``, ``radius``; raises as that of the base."""
        has_hash = pa.array([False] * len(table))
        if SAMPLE_ID in table.column_names:  # lines
            lines = table.column(SAMPLE_ID).combine_chunks()
            is_short = pc.equal(pc.utf8_length(lines), HASH_DIGITS[MD5])
            nothing = pa.scalar(None, lines.type)
            has_hash = pc.starts_with(lines, "#")  # wants none
            lines = pc.if_else(has_hash, nothing, lines)
            table = pa.table(
                {SHA256: pc.if_else(is_short, nothing, lines), MD5: pc.if_else(is_short, lines, nothing)}
            )
        radii = pa.array([DEFAULT_RADIUS] * len(table), pa.int64())
        if RADIUS in table.column_names:
            radii = pc.fill_null(_radii(self.uri, table.column(RADIUS)), DEFAULT_RADIUS)
        separator = pa.scalar(":", pa.large_string())
        rows = []
        for name in self.columns:
            digits = pc.utf8_lower(as_text(self.uri, name, table.column(name)))
            is_given = pc.fill_null(pc.not_equal(digits, ""), False)
            is_hash = pc.match_substring_regex(digits, f"^[0-9a-f]{{{HASH_DIGITS[name]}}}$")
            is_bad = pc.and_(is_given, pc.invert(pc.fill_null(is_hash, False)))
            if (row := pc.index(is_bad, True).as_py()) >= 0:
                told = f"{digits[row].as_py()!r:.100} is not {HASH_DIGITS[name]} hex digits"
                raise BadList(f"{self.uri}: row {row + 1}: {name}: {told}")
            keys = pc.binary_join_element_wise(pa.scalar(name, pa.large_string()), digits, separator)
            rows.append(pa.table({"key": keys, RADIUS: radii}).filter(is_given))
            has_hash = pc.or_(has_hash, is_given)
        if (row := pc.index(has_hash, False).as_py()) >= 0:
            raise BadList(f"{self.uri}: row {row + 1}: no value of {' or '.join(self.columns)}")
        return pa.concat_tables(rows).sort_by([(RADIUS, "descending")])  # of equal hashes the first counts

    def has(self, kind: str, digits: str) -> bool:
        """Return whether it lists a hash."""
        return kind in self.columns and bool(self._hashes.find([f"{kind}:{digits}"])[0] >= 0)

    @property
    def _hashes(self) -> SortedIds:
        return opened_copy(self.published(self.folder)) if self.folder else _keys_of(self)

    @property
    def pictures(self) -> KnownHashes:
        """Its PDQ hashes."""
        return _pictures_of(self)


def opened_hash_lists(locations: Iterable[str], folder: str = "") -> tuple[HashList, ...]:
    """Return the lists that ``MM_HASH_LISTS`` names.

    Args:
        locations: files, globs and URLs.
        folder: where copies of them are written, and read from then on; so every line is looked at.

    Raises:
        BadList: one cannot be used.
    """
    try:
        found = HashList.all_of(locations)
        for each in found if folder else ():
            each.publish(folder)
        return tuple(replace(each, folder=folder) for each in found)
    except FileNotFoundError as error:
        raise BadList(f"MM_HASH_LISTS: {error_line(error)}") from error
    except BadList as error:
        raise BadList(f"MM_HASH_LISTS: {error}") from error


@lru_cache(maxsize=8)
def _keys_of(listed: HashList) -> SortedIds:
    return SortedIds(listed.read())


@lru_cache(maxsize=8)
def _pictures_of(listed: HashList) -> KnownHashes:
    table = read_small_table(listed.published(listed.folder)) if listed.folder else listed.read()
    table = table.filter(pc.starts_with(table.column("key"), f"{PDQ}:"))
    hashes = [key.removeprefix(f"{PDQ}:") for key in table.column("key").to_pylist()]
    return KnownHashes(hashes, table.column(RADIUS).to_pylist())


def _radii(uri: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return radii of PDQ hashes."""
    text = as_text(uri, RADIUS, column)
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)
    is_bad = pc.invert(pc.fill_null(pc.match_substring_regex(text, "^[0-9]{1,2}$"), True))
    numbers = pc.if_else(is_bad, pa.scalar(None, text.type), text).cast(pa.int64())
    is_bad = pc.or_(is_bad, pc.fill_null(pc.greater(numbers, MOST_RADIUS), False))
    if (row := pc.index(is_bad, True).as_py()) >= 0:
        raise BadList(f"{uri}: row {row + 1}: {RADIUS}: {text[row].as_py()!r:.100} is not 0 to {MOST_RADIUS}")
    return numbers
