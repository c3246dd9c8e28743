"""Nested Arrow types: rebuilding them with other children, and the spelling that all formats preserve."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def with_children(type_: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a struct, map or list type with ``change`` applied to its child fields; others as they are."""
    if pa.types.is_struct(type_):
        return pa.struct([change(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(change(type_.key_field), change(type_.item_field), keys_sorted=type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(change(type_.value_field), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(change(type_.value_field))
    if pa.types.is_list(type_):
        return pa.list_(change(type_.value_field))
    return type_


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with map entries named as Arrow does, items of fixed-size lists as Parquet does.

    At any depth. These names are not part of the data: Parquet returns others than were written, Arrow files
    drop those of maps, and Lance those of fixed-size lists (Arrow takes two with other names for unequal).
    """
    rebuilt = with_children(type_, _plain_field)
    if pa.types.is_fixed_size_list(rebuilt):
        return pa.list_(rebuilt.value_field.with_name("element"), rebuilt.list_size)
    if pa.types.is_map(rebuilt):
        return pa.map_(
            rebuilt.key_field.with_name("key"),
            rebuilt.item_field.with_name("value"),
            keys_sorted=rebuilt.keys_sorted,
        )
    return rebuilt


def with_plain_items(type_: pa.DataType) -> pa.DataType:
    """Return a `plain_type` with the items of all lists named alike.

    `plain_type` keeps the names that Parquet (``element``) and Arrow (``item``) give those of lists without a
    size, because digests of rows state them.
    """
    rebuilt = with_children(plain_type(type_), lambda field: field.with_type(with_plain_items(field.type)))
    if pa.types.is_list(rebuilt):
        return pa.list_(rebuilt.value_field.with_name("element"))
    if pa.types.is_large_list(rebuilt):
        return pa.large_list(rebuilt.value_field.with_name("element"))
    return rebuilt


def nulls(length: int, type_: pa.DataType) -> pa.Array:
    """Return an array of nulls of any type.

    A non-nullable child field has some value under a null parent: Parquet takes nothing else.
    """
    return pa.array([None] * length, type_) if _has_required(type_) else pa.nulls(length, type_)


def _has_required(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_) or not (pa.types.is_struct(type_) or pa.types.is_fixed_size_list(type_)):
        return False  # a null of these types has no child values
    children = [type_.field(index) for index in range(type_.num_fields)]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))
