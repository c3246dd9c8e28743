"""Filters keep or drop images, texts and samples by their scores. Here is the base class of all.

A filter has a name, settings, an action, and a verdict on scores.

* Settings are fields of a filter that users set in the graph, on the command line and in the UI: `setting`.
* `TextFilter` and `SampleFilter` are the base classes of filters of texts, and of whole samples.
* `Bounds` has the verdict of filters that are nothing but bounds of one score.
* `RowColumns`: columns that a filter looks at beside scores. An image or text has the value of its own row;
  where that is null, the one of its sample's metadata row. A sample has that of its metadata row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.measure import Score
from mm_assets.filters.score_columns import ScoreColumns, looked_up
from mm_assets.filters.scores import SampleScore
from mm_assets.filters.texts import ALWAYS, TEXT, TextScore
from mm_assets.model.errors import MmAssetsError, nearest
from mm_assets.model.nested_types import filled_column
from mm_assets.model.schema import RESERVED_COLUMNS
from mm_assets.storage.errors import error_line


class FilterSettingError(MmAssetsError, ValueError):
    """A setting of filters that cannot be used: its name, and why."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting, self.reason = setting, reason

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


KINDS = (float, int, str, tuple)
SETTING = "setting"
"""Key of a field's metadata with its `FilterSetting`."""


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


def setting(
    name: str, kind: type, default: Any, meaning: str, quantity: str | None = None, compare: bool = True
) -> Any:
    """Declare a field of a filter that users set.

    Args:
        default: the value where only other settings are set.
        compare: whether its value is part of fingerprints.

    Raises:
        TypeError: for a kind that is none of `KINDS`.
    """
    if kind not in KINDS:
        raise TypeError(f"setting {name!r} is of one of {', '.join(k.__name__ for k in KINDS)}, not {kind!r}")
    metadata = {SETTING: FilterSetting(name, kind, meaning, quantity)}
    return field(default=default, metadata=metadata, compare=compare)


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


S = TypeVar("S", bound=Score)

DROP_ITEM, DROP_SAMPLE, FLAG = "drop_item", "drop_sample", "flag"
ACTIONS = (DROP_ITEM, DROP_SAMPLE, FLAG)
"""What becomes of what a filter refuses.

The item goes, the whole sample goes, or it stays and the ledger lists it.
"""


