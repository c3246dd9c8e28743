"""Conversion of plain values into Dagster metadata."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import dagster as dg


def metadata_values(plain: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Return plain values (see `ShardResult`) as Dagster metadata.

    Markdown, JSON, table schema, path and URL get their own type. Numbers and text stay as they are.

    Raises:
        ValueError: for a value of another kind.
    """
    return {name: _metadata_value(name, value) for name, value in plain.items()}


def _metadata_value(name: str, value: Any) -> dg.MetadataValue:
    match value:
        case bool():
            return dg.MetadataValue.bool(value)
        case int():
            return dg.MetadataValue.int(value)
        case float():
            return dg.MetadataValue.float(value)
        case str():
            return dg.MetadataValue.text(value)
        case {"md": str(text), **rest} if not rest:
            return dg.MetadataValue.md(text)
        case {"json": content, **rest} if not rest:
            return dg.MetadataValue.json(content)
        case {"path": str(path), **rest} if not rest:
            return dg.MetadataValue.path(path)
        case {"url": str(url), **rest} if not rest:
            return dg.MetadataValue.url(url)
        case {"table_schema": columns, **rest} if not rest:
            return _table_schema(tuple((column, kind) for column, kind in columns))
    raise ValueError(f"metadata {name!r} has a value no rule covers: {value!r}")


@lru_cache(maxsize=64)  # shards of a dataset share theirs
def _table_schema(columns: tuple[tuple[str, str], ...]) -> dg.MetadataValue:
    return dg.MetadataValue.table_schema(
        dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns])
    )
