"""Base class of filters that drop images by their scores: a filter adds a name, settings and a verdict."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.image_scores import ImageScore, ImageScores, score_rows
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.notices import warn_user
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.steps import ROWS_CHANGED, StepResult

SCORES = "scores"  # side input: the stored image scores of the shard
KINDS = (float, int, str, tuple)
_SETTING = "setting"


@dataclass(frozen=True)
class FilterSetting:
    """A field of a filter that users set: ``MM_<NAME>`` for the graph, ``--<name>`` for `convert`.

    Args:
        kind: type of its value; a ``tuple`` is one of names.
        meaning: description for users.
        quantity: of a bound, the quantity that the two bounds of a pair limit.
    """

    name: str
    kind: type
    meaning: str
    quantity: str | None = None

    @property
    def is_upper_bound(self) -> bool:
        return self.quantity is not None and self.name == f"max_{self.quantity}"


def setting(name: str, kind: type, default: Any, meaning: str, quantity: str | None = None) -> Any:
    """Declare a field of a filter that users set.

    Args:
        default: the value where only other settings are set.

    Raises:
        TypeError: for a kind that is none of `KINDS`.
    """
    if kind not in KINDS:
        raise TypeError(f"setting {name!r} is of one of {', '.join(k.__name__ for k in KINDS)}, not {kind!r}")
    return field(default=default, metadata={_SETTING: FilterSetting(name, kind, meaning, quantity)})


def minimum(quantity: str, kind: type, meaning: str) -> Any:
    """Declare the setting ``min_<quantity>``: a lower bound, inclusive, 0 where it is not set."""
    return _bound(f"min_{quantity}", kind, 0, meaning, quantity)


def maximum(quantity: str, kind: type, meaning: str) -> Any:
    """Declare the setting ``max_<quantity>``: an upper bound, inclusive, infinite where it is not set."""
    return _bound(f"max_{quantity}", kind, math.inf, meaning, quantity)


def _bound(name: str, kind: type, default: float, meaning: str, quantity: str) -> Any:
    if kind not in (float, int):
        raise TypeError(f"bound {name!r} is a float or an int, not {kind!r}")
    return setting(name, kind, float(default) if kind is float else default, meaning, quantity)


@dataclass(frozen=True)
class ScoreFilter(ABC):
    """Drops the image rows for which `verdict` returns a reason.

    A filter is a frozen dataclass whose fields are settings. Nothing else changes: positions keep their gaps,
    samples without images stay, rows with an error stay for the policy. An image whose header cannot be read
    becomes an error row; it is not dropped.

    Args:
        book: stored scores (side input ``scores``, see `bind`). Without them headers are read from the bytes.
    """

    name: ClassVar[str]
    """Name in the ledger, in the column ``kind``."""

    version: ClassVar[str] = ""
    """Part of the fingerprint of each shard: a new version filters all shards again."""

    book: ImageScores | None = field(default=None, compare=False, repr=False, kw_only=True)

    @abstractmethod
    def verdict(self, score: ImageScore) -> str | None:
        """Return why an image is dropped; None to keep it.

        The reason is a few words, the same for all images that are dropped for it.
        """

    def measure(self, score: ImageScore) -> float | None:
        """Return the number that the verdict is about, for the ledger's column ``score``."""
        return None

    @property
    def threshold(self) -> str:
        """Settings as text, for the ledger's column ``threshold``; ``1..2`` for bounds."""
        return "..".join(_text(getattr(self, name)) for name in self.settings())

    @classmethod
    def settings(cls) -> dict[str, FilterSetting]:
        """Return the settings, by field."""
        return {f.name: f.metadata[_SETTING] for f in fields(cls) if _SETTING in f.metadata}

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Self | None:
        """Return the filter with these values (by setting); None where none of its settings is set."""
        given: dict[str, Any] = {
            name: tuple(value) if known.kind is tuple else value
            for name, known in cls.settings().items()
            if (value := values.get(known.name)) is not None
        }
        return cls(**given) if given else None

    @classmethod
    def bounds(cls) -> list[tuple[str, str]]:
        """Return the names of the settings that are pairs of bounds: lower, upper."""
        known = {setting.name: setting.quantity for setting in cls.settings().values()}
        pairs = [(f"min_{quantity}", f"max_{quantity}") for quantity in dict.fromkeys(known.values())]
        return [(low, high) for low, high in pairs if low in known and high in known]

    def __post_init__(self) -> None:
        values = {known.name: getattr(self, name) for name, known in self.settings().items()}
        for low, high in ((values[low], values[high]) for low, high in self.bounds()):
            if not 0 <= low <= high:
                raise ValueError(
                    f"{self.name.replace('_', ' ')} bounds must be 0 <= min <= max, not {low} and {high}"
                )
        for known in self.settings().values():
            if known.quantity and not values[known.name] >= 0:
                raise ValueError(
                    f"{known.name} of filter {self.name!r} must be 0 or more, not {values[known.name]}"
                )

    def bind(self, side: Mapping[str, tuple[str, str | None]]) -> Self:
        """Return the same filter with the stored scores of one shard.

        Damaged scores count as absent, with a warning that names the file: the images are measured again.

        Args:
            side: side inputs by name, each as URI and digest.
        """
        if SCORES not in side:
            return self
        try:
            return replace(self, book=ImageScores.read(*side[SCORES]))
        except (UnreadableFile, FileNotFoundError) as error:
            warn_user(f"{error}: images are measured again")
            return self

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        images = pc.indices_nonzero(
            pc.and_(
                pc.equal(table.column("modality"), "image"), pc.is_null(table.column("materialize_error"))
            )
        )
        if len(images) == 0:
            return StepResult(batch)
        rows = images.to_pylist()
        scores = self.book.of(table, rows) if self.book else score_rows(table, rows, batch.measured)
        errors = {
            row: score.error for row, score in zip(rows, scores, strict=True) if score.error is not None
        }
        measured = [(row, score) for row, score in zip(rows, scores, strict=True) if score.error is None]
        verdicts = self._verdicts([score for _, score in measured])
        dropped = [
            (row, score, reason)
            for (row, score), reason in zip(measured, verdicts, strict=True)
            if reason is not None
        ]
        table = with_errors(table, errors)
        counts = {ROWS_CHANGED: len(errors)} if errors else {}
        if not dropped:
            return StepResult(batch.with_data(table), counts=counts)
        dropped_rows = [row for row, _, _ in dropped]
        keep = np.ones(table.num_rows, bool)
        keep[dropped_rows] = False
        removed = take_rows(table, dropped_rows)
        kept = compact(take_rows(table, np.flatnonzero(keep)))
        losses = self._losses(removed, [(score, reason) for _, score, reason in dropped])
        return StepResult(batch.with_data(kept), losses, removed, counts)

    def _verdicts(self, scores: Sequence[ImageScore]) -> list[str | None]:
        try:
            return [self.verdict(score) for score in scores]
        except Exception as error:
            raise ValueError(
                f"filter {self.name!r} of {type(self).__module__}: {error_line(error)}"
            ) from error

    def _losses(self, removed: pa.Table, verdicts: Sequence[tuple[ImageScore, str]]) -> tuple[Loss, ...]:
        places = zip(*(removed.column(name).to_pylist() for name in ("sample_id", "position")), strict=True)
        threshold = self.threshold
        return tuple(
            Loss(sample_id, position, "image", "filtered", self.name, reason, self.measure(score), threshold)
            for (sample_id, position), (score, reason) in zip(places, verdicts, strict=True)
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, int | float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)  # rounded, different settings would look equal
    return str(value)
