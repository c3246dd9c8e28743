"""What a commit says of partitions that it leaves out. Imports no Lance."""

from __future__ import annotations

from collections.abc import Mapping


class PartitionsRefused(ValueError):
    """Partitions did not land (``complaints``: why, by name; ``reasons``: each once), the others of the chunk
    did.
    """

    def __init__(self, complaints: Mapping[str, str]) -> None:
        self.complaints = dict(complaints)
        self.reasons = list(dict.fromkeys(complaints.values()))
        super().__init__("; ".join(self.reasons))
