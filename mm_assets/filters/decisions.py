"""Decisions of several filters about the images and samples of a table, from scores alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from mm_assets.filters.filter import DROP_SAMPLE, FLAG, Filter
from mm_assets.filters.image_score import ImageScore
from mm_assets.filters.sample_scores import SampleScore, SampleScores
from mm_assets.interleaved.losses import Loss

_KEY_COLUMNS = ("sample_id", "position", "modality", "materialize_error", "source_ref")


class Refusal(NamedTuple):
    """What one filter has to say against a row."""

    filter: Filter[Any]
    reason: str
    value: float | None
    is_cause: bool = True

    def loss(self, row_key: Mapping[str, Any]) -> Loss:
        """Return the ledger's entry for the row, given by the columns of `RowKeys`."""
        return Loss(
            row_key["sample_id"],
            row_key["position"],
            row_key["modality"],
            "flagged" if self.filter.action == FLAG else "filtered",
            self.filter.name,
            self.reason,
            self.value,
            self.filter.threshold,
            row_key.get("source_ref"),
            self.is_cause,
        )


@dataclass(frozen=True)
class Decisions:
    """What filters decide about the rows of a table.

    Args:
        refusals: the refusal that drops each dropped row, by row number.
        flags: refusals of rows that stay, with their numbers.
    """

    refusals: Mapping[int, Refusal]
    flags: Sequence[tuple[int, Refusal]]


class RowKeys:
    """Keys of the rows of a table: sample, position and modality of each; also its error and source.

    Args:
        table: an interleaved table, or the rows as mappings.
    """

    def __init__(self, table: pa.Table | Sequence[Mapping[str, Any]]) -> None:
        self._table = table

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return self._rows[row]

    def at(self, rows: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        """Return some rows; where no other has been asked for, no other is looked at."""
        if isinstance(self._table, pa.Table) and "_rows" not in self.__dict__:
            return _row_keys(self._table, rows)
        return [self._rows[row] for row in rows]

    @cached_property
    def _is_image(self) -> Sequence[bool]:
        return [row["modality"] == "image" and row["materialize_error"] is None for row in self._rows]

    @cached_property
    def samples(self) -> Collection[list[int]]:
        """The rows of each sample."""
        samples: dict[str, list[int]] = {}
        for row, row_key in enumerate(self._rows):
            samples.setdefault(row_key["sample_id"], []).append(row)
        return samples.values()

    def images_among(self, rows: Iterable[int]) -> int:
        """Return how many of some rows are images without an error."""
        return sum(map(self._is_image.__getitem__, rows))

    @cached_property
    def _rows(self) -> Sequence[Mapping[str, Any]]:
        if not isinstance(self._table, pa.Table):
            return self._table
        return _row_keys(self._table)


def _row_keys(table: pa.Table, rows: Sequence[int] | None = None) -> list[Mapping[str, Any]]:
    columns = table.select([name for name in _KEY_COLUMNS if name in table.column_names])
    return (columns if rows is None else columns.take(pa.array(rows, pa.int64()))).to_pylist()


class ImageRefusals:
    """What filters have to say against images; each filter is asked once about each.

    Args:
        scores: the scores of the images that can be judged, by row.
    """

    def __init__(self, scores: Mapping[int, ImageScore]) -> None:
        self.scores = scores
        self._known: dict[int, tuple[Filter[ImageScore], Mapping[int, Refusal]]] = {}

    def of(self, judge: Filter[ImageScore]) -> Mapping[int, Refusal]:
        """Return the refusals of one filter, by row in the order of the rows."""
        if id(judge) not in self._known:
            reasons = judge.verdicts(list(self.scores.values()))
            refused = {
                row: Refusal(judge, reason, judge.measure(score))
                for (row, score), reason in zip(self.scores.items(), reasons, strict=True)
                if reason is not None
            }
            self._known[id(judge)] = judge, refused  # with the filter, so that no other gets its id
        return self._known[id(judge)][1]


def decide(
    images: Sequence[Filter[ImageScore]],
    samples: Sequence[Filter[SampleScore]],
    row_keys: RowKeys,
    image_refusals: ImageRefusals,
    sample_scores: Callable[[], SampleScores],
) -> Decisions:
    """Return what filters decide, by the rules of `FilterChain`.

    Args:
        images: filters of images, in order.
        samples: filters of samples, in order.
        row_keys: all rows.
        image_refusals: what filters of images say.
        sample_scores: returns those of the samples; called only if there are filters of samples.
    """
    refusals, flags = _decide_images(images, image_refusals)
    if any(refusal.filter.action == DROP_SAMPLE for refusal in refusals.values()):
        refusals |= _lost_with_samples(row_keys, refusals)
    if samples:
        more, sample_flags = _decide_samples(samples, row_keys, refusals, sample_scores())
        refusals |= more
        flags += sample_flags
    return Decisions(refusals, [(row, refusal) for row, refusal in flags if row not in refusals])


def _decide_images(
    filters: Sequence[Filter[ImageScore]], image_refusals: ImageRefusals
) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
    """Return the refusal that decides about each refused image, by row, and all flags with their rows."""
    refusals: dict[int, Refusal] = {}
    flags: list[tuple[int, Refusal]] = []
    # Those that drop samples come first: an image that another one drops must not hide from them.
    for judge in sorted(filters, key=lambda judge: judge.action != DROP_SAMPLE):
        if judge.action == FLAG:
            flags += image_refusals.of(judge).items()
        else:
            refusals = {**image_refusals.of(judge), **refusals}
    return refusals, flags


def _lost_with_samples(row_keys: RowKeys, refusals: Mapping[int, Refusal]) -> dict[int, Refusal]:
    """Return the refusals of all rows of the samples that an image takes with it, by row."""
    lost: dict[int, Refusal] = {}
    for rows in row_keys.samples:
        causes = [row for row in rows if row in refusals and refusals[row].filter.action == DROP_SAMPLE]
        if causes:
            first = refusals[causes[0]]
            beside = first._replace(reason=f"an image of its sample: {first.reason}", is_cause=False)
            lost |= dict.fromkeys(rows, beside) | {row: refusals[row] for row in causes}
    return lost


def _decide_samples(
    filters: Sequence[Filter[SampleScore]],
    row_keys: RowKeys,
    lost: Mapping[int, Refusal],
    known: SampleScores,
) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
    """Return the refusals of all rows of refused samples, by row, and the flags of samples that stay."""
    samples = [left for rows in row_keys.samples if (left := [row for row in rows if row not in lost])]
    scores = [
        _with_images(known.of(str(row_keys[rows[0]]["sample_id"])), row_keys.images_among(rows))
        for rows in samples
    ]
    refusals: dict[int, Refusal] = {}
    flags: list[tuple[int, Refusal]] = []
    for judge in sorted(filters, key=lambda judge: judge.action == FLAG):
        open_ = [index for index, rows in enumerate(samples) if rows[0] not in refusals]
        for index, reason in zip(open_, judge.verdicts([scores[i] for i in open_]), strict=True):
            if reason is None:
                continue
            refusal = Refusal(judge, reason, judge.measure(scores[index]))
            first, *others = samples[index]
            if judge.action == FLAG:
                flags.append((first, refusal))
            else:
                refusals[first] = refusal
                refusals |= dict.fromkeys(others, refusal._replace(is_cause=False))
    return refusals, flags


def _with_images(score: SampleScore, images: int) -> SampleScore:
    return score if score.images == images else replace(score, images=images)
