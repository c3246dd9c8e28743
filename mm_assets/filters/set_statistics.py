"""Set-wide statistics: how often a value occurs in all shards, and where it stands among the values of all.

They take two passes. The first stores the scores of every shard. `StatisticsCollector` is given what is
stored, and nothing is decoded. Then conditions may look at ``<name>_occurrences`` and
``<name>_percent_rank``, where ``<name>`` is a score or a column:

* ``occurrences``: rows of the set with the same value.
* ``percent_rank``: share of the values, 0 to 1, that come before this one in ascending order. Equal values
  rank as the last of them, so that ``>= 0.7`` keeps the top 30 % and what ties with them. It is rounded down
  to a multiple of 0.0001.

Statistics stay as they are until they are computed again: new shards are judged by those that there are.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.formats.parquet import read_small_table
from mm_assets.model.errors import MmAssetsError
from mm_assets.storage.files import join, publish_bytes, read_bytes

_OF: Final = ": "  # between what a statistic is of, and its name
_OCCURRENCES: Final = "_occurrences"
_PERCENT_RANK: Final = "_percent_rank"
TYPES: Final[Mapping[str, pa.DataType]] = {_OCCURRENCES: pa.int64(), _PERCENT_RANK: pa.float64()}
"""Endings of the names of statistics, and the types of their values."""

SCHEMA = pa.schema(
    [
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("key", pa.binary(16)),
        pa.field("occurrences", pa.int64()),
        pa.field("value", pa.float64()),
    ]
)
"""Columns of stored statistics.