@dataclass(frozen=True)
class Filter(ABC, Generic[S]):
    """Refuses what `verdict` returns a reason for.

    A filter is a frozen dataclass whose fields are settings. See `ScoreFilter` and `SampleFilter`.

    Args:
        action: one of `actions`.
    """

    name: ClassVar[str]
    """Name in the ledger, in the column ``kind``."""

    version: ClassVar[str] = ""
    """Part of the fingerprint of each shard: a new version filters all shards again."""

    actions: ClassVar[tuple[str, ...]]
    """The actions that there are; the first is taken where none is set."""

    is_last: ClassVar[bool] = False
    """Whether a filter of images judges those of samples that all others keep, of texts and samples, too."""

    scores: ClassVar[tuple[str, ...]] = ()
    """Measures that the verdict looks at, beside those that every score has."""

    action: str = field(default="", kw_only=True)

    @abstractmethod
    def verdict(self, score: S) -> str | None:
        """Return why something is refused; None to keep it.

        The reason is a few words, the same for all that are refused for it.
        """

    @property
    @abstractmethod
    def kinds(self) -> tuple[type[Score], ...]:
        """What it judges: images, samples, or both."""

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns of the rows that `judged` looks at, beside scores."""
        return ()

    def judged(self, scores: Sequence[S], columns: pa.Table) -> Sequence[str | None]:
        """Return the verdicts on many scores.

        Args:
            columns: a row for each score, with those of `columns` that the rows have, in their own spelling.
        """
        return self.verdicts(scores)

    def opened(self, statistics: str = "") -> Self:
        """Return the filter with what the files say that its settings name.

        Args:
            statistics: folder with the set-wide statistics of the storage; empty: there is none.
        """
        return self

    def bound(self, verdicts: tuple[str, str | None]) -> Self:
        """Return the filter for one shard.

        Args:
            verdicts: location and digest of the verdicts on duplicates in it.
        """
        return self

    def statistics(self) -> tuple[str, ...]:
        """Return the names of the set-wide statistics that the verdict looks at."""
        return ()

    def refuse_missing_statistics(self) -> None:
        """Refuse to judge without these statistics.

        Raises:
            FilterSettingError: one of them was not computed.
        """

    def fitted(self, shards: Mapping[str, pa.Schema], others: Iterable[pa.Schema], folder: str) -> Self:
        """Return the filter for the rows of some shards; called once, before any of them is filtered.

        Args:
            shards: the columns of each.
            others: those of further shards.
            folder: where what all workers have to read is kept: a folder or URL.

        Raises:
            FilterSettingError: it cannot judge them.
        """
        return self

    def measure(self, score: S) -> float | None:
        """Return the number that the verdict is about, for the ledger's column ``score``."""
        return None

    def needs(self) -> tuple[str, ...]:
        """Return the names of the measures that the verdict looks at."""
        return self.scores

    @property
    def threshold(self) -> str:
        """Settings as text, for the ledger's column ``threshold``; ``1..2`` for bounds."""
        return "..".join(_text(getattr(self, name)) for name in self.settings())

    @classmethod
    @cache  # verdicts name them
    def settings(cls) -> dict[str, FilterSetting]:
        """Return the settings, by field."""
        return {f.name: f.metadata[SETTING] for f in fields(cls) if SETTING in f.metadata}

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], action: str = "") -> Self | None:
        """Return the filter with these values (by setting); None where none of its settings is set."""
        given: dict[str, Any] = {
            name: tuple(value) if known.kind is tuple else value
            for name, known in cls.settings().items()
            if (value := values.get(known.name)) is not None
        }
        return cls(**given, action=action) if given else None

    @classmethod
    def bounds(cls) -> list[tuple[str, str]]:
        """Return the names of the settings that are pairs of bounds: lower, upper."""
        known = {setting.name: setting.quantity for setting in cls.settings().values()}
        pairs = [(f"min_{quantity}", f"max_{quantity}") for quantity in dict.fromkeys(known.values())]
        return [(low, high) for low, high in pairs if low in known and high in known]

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", self.action or self.actions[0])
        if self.action not in self.actions:
            raise ValueError(
                f"the action of filter {self.name!r} is one of {', '.join(self.actions)}, not {self.action!r}"
            )
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

    def verdicts(self, scores: Sequence[S]) -> Sequence[str | None]:
        """Return the verdicts on many scores.

        Raises:
            ValueError: in one line that names filter and module, for an error in `verdict`.
        """
        with self._naming():
            return [self.verdict(score) for score in scores]

    def numbers(self, scores: Sequence[S]) -> Sequence[float | None]:
        """Return the numbers that the verdicts on many scores are about.

        Raises:
            ValueError: in one line that names filter and module, for an error in `measure`.
        """
        with self._naming():
            values = [self.measure(score) for score in scores]
            return [None if value is None else float(value) for value in values]

    def judged_numbers(self, scores: Sequence[S], columns: Callable[[], pa.Table]) -> Sequence[float | None]:
        """Return the numbers that the verdicts of `judged` on many scores are about.

        Args:
            columns: returns the same columns as there, of these scores.
        """
        return self.numbers(scores)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            line = f"filter {self.name!r} of {type(self).__module__}: {error_line(error)}"
            raise ValueError(line) from error


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, int | float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)  # rounded, different settings would look equal
    return str(value)


@dataclass(frozen=True)
class Bounds(Filter[S]):
    """Refuses by one score: below the field ``least``, above the field ``most``; a filter has either or both.

    Something that has no such score does not reach a lower bound. NaN counts as no score.
    """

    of: ClassVar[str]
    """The score."""

    def measure(self, score: S) -> float | None:
        value: float | None = score.get(self.of)
        return value

    def verdict(self, score: S) -> str | None:
        return self.verdicts([score])[0]

    def verdicts(self, scores: Sequence[S]) -> Sequence[str | None]:
        with self._naming():
            values = scores.numbers(self.of) if isinstance(scores, ScoreColumns) else None
            return (
                list(map(self._reason, looked_up(scores, self.of)))
                if values is None
                else self._reasons(values)
            )

    def numbers(self, scores: Sequence[S]) -> Sequence[float | None]:
        with self._naming():
            return [None if value is None else float(value) for value in looked_up(scores, self.of)]

    def _reason(self, value: Any) -> str | None:
        least, most = getattr(self, "least", 0), getattr(self, "most", None)
        if value is None or value != value:
            return f"it has no {self.of}" if least > 0 else None
        if not value >= least:
            return f"less than {self.settings()['least'].name}"
        return f"more than {self.settings()['most'].name}" if most is not None and value > most else None

    def _reasons(self, values: npt.NDArray[np.float64]) -> Sequence[str | None]:
        """Return the same of many values; NaN is none."""
        least, most = getattr(self, "least", 0), getattr(self, "most", math.inf)
        reasons = np.full(len(values), None, object)
        for is_hit in (values > most, values < least, np.isnan(values)):
            if is_hit.any():
                reasons[is_hit] = self._reason(values[is_hit.argmax()])
        return list(reasons.tolist())


