"""Registry of sample ids, which are unique within a dataset."""

from __future__ import annotations

from collections.abc import Collection


class SampleIds:
    """The sample ids of one partition, in the order they are met.

    ``claimed_ids`` are those of other partitions.
    """

    def __init__(self, claimed_ids: Collection[str] = ()) -> None:
        self._claimed_ids = claimed_ids
        self._first: dict[str, tuple[str, str]] = {}

    def register(self, sample_id: str, member: str, path: str) -> str | None:
        """Register the id of a member (or row) of the file ``path``.

        Returns:
            None if the id is free, else the message what it collides with.
        """
        if sample_id in self._claimed_ids:
            return f"sample id {sample_id!r:.200} is already in another shard"
        first = self._first.get(sample_id)
        if first is None:
            self._first[sample_id] = (member, path)
            return None
        first_member = repr(first[0]) if first[1] == path else f"{first[0]!r} of {first[1]}"
        return f"sample id {sample_id!r:.200} occurs twice in this shard, first in member {first_member}"
