"""Conditions over scores, written as in SQL, and the filters that apply them.

DuckDB parses and evaluates a condition. It can only look at the scores: what it may consist of is listed here
(`_PARTS`, `_FUNCTIONS`), and DuckDB opens no files.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.chain import SampleFilter, ScoreFilter, TextFilter
from mm_assets.filters.filter import Filter, FilterSettingError, S, setting
from mm_assets.filters.measure import Score
from mm_assets.filters.measures import known_measures
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.texts import TextScore
from mm_assets.model.errors import MmAssetsError, nearest

_PARTS: Final = frozenset(
    {
        *("CONJUNCTION", "COMPARISON", "OPERATOR", "BETWEEN", "CASE", "CAST", "TYPE"),
        *("CONSTANT", "COLUMN_REF", "FUNCTION"),
    }
)
_FUNCTIONS: Final = frozenset(
    {
        *("+", "-", "*", "/", "//", "%", "~~", "!~~", "~~*", "!~~*", "like_escape", "not_like_escape"),
        *("abs", "ceil", "floor", "round", "sqrt", "ln", "log10", "greatest", "least"),
        *("lower", "upper", "length", "contains", "starts_with", "ends_with", "prefix", "suffix"),
        *("regexp_matches", "regexp_full_match"),
    }
)
_TRUTH: Final = frozenset({"BOOLEAN", '"NULL"'})  # types of what may be a condition
_MOST_CHARACTERS: Final = 10_000


class ConditionError(MmAssetsError, ValueError):
    """A condition that cannot be used; the message says why."""


def columns_of(condition: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of the scores that a condition looks at, sorted.

    Args:
        condition: text, such as ``width >= 200 and format != 'gif'``.
        known: names of the scores that there are.

    Raises:
        ConditionError: it cannot be parsed, names another score, or has a part that is not allowed.
    """
    if not condition.strip():
        raise ConditionError("it is empty")
    if len(condition) > _MOST_CHARACTERS:
        raise ConditionError(f"it has more than {_MOST_CHARACTERS} characters")
    found = set()
    for part in _parts(_parsed(condition)):
        if part["class"] not in _PARTS:
            raise ConditionError(
                f"it has a part that is not allowed: {part['class'].lower().replace('_', ' ')}"
            )
        if part["class"] == "FUNCTION" and part["function_name"].lower() not in _FUNCTIONS:
            if part["function_name"] == "row":
                raise ConditionError("it is not one condition")
            raise ConditionError(f"the function {part['function_name']!r} is not allowed")
        if part["class"] == "COLUMN_REF":
            name = ".".join(part["column_names"]).lower()  # as in SQL
            if name not in known:
                raise ConditionError(f"there is no score {name!r}; {nearest(name, sorted(known))}")
            found.add(name)
    return tuple(sorted(found))


def refuse_other_than_condition(condition: str, scores: pa.Schema) -> None:
    """Refuse an expression that comes to a number or a text, or does not fit the types of the scores.

    Raises:
        ConditionError: it is no condition.
    """
    # One row, of nulls: what fails for it whatever the scores are fails here, and not in every shard.
    table = pa.table({"": pa.nulls(1), **{field.name: pa.nulls(1, field.type) for field in scores}})
    ((_, kind, *_),) = _queried("describe select {} from scores", condition, table)
    if kind not in _TRUTH:
        raise ConditionError(f"it is neither true nor false, but of type {kind}: compare it with something")
    _queried("select {} from scores", condition, table)


def evaluate(condition: str, scores: pa.Table) -> Sequence[bool]:
    """Return whether a condition holds, for each row of a table of scores.

    A condition that comes to null does not hold, nor does one that cannot be computed for a row. NaN counts
    as null: it would be greater than all numbers.

    Raises:
        ConditionError: it does not fit the types of the scores.
    """
    known = [_without_nan(column) for column in scores.columns]
    table = pa.table(known, names=scores.column_names)
    return [keep is True for (keep,) in _queried("select try(({})::boolean) from scores", condition, table)]


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), None, column)


def _queried(query: str, condition: str, scores: pa.Table) -> list[Any]:
    with _cursor() as cursor:
        cursor.register("scores", scores)
        return list(cursor.execute(query.format(_bracketed(condition))).fetchall())


@contextmanager
def _cursor() -> Iterator[Any]:
    """A connection to the database, whose errors are one line.

    Raises:
        ConditionError: for an error of the database.
    """
    import duckdb

    cursor = _database().cursor()
    try:
        yield cursor
    except duckdb.Error as error:
        raise ConditionError(_first_line(str(error))) from error
    finally:
        cursor.close()


