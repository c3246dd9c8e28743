"""Detection of text that is not UTF-8: no file format guarantees that strings are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from mm_assets.interleaved.errors import ShardError


def refuse_broken_text(rows: pa.Table, where: str) -> None:
    """Refuse rows with text that is not UTF-8, in any column and at any depth.

    Args:
        rows: rows with the column ``sample_id``, or without it.
        where: what the rows were read from, in the message; may be empty.

    Raises:
        ShardError: There is such a row; the message names its sample and column.
    """
    if not (broken := broken_rows(rows)):
        return
    row, name = min(broken.items())
    sample = f"row {row}, "
    if "sample_id" in rows.column_names:
        ids = with_bytes(
            rows.column("sample_id").slice(row, 1).combine_chunks().cast(pa.large_string(), False)
        )
        sample = f"sample {(ids[0].as_py() or b'').decode('utf-8', 'backslashreplace')!r}, "
    prefix = f"{where}: " if where else ""
    raise ShardError(f"{prefix}{sample}column {name!r}: text that is not UTF-8")


def broken_rows(rows: pa.RecordBatch | pa.Table) -> dict[int, str]:
    """Return the rows with text that is not UTF-8, also inside lists, and the first such column of each."""
    broken: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        first = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not _is_sound(chunk, unused=True):
                # Of a dictionary, only a value that no row has may be broken.
                for row in list(_broken_in(chunk, first)) or [first]:
                    broken.setdefault(row, name)
            first += len(chunk)
    return broken


def with_bytes(column: pa.Array) -> pa.Array:
    """Return the column with its text as bytes, without any check."""
    return column.cast(_as_bytes(column.type))


def _broken_in(array: pa.Array, first: int) -> Iterator[int]:
    if _is_sound(array):
        return
    if len(array) == 1:
        yield first
        return
    half = len(array) // 2
    yield from _broken_in(array.slice(0, half), first)
    yield from _broken_in(array.slice(half), first + half)


def _is_sound(array: pa.Array, unused: bool = False) -> bool:
    """Return whether all text in an array is UTF-8; with ``unused``, also dictionary values of no row."""
    type_ = array.type
    if len(array) == 0:
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return _is_sound(array.storage, unused)
    if pa.types.is_dictionary(type_):
        values = array.dictionary if unused else array.dictionary.take(array.indices.unique())
        return _is_sound(values, unused)
    if pa.types.is_struct(type_):
        return all(_is_sound(child, unused) for child in array.flatten())
    if pa.types.is_map(type_):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return all(_is_sound(part.slice(first, end - first), unused) for part in (array.keys, array.items))
    if pa.types.is_nested(type_) and hasattr(array, "flatten"):  # lists of any kind
        return not _has_text(type_) or _is_sound(array.flatten(), unused)
    if not _is_text(type_):
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has_text(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has_text(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _has_text(type_.value_type)
    return _is_text(type_) or any(_has_text(type_.field(at).type) for at in range(type_.num_fields))


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return pa.binary()
    if pa.types.is_large_string(type_):
        return pa.large_binary()
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_bytes(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_as_bytes(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in type_])
    return type_
