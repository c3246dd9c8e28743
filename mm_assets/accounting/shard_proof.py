"""Proof of one shard of one output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_assets.accounting.sealed_json import seal, unseal

FORMAT = 3


@dataclass(frozen=True)
class ShardProof:
    """Proof of one shard of one output.

    Attributes:
        asset: the asset.
        partition: the shard.
        reader: the canonical reader used.
        written: rows, samples, images, texts and digest as the writer reported them.
        derived: the same as the canonical reader finds them.
        lost: number and digest of the rows taken out.
        config: identifies code and options.
        stat: tells whether the output is still the one that was examined.
        problems: one line for each difference.
        beside: those problems that concern only index files, ledger, scores and quarantine beside the output,
            which the next run repairs by itself, or the store, which did not give out the output.
        examined_at: time of the examination (UTC, ISO 8601).
    """

    asset: str
    partition: str
    reader: str
    written: Mapping[str, Any]
    derived: Mapping[str, Any]
    lost: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    stat: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    examined_at: str = ""

    @property
    def is_equal(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def is_damaged(self) -> bool:
        """True if the output itself differs from what was written."""
        return not set(self.problems) <= set(self.beside)

    def to_bytes(self) -> bytes:
        """Return the proof as sealed JSON."""
        return seal({"format": FORMAT, **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardProof | None:
        """Return a proof; None if the file is torn or of another format, so that it is examined again."""
        try:
            fields = unseal(data)
            if fields.pop("format") != FORMAT:
                return None
            return cls(
                **{
                    **fields,
                    "problems": tuple(fields["problems"]),
                    "beside": tuple(fields.get("beside", ())),
                }
            )
        except (ValueError, TypeError, LookupError, AttributeError):
            return None