def _parsed(condition: str) -> Any:
    """Return the tree of a condition, which must be one by itself and between brackets."""
    node = _selected(f"\n{condition}\n")
    others = ("where_clause", "having", "qualify", "sample")
    if (
        node["type"] != "SELECT_NODE"
        or node["from_table"]["type"] != "EMPTY"
        or len(node["select_list"]) > 1
        or node["modifiers"]
        or node["group_expressions"]
        or any(node[name] for name in others)
    ):
        raise ConditionError("it is not one condition")
    _selected(_bracketed(condition))
    return node["select_list"][0]


def _selected(expression: str) -> Any:
    with _cursor() as cursor:
        ((text,),) = cursor.execute("select json_serialize_sql(?)", [f"select {expression}"]).fetchall()
    answer = json.loads(text)
    if answer["error"] and answer["error_type"] == "parser":
        raise ConditionError(_first_line(answer["error_message"]))
    if answer["error"] or len(answer["statements"]) != 1:
        raise ConditionError("it is not one condition")
    return answer["statements"][0]["node"]


def _bracketed(condition: str) -> str:
    # On a line of its own: a comment cannot take the bracket behind it away.
    return f"(\n{condition}\n)"


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node of a parsed expression."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _parts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _parts(value)


def _first_line(text: str) -> str:
    # Behind "Use …", DuckDB gives advice that cannot be followed here.
    return " ".join(text.partition("\n")[0].partition(". Use ")[0].split())


@cache
def _database() -> Any:
    """Return a database of this process, in memory, that can read nothing else."""
    import duckdb

    database = duckdb.connect(":memory:", config={"threads": "1"})
    database.execute("set enable_external_access = false").fetchall()
    database.execute("set global error_on_division_by_zero = false").fetchall()  # null, as in SQL elsewhere
    database.execute("set lock_configuration = true").fetchall()
    # DuckDB complains of what is left when a process ends that still has another thread.
    atexit.register(_database.cache_clear)
    return database


_REFUSED = "the condition does not hold"


@dataclass(frozen=True)
class Condition(Filter[S]):
    """Refuses that for which the field ``condition`` does not hold."""

    kind: ClassVar[type[Score]]
    """What it judges."""

    condition = ""

    _names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def types(cls) -> dict[str, pa.DataType]:
        """Return the types of all scores by name."""
        known = known_measures()
        return cls.kind.types(known.images if cls.kind is ImageScore else known.samples)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            types = self.types()
            names = columns_of(self.condition, types)
            refuse_other_than_condition(self.condition, pa.schema([(name, types[name]) for name in names]))
        except ConditionError as error:
            raise self._fault(error) from error
        # Goes with the filter to workers, which may know neither settings nor plugins.
        object.__setattr__(self, "_names", names)

    def needs(self) -> tuple[str, ...]:
        return tuple(measure for name in self._names for measure in self.kind.needed(name))

    def verdict(self, score: S) -> str | None:
        return self.verdicts([score])[0]

    def verdicts(self, scores: Sequence[S]) -> Sequence[str | None]:
        if not scores:
            return []
        # A table has as many rows as its columns: one more, for a condition that looks at none.
        columns = {name: [score.get(name) for score in scores] for name in self._names}
        table = pa.table({**columns, "": pa.nulls(len(scores))})
        try:
            holds = evaluate(self.condition, table)
        except ConditionError as error:
            raise self._fault(error) from error
        return [None if keep else _REFUSED for keep in holds]

    def _fault(self, error: ConditionError) -> FilterSettingError:
        return FilterSettingError(self.settings()["condition"].name, f"{self.condition!r}: {error}")


@dataclass(frozen=True)
class ImageCondition(Condition[ImageScore], ScoreFilter):
    """Keeps the images for which a condition holds."""

    name = "keep_images"
    kind = ImageScore

    condition: str = setting(
        "keep_images",
        str,
        "true",
        "condition for the images that are kept, such as \"width >= 200 and format != 'gif'\"",
    )


@dataclass(frozen=True)
class TextCondition(Condition[TextScore], TextFilter):
    """Keeps the texts for which a condition holds."""

    name = "keep_texts"
    kind = TextScore

    condition: str = setting(
        "keep_texts",
        str,
        "true",
        'condition for the texts that are kept, such as "words >= 4 and special_characters <= 0.3"',
    )


@dataclass(frozen=True)
class SampleCondition(Condition[SampleScore], SampleFilter):
    """Keeps the samples for which a condition holds."""

    name = "keep_samples"
    kind = SampleScore

    condition: str = setting(
        "keep_samples",
        str,
        "true",
        'condition for the samples that are kept, such as "words >= 20 and images > 0"',
    )
