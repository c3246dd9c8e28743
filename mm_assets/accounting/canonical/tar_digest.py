"""Fast digest of our tars directly from their JSON members where all values are plain.

No column is built, and images are hashed as they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from functools import lru_cache
from itertools import chain

import pyarrow as pa
import xxhash

from mm_assets.accounting.canonical.derived import Derived
from mm_assets.accounting.canonical.document_tables import declared_columns
from mm_assets.accounting.canonical.tar_json import Item
from mm_assets.accounting.canonical.webdataset import tar_documents
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.digest import BLOBS, TEXTS, ContentDigest, label
from mm_assets.interleaved.json_times import RAW
from mm_assets.interleaved.json_values import dumps, is_json
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA
from mm_assets.interleaved.unify import unify_schemas

_INT64 = range(-(2**63), 2**63)
# Types whose JSON values are the same as in a row.
_PLAIN = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool, pa.null(): type(None)}
_PLAIN_RESERVED = {pa.string(): str, pa.int32(): int, pa.large_binary(): bytes}

_Column = tuple[str, type, pa.Field]  # label, type of its values (JSON text: object)
_Columns = dict[str, _Column]


class _NotPlain(Exception):
    """Rows that need Arrow, to convert values or to name what is wrong with them."""


def derive_tar(uri: str, options: StorageOptions | None = None) -> Derived | None:
    """Count and digest one of our tars; None if that needs `tar_parts`, which has the same rows.

    Raises as `tar_parts` does.
    """
    digest = ContentDigest()
    schemas: dict[str, pa.Schema] = {}
    counts: Counter[str] = Counter()
    samples, last = 0, None
    starts, end = [], 0
    try:
        for document in tar_documents(uri, options):
            schemas[document.schema], columns, extras = _columns(document.schema)
            sample_id = f"{columns['sample_id'][0]}{len(document.sample_id)}:{document.sample_id}"
            digest.add([_digest(item, sample_id, columns, extras) for item in document.items])
            counts.update(item.values["modality"] for item in document.items)
            starts.append(document.span[0])
            end = document.span[1]
            if document.items and document.sample_id != last:
                samples, last = samples + 1, document.sample_id
    except (_NotPlain, UnicodeEncodeError):
        return None
    if not schemas:
        return None
    schema = unify_schemas(list(schemas.values()))
    return Derived(
        counts.total(), samples, counts["image"], counts["text"], digest.hexdigest(), schema, (*starts, end)
    )


def _digest(item: Item, sample_id: str, columns: _Columns, extras: Set[str]) -> int:
    """Return the digest of a row, equal to that of `row_digests`.

    ``sample_id`` is the part of the digest's head that the id makes up.
    """
    if not item.extras.keys() <= extras:
        raise _NotPlain
    entries = {"sample_id": sample_id}
    for name, value in chain(item.values.items(), item.extras.items()):
        if value is None:
            continue
        start, kind, field = columns[name]
        if kind is object:
            is_wrapped = type(value) is dict and RAW in value
            value = json_codec.decode([value], field)[0].as_py() if is_wrapped else dumps(value)
        elif type(value) is not kind or (kind is int and value not in _INT64):
            raise _NotPlain
        if name == TEXTS:
            entries[name] = f"{start}{len(value.encode())};"
        elif kind is str or kind is object:
            entries[name] = f"{start}{len(value)}:{value}"
        else:
            entries[name] = f"{start}{len(value) if kind is bytes else value!r};"
    digest = xxhash.xxh3_128("".join([entries[name] for name in sorted(entries)]).encode())
    text, blob = item.values.get(TEXTS), item.values.get(BLOBS)
    if text is not None:
        digest.update(text.encode())
    if blob is not None:
        digest.update(blob)
    return int(digest.intdigest())


@lru_cache(maxsize=64)
def _columns(text: str) -> tuple[pa.Schema, _Columns, Set[str]]:
    """Return all columns of a tar whose JSON declares these types, and the names of the passthrough ones."""
    try:
        declared = declared_columns(text)
    except (ValueError, TypeError, OSError):
        raise _NotPlain from None
    columns: _Columns = {
        field.name: (label(field), _PLAIN_RESERVED[field.type], field) for field in INTERLEAVED_SCHEMA
    }
    for field in declared:
        # Extension types of users may have no hash.
        kind = None if isinstance(field.type, pa.BaseExtensionType) else _PLAIN.get(field.type)
        if kind is None or field.name in columns:
            raise _NotPlain
        columns[field.name] = label(field), object if kind is str and is_json(field) else kind, field
    return pa.schema([*INTERLEAVED_SCHEMA, *declared]), columns, frozenset(declared.names)