Of occurrences there is a row for each value that occurs more than once, with the xxh3-128 of its text as key.
Of a percent rank there is a row for each step that some value reaches, with the least such value; all rows of
a statistic are in ascending order.
"""

STEPS: Final = 10_000
"""Steps of a percent rank."""

_COUNTED: Final = b"mm_assets:counted"  # metadata of the schema: values of the set by statistic, as JSON
_NEWEST: Final = "newest.json"  # names the statistics that hold
_MEMORY: Final = "1GB"  # of the database that counts; beyond that it writes to the disk


class StatisticError(MmAssetsError, ValueError):
    """A statistic that cannot be computed, or was not; the message says why."""


def ending_of(name: str) -> str | None:
    """Return the ending by which a name is that of a statistic; None for another name."""
    return next((ending for ending in TYPES if name.endswith(ending) and name != ending), None)


def statistic_name(rows: str, name: str) -> str:
    """Return the name of a statistic among those of all kinds of rows, as in ``image: url_occurrences``."""
    return f"{rows}{_OF}{name}"


def score_or_column(name: str) -> str:
    """Return the score or column that a statistic is computed of."""
    own = name.rpartition(_OF)[2]
    return own.removesuffix(ending_of(own.lower()) or "")


class StatisticsCollector:
    """Collector of the values of all rows of the set, which it is given in any order and number of parts.

    What occurs is counted on disk where memory does not suffice; of a percent rank each value takes 8 bytes.

    Args:
        names: the statistics.

    Attributes:
        counted: number of the values of each so far.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.counted = dict.fromkeys(sorted(names), 0)
        self._numbers: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in self.counted}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        import duckdb

        spilled = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mm-assets-"))
        config: dict[str, Any] = {"threads": "1", "memory_limit": _MEMORY, "temp_directory": spilled}
        self._database = self._stack.enter_context(duckdb.connect(":memory:", config=config))
        self._database.execute("create table keys (statistic varchar, high ubigint, low ubigint)").fetchall()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, values: pa.Array | pa.ChunkedArray) -> None:
        """Add values of some rows.

        Raises:
            StatisticError: a percent rank of values that are no numbers, or occurrences of lists or structs.
        """
        if name.endswith(_PERCENT_RANK):
            numbers = _numbers(name, values)
            self._numbers[name].append(numbers[~np.isnan(numbers)])
            self.counted[name] += len(self._numbers[name][-1])
            return
        keys = _keys(name, values)
        self.counted[name] += len(keys)
        self._database.register("part", pa.table({"high": keys[:, 0], "low": keys[:, 1]}))
        self._database.execute("insert into keys select ?, high, low from part", [name]).fetchall()

    def table(self) -> pa.Table:
        """Return the statistics, in `SCHEMA`."""
        tables = [
            self._percent_rank(name) if name.endswith(_PERCENT_RANK) else self._occurrences(name)
            for name in self.counted
        ]
        schema = SCHEMA.with_metadata({_COUNTED: json.dumps(self.counted).encode()})
        return pa.concat_tables([SCHEMA.empty_table(), *tables]).cast(schema)

    def _occurrences(self, name: str) -> pa.Table:
        found = self._database.execute(
            "select high, low, count(*) as n from keys where statistic = ? "
            "group by all having n > 1 order by all",
            [name],
        ).fetchnumpy()
        halves = np.stack([found["high"], found["low"]], axis=1).astype(">u8")
        keys = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(halves), [None, pa.py_buffer(halves.tobytes())]
        )
        return _table(name, len(halves), {"key": keys, "occurrences": pa.array(found["n"], pa.int64())})

    def _percent_rank(self, name: str) -> pa.Table:
        values = np.concatenate([np.zeros(0), *self._numbers[name]])
        values.sort()
        # Integers: a share such as 0.7 times a number of values is not exact.
        begins = -(-np.arange(STEPS, dtype=np.int64) * len(values) // STEPS)
        firsts = values[begins[begins < len(values)]]
        return _table(name, len(firsts), {"value": pa.array(firsts)})


def _keys(name: str, part: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the key of each value that is not null: rows x 2, the more significant half first."""
    if pa.types.is_nested(part.type):
        raise StatisticError(f"{name}: it is computed of values such as text and numbers, not of {part.type}")
    is_bytes = pa.types.is_binary(part.type) or pa.types.is_large_binary(part.type)
    texts = part.drop_null() if is_bytes else pc.cast(part.drop_null(), pa.large_string())
    digests = (xxhash.xxh3_128_digest(value if is_bytes else value.encode()) for value in texts.to_pylist())
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def _numbers(name: str, part: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    kind = part.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise StatisticError(f"{name}: it is computed of numbers, not of {kind}")
    known: npt.NDArray[np.float64] = part.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return known


def _table(name: str, rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    named = {"statistic": pa.array([name] * rows, pa.string()), **columns}
    return pa.Table.from_arrays(
        [named.get(field.name, pa.nulls(rows, field.type)) for field in SCHEMA], schema=SCHEMA
    )


class SetStatistics:
    """The statistics of a set, as they were computed.

    Args:
        table: that of a `StatisticsCollector`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.counted: Mapping[str, int] = json.loads((table.schema.metadata or {}).get(_COUNTED, b"{}"))
        names, counts = np.unique(table.column("statistic").to_numpy(), return_counts=True)
        ends = np.cumsum(counts)
        rows = {
            name: table.slice(end - count, count)
            for name, count, end in zip(names.tolist(), counts.tolist(), ends.tolist(), strict=True)
        }
        self._statistics = {
            name: (_PercentRank if name.endswith(_PERCENT_RANK) else _Occurrences)(
                name, rows.get(name, SCHEMA.empty_table())
            )
            for name in self.counted
        }

    def of(self, name: str, values: pa.Array) -> pa.Array:
        """Return the statistic of each value; null for null and nan.

        Raises:
            StatisticError: it was not computed.
        """
        if name not in self._statistics:
            raise StatisticError(not_computed(name))
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        found = self._statistics[name].of(values)
        every = np.zeros(len(values), found.dtype)
        every[~is_null] = found
        return pa.array(every, mask=is_null)


def not_computed(name: str) -> str:
    """Return the line about a statistic that there is not."""
    return (
        f"{name} was not computed: `mm-assets statistics` computes it, once scores of all shards are stored"
    )


class _PercentRank:
    def __init__(self, name: str, rows: pa.Table) -> None:
        self._name, self._firsts = name, rows.column("value").to_numpy()

    def of(self, values: pa.Array) -> npt.NDArray[Any]:
        """Return the rank of each value that is not null; one below all of the set ranks first."""
        steps = np.searchsorted(self._firsts, _numbers(self._name, values), side="right") - 1
        return np.maximum(steps, 0) / STEPS


class _Occurrences:
    def __init__(self, name: str, rows: pa.Table) -> None:
        self._name = name
        data = b"".join(rows.column("key").to_pylist())
        self._repeated = np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)
        self._counts = rows.column("occurrences").to_numpy()

    def of(self, values: pa.Array) -> npt.NDArray[Any]:
        """Return how often each value that is not null occurs: once, if it is none of the repeated ones."""
        keys = _keys(self._name, values)
        found = np.ones(len(keys), np.int64)
        at = np.searchsorted(self._repeated[:, 0], keys[:, 0])
        left = np.arange(len(keys))
        while len(left):  # once more for each stored key with the same first half
            left = left[at[left] < len(self._repeated)]
            left = left[self._repeated[at[left], 0] == keys[left, 0]]
            is_hit = self._repeated[at[left], 1] == keys[left, 1]
            found[left[is_hit]] = self._counts[at[left[is_hit]]]
            left = left[~is_hit]
            at[left] += 1
        return found


@dataclass(frozen=True)
class StatisticsFile:
    """The file of the statistics that were computed last.

    Outputs are made from its ``digest``; the ``uri`` depends on where the storage is.
    """

    digest: str
    uri: str = field(compare=False)

    @classmethod
    def newest(cls, folder: str) -> Self | None:
        """Return the one that was published last; None if no statistics were computed."""
        data = read_bytes(join(folder, _NEWEST))
        if data is None:
            return None
        digest = str(json.loads(data)["digest"])
        return cls(digest, join(folder, f"{digest}.parquet"))

    @classmethod
    def publish(cls, folder: str, table: pa.Table) -> Self:
        """Store statistics: earlier ones stay, as the ledger of what was made with them."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        digest = xxhash.xxh3_128_hexdigest(data)
        file = cls(digest, join(folder, f"{digest}.parquet"))
        publish_bytes(file.uri, data)
        publish_bytes(join(folder, _NEWEST), json.dumps({"digest": digest}).encode())
        return file

    def read(self) -> SetStatistics:
        """Return the statistics, read once in a process; raises as `read_small_table`."""
        return _read(self.uri)


@lru_cache(maxsize=1)
def _read(uri: str) -> SetStatistics:
    return SetStatistics(read_small_table(uri))
