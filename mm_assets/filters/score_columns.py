"""Scores as columns, for filters that judge many at once: each column is made once, whoever asks for it.

* `ScoreColumns`: scores of images; `TextScoreColumns` those of texts, `SampleScoreColumns` those of samples.
* `RemainingSamples`: scores of samples after filters of items, of the items that are left. They are added up
  in columns, and made one by one only for who looks at one.
* `looked_up`: one score of each, of these and of any other sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.measure import Score
from mm_assets.filters.scores import SampleScore, SampleScores
from mm_assets.filters.texts import OF_TEXTS, TEXT, TextScore, needed

S = TypeVar("S", bound=Score)
Numbers = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_CHARACTERS: Final = "characters"
_EXACT: Final = 2**53  # integers below it are numbers of 64 bits


class ScoreColumns(Sequence[S], Generic[S]):
    """Scores, and their columns once they are asked for.

    Args:
        scores: of images, of texts, or of samples.
    """

    def __init__(self, scores: Sequence[S]) -> None:
        self._scores = scores
        self._columns: dict[str, Sequence[Any]] = {}
        self._numbers: dict[str, Numbers | None] = {}

    def __len__(self) -> int:
        return len(self._scores)

    @overload
    def __getitem__(self, at: int) -> S: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[S]: ...
    def __getitem__(self, at: int | slice) -> S | Sequence[S]:
        return self._scores[at]

    def column(self, name: str) -> Sequence[Any]:
        """Return a score of each by its name; None for one that has none."""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return self._columns[name]

    def numbers(self, name: str) -> Numbers | None:
        """Return the same as numbers, NaN for none; None where they are no numbers of 64 bits."""
        if name not in self._numbers:
            self._numbers[name] = self._as_numbers(name)
        return self._numbers[name]

    def some(self, rows: Rows) -> ScoreColumns[S]:
        """Return some of them, by their numbers."""
        return _Some(self, rows)

    def _column(self, name: str) -> Sequence[Any]:
        return [score.get(name) for score in self._scores]

    def _as_numbers(self, name: str) -> Numbers | None:
        values = self.column(name)
        kinds = set(map(type, values))
        if not kinds <= {int, float, type(None)}:
            return None
        found = np.array([np.nan if value is None else value for value in values], np.float64)
        is_exact = int not in kinds or np.abs(found).max(initial=0, where=~np.isnan(found)) < _EXACT
        return found if is_exact else None


class TextScoreColumns(ScoreColumns[TextScore]):
    """Scores of texts: those of a sample have the same arrays, which are taken as they are."""

    @cached_property
    def _samples(self) -> Sequence[Mapping[str, Any]] | None:
        """The values of each sample; None where not all of its texts are there, in their order."""
        samples: list[Mapping[str, Any]] = []
        lengths: list[int] = []
        for score in self._scores:
            if samples and score.values is samples[-1] and score.index == lengths[-1]:
                lengths[-1] += 1
            elif score.index == 0:
                samples.append(score.values)
                lengths.append(1)
            else:
                return None
        values = ([len(one) for one in sample.values() if isinstance(one, np.ndarray)] for sample in samples)
        is_whole = all(set(found) <= {length} for found, length in zip(values, lengths, strict=True))
        return samples if is_whole else None

    def _as_numbers(self, name: str) -> Numbers | None:
        known = name if name.startswith(TEXT) else TEXT + name
        parts: list[Any] = [sample.get(known) for sample in self._samples or ()]
        if not parts or not all(isinstance(part, np.ndarray) and part.dtype.kind in "fi" for part in parts):
            return super()._as_numbers(name)
        return np.concatenate(parts).astype(np.float64)


def text_scores(table: pa.Table, samples: SampleScores) -> dict[int, TextScore]:
    """Return the scores of the texts of a table, by row.

    Raises:
        ValueError: a sample has other texts than were scored: table and scores do not belong together.
    """
    is_text = pc.and_(pc.equal(table.column("modality"), "text"), pc.is_valid(table.column("text_content")))
    rows = pc.indices_nonzero(pc.and_(is_text, pc.is_null(table.column("materialize_error"))))
    by_sample: dict[str, list[int]] = {}
    for row, sample_id in zip(
        rows.to_pylist(), table.column("sample_id").take(rows).to_pylist(), strict=True
    ):
        by_sample.setdefault(sample_id, []).append(row)
    found: dict[int, TextScore] = {}
    for sample_id, texts in by_sample.items():
        score = samples.of(sample_id)
        if score.texts != len(texts):
            raise ValueError(
                f"sample {sample_id!r}: scores of {score.texts} texts, but it has {len(texts)}; "
                f"materialize {samples.asset} again"
            )
        found.update((row, score.text(index)) for index, row in enumerate(texts))
    return dict(sorted(found.items()))


class SampleScoreColumns(ScoreColumns[SampleScore]):
    """Scores of samples: those that follow from their texts are added up at once."""

    def _as_numbers(self, name: str) -> Numbers | None:
        if name in OF_TEXTS:
            return _added_up(name, self._of_texts, self._owners, len(self))
        return super()._as_numbers(name)

    @cached_property
    def _owners(self) -> Rows:
        texts = [len(score.values.get(f"{TEXT}words", ())) for score in self._scores]
        return np.repeat(np.arange(len(self)), texts)

    def _of_texts(self, name: str) -> Numbers | None:
        parts: list[Any] = [score.values.get(name) for score in self._scores]
        is_sound = all(isinstance(part, np.ndarray) and part.dtype.kind in "fi" for part in parts)
        return np.concatenate([np.zeros(0), *parts]) if is_sound else None


class _Some(ScoreColumns[S]):
    def __init__(self, whole: ScoreColumns[S], rows: Rows) -> None:
        super().__init__(range(len(rows)))  # type: ignore[arg-type]
        self._whole = whole
        self._rows = rows

    @overload
    def __getitem__(self, at: int) -> S: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[S]: ...
    def __getitem__(self, at: int | slice) -> S | Sequence[S]:
        if isinstance(at, slice):
            return [self._whole[row] for row in self._rows[at].tolist()]
        return self._whole[int(self._rows[at])]

    def _column(self, name: str) -> Sequence[Any]:
        whole = self._whole.column(name)
        return [whole[row] for row in self._rows.tolist()]

    def _as_numbers(self, name: str) -> Numbers | None:
        whole = self._whole.numbers(name)
        return None if whole is None else whole[self._rows]


def looked_up(scores: Sequence[Any], name: str) -> Sequence[Any]:
    """Return a score of each by its name; None for one that has none."""
    return scores.column(name) if isinstance(scores, ScoreColumns) else [score.get(name) for score in scores]


class RemainingSamples(_Some[SampleScore]):
    """The scores of some samples, of what filters of items have left of them.

    Args:
        whole: those of all samples.
        rows: the samples of which anything is left, by their numbers.
        images: how many images each of these has.
        texts: the scores of all texts; None where no filter of texts was asked, so that all are left.
        owners: of each text that is left, the number of its sample among these; with ``places``, its number
            among all texts.
    """

    def __init__(
        self,
        whole: ScoreColumns[SampleScore],
        rows: Rows,
        images: Rows,
        texts: ScoreColumns[TextScore] | None,
        owners: Rows,
        places: Rows,
    ) -> None:
        super().__init__(whole, rows)
        self._images = images
        self._texts = texts
        self._owners, self._places = owners, places

    @overload
    def __getitem__(self, at: int) -> SampleScore: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SampleScore]: ...
    def __getitem__(self, at: int | slice) -> SampleScore | Sequence[SampleScore]:
        if isinstance(at, slice):
            return [self[row] for row in range(len(self))[at]]
        texts = None if self._texts is None else self._indices[range(len(self))[at]]
        return super().__getitem__(at).left(int(self._images[at]), texts)

    @cached_property
    def _indices(self) -> Sequence[list[int]]:
        """The texts that are left of each sample, by their place in it."""
        assert self._texts is not None
        found: list[list[int]] = [[] for _ in range(len(self))]
        for owner, place in zip(self._owners.tolist(), self._places.tolist(), strict=True):
            found[owner].append(self._texts[place].index)
        return found

    @cached_property
    def _words(self) -> Rows | None:
        """The words of each: counted anew where texts are gone."""
        words = np.array(super()._column("words"), np.int64)
        if self._texts is None:
            return words
        of_texts = self._texts.numbers(f"{TEXT}words")
        if of_texts is None:
            return None
        of_texts = of_texts[self._places]
        is_whole = self._count == np.array(super()._column("texts"), np.int64)
        if np.isnan(of_texts[~is_whole[self._owners]]).any():
            return None
        left = np.bincount(self._owners, np.nan_to_num(of_texts), len(self))
        return np.where(is_whole, words, left.astype(np.int64))

    @cached_property
    def _count(self) -> Rows:
        return np.bincount(self._owners, minlength=len(self)).astype(np.int64)

    def _column(self, name: str) -> Sequence[Any]:
        if self._is_kept(name) and name not in OF_TEXTS:
            return super()._column(name)
        found = self.numbers(name)
        if found is None:
            return [score.get(name) for score in self]
        kind = SampleScore.types(())[name]
        if pa.types.is_integer(kind):
            return list(found.astype(np.int64).tolist())
        return [None if one != one else one for one in found.tolist()]

    def _as_numbers(self, name: str) -> Numbers | None:
        if self._is_kept(name):
            return super()._as_numbers(name)
        if name == "images":
            return self._images.astype(np.float64)
        if name == "texts":
            return self._count.astype(np.float64)
        if name in OF_TEXTS:
            return _added_up(name, self._of_texts, self._owners, len(self))
        words = self._words if name in ("words", "images_per_word") else None
        if words is None:
            return None
        return words.astype(np.float64) if name == "words" else self._images / np.maximum(words, 1)

    def _is_kept(self, name: str) -> bool:
        """Return whether a score is the same, whatever is left: a measure of the whole sample."""
        if name in ("texts", "words") or name in OF_TEXTS:
            return self._texts is None
        return not name.startswith(TEXT) and name not in ("images", "images_per_word")

    def _of_texts(self, name: str) -> Numbers | None:
        found = None if self._texts is None else self._texts.numbers(name)
        return None if found is None else found[self._places]


def _added_up(
    name: str, values: Callable[[str], Numbers | None], owners: Rows, samples: int
) -> Numbers | None:
    """Return `of_texts` of many samples; NaN for none. None where the values are not all numbers.

    Args:
        values: returns the values of all texts, by measure.
        owners: the sample of each text.
        samples: how many there are.
    """
    columns = [values(known) for known in needed(name)]
    if any(column is None or len(column) != len(owners) for column in columns):
        return None
    share, *factors = (column for column in columns if column is not None)
    if name == _CHARACTERS:
        return None if np.isnan(share).any() else np.bincount(owners, share, samples).astype(np.float64)
    is_known = ~np.isnan(share)
    share, owners = share[is_known], owners[is_known]
    with np.errstate(all="ignore"):
        whole = np.rint(math.prod(factor[is_known] for factor in factors))
        is_of_marks = name == "punctuation"  # by words and marks: the marks are in what it is a share of
        part = np.rint(whole * share / (1 - share) if is_of_marks else share * whole)
    if not (np.isfinite(whole).all() and np.isfinite(part).all()):
        return None  # looked at one by one, they say what is wrong
    total = np.bincount(owners, whole + part if is_of_marks else whole, samples)
    parts = np.bincount(owners, part, samples)
    return np.divide(parts, total, out=np.full(samples, np.nan), where=total != 0)
