"""Groups of raw shards that become one partition each, by the numbers in their names.

Neither a shard that comes later nor one that goes changes another group, or the name of its own.
"""

from __future__ import annotations

import posixpath
import re

_NUMBERED = re.compile(r"(?s)(.*?)([0-9]+)")
_GROUP = re.compile(r"(?s)(.*?)([0-9]+)-([0-9]+)")


def group_name(shard: str, size: int) -> str:
    """Return the name of the group that a shard belongs to: from its first to its last possible member.

    With groups of 100, ``en/web-00217`` belongs to ``en/web-00200-00299``. A shard whose name does not end in
    a number is alone.

    Args:
        shard: name of the shard as a partition.
        size: shards in a group at most.
    """
    if size == 1:  # of 100,000 shards the expression takes seconds
        return shard
    match = _NUMBERED.fullmatch(shard)
    if match is None:
        return shard
    prefix, digits = match.groups()
    first = int(digits) // size * size
    return f"{prefix}{first:0{len(digits)}}-{first + size - 1:0{len(digits)}}"


def member_name(partition: str, shard: str) -> str | None:
    """Return the name of a raw shard as a partition of its own, if ``partition`` is its group; else None.

    Args:
        partition: name of the partition.
        shard: name of a shard in the partition's folder, without that folder and its suffix.
    """
    folder, name = posixpath.split(partition)
    numbered, group = _NUMBERED.fullmatch(shard), _GROUP.fullmatch(name)
    if numbered is None or group is None or numbered[1] != group[1]:
        return None
    first, number, last = (int(digits) for digits in (group[2], numbered[2], group[3]))
    is_member = first <= number <= last and len(group[2]) == len(numbered[2])
    return posixpath.join(folder, shard) if is_member else None