def actions_by_filter(filters: Sequence[type[Filter[Any]]], texts: Iterable[str]) -> dict[str, str]:
    """Return the action by filter, of actions that are given as ``filter=action``.

    Raises:
        FilterSettingError: in one line, for an unknown filter or action, or one that is given twice.
    """
    known = {kind.name: kind for kind in filters}
    actions: dict[str, str] = {}
    for text in texts:
        name, _, action = (part.strip() for part in text.partition("="))
        if name not in known:
            raise _action_fault(text, f"there is no filter {name!r}; {nearest(name, known)}")
        if name in actions:
            raise _action_fault(text, f"{name} has one already: {actions[name]}")
        if action not in known[name].actions:
            raise _action_fault(text, f"the action of {name} is one of {', '.join(known[name].actions)}")
        actions[name] = action
    return actions


def _action_fault(text: str, reason: str) -> FilterSettingError:
    return FilterSettingError("filter_actions", f"{text!r}: {reason}")


@dataclass(frozen=True)
class SampleFilter(Filter[SampleScore]):
    """Refuses the samples for which `verdict` returns a reason.

    Images and texts of a sample are counted as the filters of items have left them.
    """

    actions = (DROP_SAMPLE, FLAG)
    kinds = (SampleScore,)


@dataclass(frozen=True)
class TextFilter(Filter[TextScore]):
    """Refuses the text rows for which `verdict` returns a reason.

    Where they are dropped, nothing else changes: positions keep their gaps, samples without texts stay.
    """

    actions = (DROP_ITEM, DROP_SAMPLE, FLAG)
    kinds = (TextScore,)

    def needs(self) -> tuple[str, ...]:
        return (*ALWAYS, *(TEXT + name for name in self.scores))


@dataclass(frozen=True)
class Bound:
    """A bound that is set.

    Args:
        setting: its name for users.
        field: that of the filter.
        value: the present one.
    """

    setting: str
    field: str
    value: float
    is_upper: bool


def bounds_of(judge: Filter[Any]) -> list[Bound]:
    """Return the bounds of a filter that are not at their defaults, which keep everything."""
    defaults = {field.name: field.default for field in fields(judge)}
    return [
        Bound(known.name, name, value, known.is_upper_bound)
        for name, known in judge.settings().items()
        if known.quantity is not None and (value := getattr(judge, name)) != defaults[name]
    ]


_KEY_COLUMNS: Final = ("sample_id", "position", "modality", "materialize_error", "source_ref")
KEYS: Final = ("sample_id", "position", "modality")
"""Columns by which rows are found."""

OF_IMAGES: Final = ("sample_id", "position", "content_type")
"""Reserved columns that filters of images may look at; those of samples see the id alone."""

OF_TEXTS: Final = ("sample_id", "position", "text_content")
"""Those that filters of texts may look at."""

OF_SAMPLES: Final = ("sample_id",)


class AmbiguousName(MmAssetsError, ValueError):
    """A name that is in the wrong case for several columns."""


def spelled(name: str, columns: Iterable[str]) -> str | None:
    """Return a column by its name, in any case if there is only one such; None where there is none.

    Raises:
        AmbiguousName: there are several.
    """
    columns = list(columns)
    if name in columns:
        return name
    alike = [column for column in columns if column.lower() == name.lower()]
    if len(alike) > 1:
        names = " or ".join(map(repr, sorted(alike)))
        raise AmbiguousName(f"{name!r} may be {names}: put it in quotation marks")
    return alike[0] if alike else None


