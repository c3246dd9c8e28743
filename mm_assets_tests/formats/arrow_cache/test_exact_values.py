"""A value is stored as it was given, or refused: never another one."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_assets.formats import Array3D, ArrowCache, Features, Sequence, Value, write_sharded_arrow_cache

INF = math.inf
NOON = datetime(2020, 1, 1, 12)
LATE = datetime(2020, 1, 1, 0, 0, 0, 5)


def through(folder: Path, feature: Any, value: Any) -> Any:
    """What a cache gives back for a value."""
    features = Features({"field": feature})
    write_sharded_arrow_cache([("one", {"field": value})], features, folder / "cache")
    return ArrowCache(folder / "cache", features)[0]["field"]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int32", 3.0, 3),
        ("int32", np.float32(3), 3),
        ("int64", Decimal(3), 3),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("float32", 0.1, float(np.float32(0.1))),
        ("float32", float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
        ("float32", 3.40282350e38, float(np.finfo(np.float32).max)),  # above the largest, but nearest to it
        ("float32", INF, INF),
        ("float32", np.float64(-INF), -INF),
        ("float16", 65504, 65504.0),
        ("float64", 1e300, 1e300),
        ("float64", np.longdouble(1.5), 1.5),
        ("bool", np.True_, True),
        ("string", np.str_("a"), "a"),
        ("binary", np.bytes_(b"a"), b"a"),
        ("timestamp[us]", np.datetime64("1970-01-01T00:00:01", "ns"), datetime(1970, 1, 1, 0, 0, 1)),
        ("timestamp[us]", np.datetime64("2020-01-01T12", "ns"), NOON),
        ("timestamp[s]", np.datetime64("2020-01-01T12", "h"), NOON),
        ("timestamp[ns]", np.datetime64("2020-01-01T12", "s"), NOON),
        ("timestamp[ms]", np.datetime64("1969-12-31", "D"), datetime(1969, 12, 31)),
        ("timestamp[us]", np.datetime64(2629, "W"), datetime(2020, 5, 21)),
        ("timestamp[us]", np.array("2020-01-01T12", "M8[25s]"), datetime(2020, 1, 1, 12)),
        ("timestamp[us]", np.datetime64("NaT", "ns"), None),
        ("timestamp[us]", 5, datetime(1970, 1, 1, 0, 0, 0, 5)),
        ("timestamp[us]", LATE, LATE),
        ("timestamp[s]", datetime(2020, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        ("duration[us]", np.timedelta64(5 * 10**9, "ns"), timedelta(seconds=5)),
        ("duration[s]", np.timedelta64(-1, "D"), timedelta(days=-1)),
        ("duration[ms]", timedelta(milliseconds=1), timedelta(milliseconds=1)),
        ("duration[us]", np.timedelta64("NaT"), None),
        ("date32", np.datetime64("2020-01-01", "ns"), date(2020, 1, 1)),
        ("date64", np.datetime64("2020-01-01", "D"), date(2020, 1, 1)),
        ("date32", datetime(2020, 1, 1), date(2020, 1, 1)),
        ("time64[us]", time(1, 2, 3, 4), time(1, 2, 3, 4)),
    ],
)
def test_a_scalar_comes_back_as_it_was(tmp_path: Path, dtype: str, value: Any, expected: Any) -> None:
    found = through(tmp_path, Value(dtype), value)
    assert found == expected and type(found) is type(expected)
    assert through(tmp_path, Sequence(Value(dtype)), [value, None]) == [expected, None]
    if isinstance(value, np.generic):
        assert through(tmp_path, Sequence(Value(dtype)), np.array([value])) == [expected]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", 3.7),
        ("int32", np.float64(3.7)),
        ("int32", 1e300),
        ("int32", math.nan),
        ("int32", Decimal("3.7")),
        ("int8", np.int64(300)),
        ("int64", np.datetime64(5, "ns")),
        ("int64", np.timedelta64(5, "ns")),
        ("float32", 1e300),
        ("float32", -3.5e38),
        ("float32", np.float64(1e300)),
        ("float16", 1e6),
        ("float64", np.longdouble("1e400")),
        ("timestamp[s]", LATE),
        ("timestamp[ms]", np.datetime64(LATE)),
        ("timestamp[us]", np.datetime64(1, "ns")),
        ("timestamp[us]", np.datetime64(2**62, "s")),
        ("timestamp[us]", np.datetime64("20000-01-01")),
        ("timestamp[us]", np.datetime64("2020")),
        ("timestamp[us]", 2**62),
        ("timestamp[us]", 5.5),
        ("duration[s]", timedelta(milliseconds=1)),
        ("duration[us]", np.timedelta64(5, "ns")),
        ("duration[us]", np.timedelta64(5, "M")),
        ("duration[us]", np.datetime64(5, "us")),
        ("date32", NOON),
        ("date64", np.datetime64(NOON)),
        ("time32[s]", time(1, 2, 3, 4)),
    ],
)
def test_a_scalar_that_would_change_is_refused(tmp_path: Path, dtype: str, value: Any) -> None:
    lists = [[value], np.array([value])] if isinstance(value, np.generic | float) else [[value]]
    for feature, given in [(Value(dtype), value), *((Sequence(Value(dtype)), one) for one in lists)]:
        with pytest.raises(ValueError, match="example 'one'(:|,) field 'field': "):
            through(tmp_path, feature, given)
    assert list(tmp_path.iterdir()) == []


def test_an_aware_datetime_with_more_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would be stored as"):
        through(tmp_path, Value("timestamp[s]"), LATE.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("dtype", "values", "given"),
    [
        ("int8", [300, -1], None),
        ("uint8", [300, 65535], "uint16"),
        ("uint8", [-1, 1], "int8"),
        ("uint64", [-1, 1], "int64"),
        ("int64", [2.0**63, 1], None),
        ("uint64", [2.0**64, 1], None),
        ("int64", [-INF, 1], None),
        ("int32", [math.nan, 1], None),
        ("int32", [0.5, 1], "float16"),
        ("bool", [2, 1], None),
        ("float32", [1e300, 1], None),
        ("float16", [1e6, INF], "float32"),
        ("float16", [70_000, 1], None),
        ("float32", [1j, 1], None),
        ("complex64", [1, 1e300j], None),
        ("complex64", [1, complex(INF, 1e300)], None),
        ("float32", [None, 1], "object"),
        ("int8", ["1", "2"], None),
        ("int64", [5, 6], "datetime64[ns]"),
    ],
)
def test_an_array_that_would_change_is_refused(
    tmp_path: Path, dtype: str, values: list[Any], given: str | None
) -> None:
    with pytest.raises(
        ValueError, match=f"example 'one': field 'field': values of .* that {dtype} cannot hold"
    ):
        through(tmp_path, Array3D((1, 1, 2), dtype), np.array([[values]], given))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [127, -128]),
        ("int8", [127.0, -128.0]),
        ("uint16", [65535, 0]),
        ("uint64", [2**64 - 1, 0]),  # numpy alone makes floats of these
        ("uint64", [2**63 + 1, -0.0]),
        ("int64", [-(2.0**63), 2.0**62]),
        ("bool", [1, 0]),
        ("float32", [INF, -INF]),
        ("float16", [INF, 65504.0]),
        ("complex64", [complex(1, INF), 2]),
    ],
)
def test_an_array_comes_back_as_it_was(tmp_path: Path, dtype: str, values: list[Any]) -> None:
    found = through(tmp_path, Array3D((1, 1, 2), dtype), [[values]])
    assert found.dtype == dtype and found.tolist() == [[values]]


def test_floats_of_an_array_are_rounded(tmp_path: Path) -> None:
    values = np.array([[[0.1, 1e-300, math.nan]]])
    assert np.array_equal(
        through(tmp_path, Array3D((1, 1, 3), "float32"), values), values.astype(np.float32), equal_nan=True
    )
    assert through(tmp_path, Array3D((1, 1, 1), "float32"), [[[2**24 + 1]]]).item() == 2**24
