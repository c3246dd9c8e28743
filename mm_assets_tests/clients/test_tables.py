"""Datasets as tables of pandas and Polars, in the environment of the clients."""

from __future__ import annotations

import json

import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run

pytestmark = pytest.mark.clients

_CODE = """
import datetime, json
from mm_assets import documents, read

day = datetime.date(2024, 2, 29)
given = [("a", ["x", b"image"], {"n": 2**60 + 1, "day": day, "is_new": True}), ("b", ["y"], {"tags": ["t"]})]
dataset = read(documents(given))
frame = dataset.to_pandas()
metadata = frame[frame.modality == "metadata"]
polars = dataset.to_polars(columns=["sample_id", "n", "day"])
print(json.dumps({
    "types": {name: str(kind) for name, kind in frame.dtypes.items() if name in ("position", "n", "is_new")},
    "n": [int(metadata.n.iloc[0]), bool(metadata.n.isna().iloc[1])],
    "bytes": frame.binary_content[frame.modality == "image"].iloc[0].decode(),
    "polars": [str(kind) for kind in polars.dtypes],
    "days": [str(value) for value in polars["day"].drop_nulls()],
    "big": polars["n"].drop_nulls().to_list(),
    "sql": dataset.sql("select sum(n)::bigint as n from items").to_pandas().n.tolist(),
}))
"""


def test_rows_as_tables() -> None:
    found = json.loads(run([clients_bin("python"), "-c", _CODE], PYTHONPATH=str(ROOT)))
    assert found == {
        "types": {"position": "Int32", "n": "Int64", "is_new": "boolean"},
        "n": [2**60 + 1, True],  # as floats, it would be another number
        "bytes": "image",
        "polars": ["String", "Int64", "Date"],
        "days": ["2024-02-29"],
        "big": [2**60 + 1],
        "sql": [2**60 + 1],
    }