class RowKeys:
    """Keys of the rows of a table: sample, position and modality of each; also its error and source.

    Args:
        table: an interleaved table, or the rows as mappings.
        columns: columns of the rows, for filters that look at any.
    """

    def __init__(
        self, table: pa.Table | Sequence[Mapping[str, Any]], columns: RowColumns | None = None
    ) -> None:
        self._table = table
        self.columns = columns

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return self._rows[row]

    def at(self, rows: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        """Return some rows; where no other has been asked for, no other is looked at."""
        if isinstance(self._table, pa.Table) and "_rows" not in self.__dict__:
            return _row_keys(self._table, rows)
        return [self._rows[row] for row in rows]

    @cached_property
    def is_image(self) -> npt.NDArray[np.bool_]:
        """Whether each row is an image without an error."""
        rows = (row["modality"] == "image" and row["materialize_error"] is None for row in self._rows)
        return np.fromiter(rows, bool, len(self._rows))

    @cached_property
    def samples(self) -> Collection[list[int]]:
        """The rows of each sample."""
        samples: dict[str, list[int]] = {}
        for row, row_key in enumerate(self._rows):
            samples.setdefault(row_key["sample_id"], []).append(row)
        return samples.values()

    @cached_property
    def owners(self) -> npt.NDArray[np.int64]:
        """The number of each row's sample, in the order of `samples`."""
        owners = np.zeros(len(self._rows), np.int64)
        for number, rows in enumerate(self.samples):
            owners[rows] = number
        return owners

    @cached_property
    def _rows(self) -> Sequence[Mapping[str, Any]]:
        if not isinstance(self._table, pa.Table):
            return self._table
        return _row_keys(self._table)


def _row_keys(table: pa.Table, rows: Sequence[int] | None = None) -> list[Mapping[str, Any]]:
    columns = table.select([name for name in _KEY_COLUMNS if name in table.column_names])
    return (columns if rows is None else columns.take(pa.array(rows, pa.int64()))).to_pylist()


class RowColumns:
    """Columns of rows.

    Args:
        table: interleaved rows, whole samples of them, with the columns `KEYS`.
        rows: the row in ``table`` of each item by the number that it is asked for; None: they are the same.
    """

    def __init__(self, table: pa.Table, rows: Sequence[int] | None = None) -> None:
        self._table = table
        self._rows = rows

    def of_items(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Return columns of some items; those that there are not are left out."""
        rows = list(numbers) if self._rows is None else [self._rows[number] for number in numbers]
        own = pa.array(rows, pa.int64())
        found = {}
        for name in self._spelled(names):
            column = self._table.column(name)
            found[name] = _taken(column, own)
            if name not in RESERVED_COLUMNS and found[name].null_count:
                beside = self._metadata_rows(self._table.column("sample_id").take(own))
                found[name] = _taken(column, pc.if_else(found[name].is_valid(), own, beside))
        return _table(found, len(rows))

    def of_samples(self, sample_ids: Sequence[str], names: Sequence[str]) -> pa.Table:
        """Return columns of the metadata rows of some samples; those that there are not are left out."""
        rows = self._metadata_rows(pa.array(sample_ids, pa.string()))
        found = {name: _taken(self._table.column(name), rows) for name in self._spelled(names)}
        if "sample_id" in found:  # also of a sample without such a row
            found["sample_id"] = pa.array(sample_ids, pa.string())
        return _table(found, len(sample_ids))

    def _spelled(self, names: Iterable[str]) -> list[str]:
        found = (spelled(name, self._table.column_names) for name in names)
        return list(dict.fromkeys(name for name in found if name is not None))

    def _metadata_rows(self, sample_ids: Any) -> pa.Array:
        """Return the row of the metadata of each sample; null where there is none."""
        numbers, ids = self._metadata
        at = pc.index_in(sample_ids, value_set=ids)
        at = at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at
        return numbers.take(at)

    @cached_property
    def _metadata(self) -> tuple[pa.Array, pa.Array]:
        """The rows of metadata, and their sample ids."""
        numbers = pc.indices_nonzero(pc.equal(self._table.column("modality"), "metadata")).cast(pa.int64())
        ids = self._table.column("sample_id").take(numbers)
        return numbers, ids.combine_chunks() if ids.num_chunks != 1 else ids.chunk(0)


def _taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    """Return values by their rows; null for null."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    return filled_column(column).take(rows)


def _table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    # One column more than asked for: a table has as many rows as its columns.
    return pa.table({**columns, "": pa.nulls(rows)})
