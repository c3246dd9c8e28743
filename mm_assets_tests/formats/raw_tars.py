"""Raw shards for tests, and what they said, told again from a table alone (written apart from the code under
test).
"""

from __future__ import annotations

import io
import json
import math
import posixpath
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

RESERVED = (
    "sample_id",
    "position",
    "modality",
    "content_type",
    "text_content",
    "binary_content",
    "source_ref",
    "materialize_error",
)


def make_tar(
    path: Path, members: Iterable[tuple[str, Any]], mode: str = "w", kind: int = tarfile.PAX_FORMAT
) -> Path:
    """Write members; a value that is no bytes is written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=kind) as tar:
        for name, value in members:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tar_members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar.getmembers() if info.isfile()}  # type: ignore[union-attr]


def equal(one: Any, other: Any) -> bool:
    """Equal as JSON values: NaN is NaN, 1 is 1.0, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def payloads(
    table: pa.Table,
    texts: str = "texts",
    images: str = "images",
    id_field: str | None = None,
    per_image: Sequence[str] = (),
    per_text: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """The json of every sample, by the name of its member, from the rows of a table."""
    encoded = {f.name for f in table.schema if (f.metadata or {}).get(b"mm_assets:encoding") == b"json"}
    samples: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        for name in encoded:
            row[name] = None if row[name] is None else json.loads(row[name])
        samples.setdefault(row["sample_id"], []).append(row)
    lists = {texts: "text", images: "image"}
    told = {}
    for sample_id, rows in samples.items():
        metadata = rows[0]
        assert metadata["modality"] == "metadata"
        said = metadata.get("_source") or {}
        member = json.loads(metadata["source_ref"])["member"]
        payload: dict[str, Any] = dict(said.get("fields", {}))
        if id_field is not None:
            payload.setdefault(id_field, sample_id)
        elif sample_id != posixpath.splitext(member)[0]:
            payload.setdefault("sample_id", sample_id)
        implied = max((row["position"] + 1 for row in rows), default=0)
        for name, modality in lists.items():
            length = said.get("lengths", {}).get(name, implied)
            if name in payload or length is None:
                continue
            payload[name] = [None] * length
            for row in rows[1:]:
                if row["modality"] == modality:
                    payload[name][row["position"]] = _value(row)
        for name in per_text:
            _gather(payload, name, said, payload.get(texts), [r for r in rows if r["modality"] == "text"])
        for name in per_image:
            _gather(payload, name, said, payload.get(images), [r for r in rows if r["modality"] == "image"])
        for name, value in metadata.items():
            if (
                name not in RESERVED
                and name != "_source"
                and (value is not None or name in said.get("nulls", ()))
            ):
                payload[name] = value
        told[member] = payload
    return told


def _value(row: Mapping[str, Any]) -> Any:
    said = row.get("_source") or {}
    if row["modality"] == "text":
        return said["value"] if "value" in said else row["text_content"]
    return said["token"] if "token" in said else json.loads(row["source_ref"])["member"]


def _gather(
    payload: dict[str, Any], name: str, said: Mapping[str, Any], items: Any, rows: list[dict[str, Any]]
) -> None:
    values = [row.get(name) for row in rows]
    length = said.get("per_item", {}).get(name)
    if length is None and all(value is None for value in values):
        return
    if length is None or length == len(values):
        payload[name] = values
        return
    payload[name] = [None] * length
    for row in rows:
        payload[name][row["position"]] = row.get(name)
