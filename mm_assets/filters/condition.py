"""Conditions over scores and columns, written as in SQL, and the filters that apply them.

DuckDB parses and evaluates a condition. It can only look at the columns that it is given, those that the
condition names: what a condition may consist of is listed here (`_PARTS`, `_FUNCTIONS`), and DuckDB opens no
files.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import chain
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters import (
    OF_IMAGES,
    OF_SAMPLES,
    OF_TEXTS,
    AmbiguousName,
    Filter,
    FilterSettingError,
    S,
    SampleFilter,
    TextFilter,
    setting,
    spelled,
)
from mm_assets.filters.chain import ScoreFilter
from mm_assets.filters.measure import Score
from mm_assets.filters.measures import known_measures
from mm_assets.filters.score_columns import looked_up
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.set_statistics import (
    TYPES,
    StatisticError,
    StatisticsFile,
    ending_of,
    not_computed,
    score_or_column,
    statistic_name,
)
from mm_assets.filters.texts import TextScore
from mm_assets.model.errors import MmAssetsError, nearest
from mm_assets.model.samples import LATER_FIELD
from mm_assets.model.schema import INTERLEAVED_SCHEMA, RESERVED_COLUMNS

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
        *("regexp_matches", "regexp_full_match", "regexp_extract", "split_part", "trim"),
        *("len", "array_length", "list_contains"),  # and ``tags[1]``, ``'x' in tags``
        *("->>", "json_extract_string", "json_array_length"),
        *("year", "month", "day", "date_part"),
        "domain",
    }
)
HOST: Final = r"(?i)^(?:https?|ftp)://(?:[^/?#@]*@)?(?:www\.)?(?P<host>[^/:?#\s]+)"
"""Finds the domain in the URL of a page, for RE2."""
_TRUTH: Final = frozenset({"BOOLEAN", '"NULL"'})  # types of what may be a condition
_MOST_CHARACTERS: Final = 10_000


class ConditionError(MmAssetsError, ValueError):
    """A condition that cannot be used; the message says why."""


Path = tuple[str, ...]
"""A column, and names of fields inside it, as a condition has them."""


def paths_in(condition: str) -> list[Path]:
    """Return what a condition looks at, sorted.

    Args:
        condition: text, such as ``width >= 200 and meta.lang = 'en'``.

    Raises:
        ConditionError: it cannot be parsed, or has a part that is not allowed.
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
            found.add(tuple(part["column_names"]))
    return sorted(found)


def refuse_other_than_condition(condition: str, columns: pa.Schema) -> None:
    """Refuse an expression that comes to a number or a text, or does not fit the types of the columns.

    Raises:
        ConditionError: it is no condition.
    """
    # One row, of nulls: what fails for it whatever the scores are fails here, and not in every shard.
    table = pa.table({"": pa.nulls(1), **{column.name: pa.nulls(1, column.type) for column in columns}})
    ((_, kind, *_),) = _queried("describe select {} from {}", condition, table)
    if kind not in _TRUTH:
        raise ConditionError(f"it is neither true nor false, but of type {kind}: compare it with something")
    _queried("select {} from {}", condition, table)


def evaluate(condition: str, columns: pa.Table) -> Sequence[bool]:
    """Return whether a condition holds, for each row of a table of scores and other columns.

    A condition that comes to null does not hold, nor does one that cannot be computed for a row. NaN counts
    as null, also one of a list or struct, or that comes up in between: it would be greater than all numbers.
    So do a division by zero, and ``ln`` or ``sqrt`` of a number that has none.

    Raises:
        ConditionError: it does not fit the types of the columns.
    """
    known = [_without_nan(column) for column in columns.columns]
    table = pa.table(known, names=columns.column_names)
    return [keep is True for (keep,) in _queried("select try(({})::boolean) from {}", condition, table)]


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), None, column)


_VIEW: Final = "rows that are judged"  # no column's name: it would come before that of the column


def _queried(query: str, condition: str, columns: pa.Table) -> list[Any]:
    with _cursor() as cursor:
        cursor.register(_VIEW, pa.table(list(map(_of_duckdb, columns.columns)), columns.column_names))
        return list(cursor.execute(query.format(_guarded(condition), f'"{_VIEW}"')).fetchall())


_GUARD: Final = "null if nan"  # a macro of the database; no condition may call it
_MADE: Final = frozenset(
    {"FUNCTION", "CAST", "CASE", "OPERATOR"}
)  # what may come to NaN; and fields of structs


@lru_cache(maxsize=256)
def _guarded(condition: str) -> str:
    """Return a condition, between brackets, in which NaN is null wherever something is compared."""
    tree = _parsed(condition)
    guarded = [_guard(part, name) for part in list(_parts(tree)) for name in part]
    if not any(guarded):
        return _bracketed(condition)
    with _cursor() as cursor:
        ((text,),) = cursor.execute("select json_serialize_sql('select true')").fetchall()
        answer = json.loads(text)
        answer["statements"][0]["node"]["select_list"] = [tree]
        ((text,),) = cursor.execute("select json_deserialize_sql(?)", [json.dumps(answer)]).fetchall()
    return _bracketed(text.removeprefix("SELECT "))


def _guard(part: dict[str, Any], name: str) -> bool:
    """Guard what a part compares under this name of its node; return whether it does."""
    values = part[name]
    if part["class"] in ("COMPARISON", "BETWEEN") and isinstance(values, dict):
        part[name] = _without_nan_of(values)
        return part[name] is not values
    compares = part["class"] == "OPERATOR" and part["type"] in _COMPARING and name == "children"
    if compares:
        part[name] = [_without_nan_of(value) for value in values]
        return any(new is not old for new, old in zip(part[name], values, strict=True))
    if part["class"] == "FUNCTION" and name == "arguments" and part["function_name"].lower() in _LARGEST:
        found = [argument["expression"] for argument in values]
        for argument in values:
            argument["expression"] = _without_nan_of(argument["expression"])
        return any(argument["expression"] is not old for argument, old in zip(values, found, strict=True))
    return False


_COMPARING: Final = frozenset(
    {
        *("COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"),
        *("OPERATOR_COALESCE", "OPERATOR_NULLIF"),
    }
)
_LARGEST: Final = frozenset({"greatest", "least"})


def _without_nan_of(tree: dict[str, Any]) -> dict[str, Any]:
    is_field = tree["class"] == "COLUMN_REF" and len(tree["column_names"]) > 1
    if tree["class"] not in _MADE and not is_field:
        return tree
    call = _selected(f'"{_GUARD}"(1)')["select_list"][0]
    call["arguments"][0]["expression"] = tree
    return call  # type: ignore[no-any-return]


def _of_duckdb(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a type that DuckDB has: text for JSON, times in UTC without a zone."""
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type_.storage_type)
    elif pa.types.is_timestamp(type_) and type_.tz is not None:
        column = column.cast(pa.timestamp(type_.unit))
    elif pa.types.is_float16(type_):
        column = column.cast(pa.float32())
    return column


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
    line = " ".join(text.partition("\n")[0].partition(". Use ")[0].split())
    return f"{line}; JSON is text here: write name->>'field'" if "Cannot extract field" in line else line


@cache
def _database() -> Any:
    """Return a database of this process, in memory, that can read nothing else."""
    import duckdb

    database = duckdb.connect(":memory:", config={"threads": "1"})
    database.execute("set enable_external_access = false").fetchall()
    database.execute("set global error_on_division_by_zero = false").fetchall()  # null, as in SQL elsewhere
    database.execute("set global ieee_floating_point_ops = false").fetchall()  # the same of floats
    for name in ("ln", "log10", "sqrt"):
        database.execute(f"create macro {name}(x) as try(system.main.{name}(x))").fetchall()
    host = f"regexp_extract(lower(url), '{HOST}', 1)"
    database.execute(f"create macro domain(url) as nullif({host}, '')").fetchall()
    is_nan = "typeof(v) in ('FLOAT', 'DOUBLE') and v::varchar in ('nan', '-nan')"
    # As a list: the argument is there once, however deep the calls are nested.
    guard = f"list_extract(list_filter([x], lambda v: not ({is_nan})), 1)"
    database.execute(f'create macro "{_GUARD}"(x) as {guard}').fetchall()
    database.execute("set global TimeZone = 'UTC'").fetchall()  # else that of the machine
    database.execute("set lock_configuration = true").fetchall()
    # DuckDB complains of what is left when a process ends that still has another thread.
    atexit.register(_database.cache_clear)
    return database


_REFUSED = "the condition does not hold"


@dataclass(frozen=True)
class Condition(Filter[S]):
    """Refuses that for which the field ``condition`` does not hold.

    A name is that of a score, else of a set-wide statistic of a score or column, else of a column.

    Args:
        column_types: types of the columns that it looks at, as shards have them: for one that lacks a column.
        statistics_file: the statistics of the set, if it looks at any and they were computed.
    """

    kind: ClassVar[type[Score]]
    """What it judges."""

    reserved: ClassVar[Sequence[str]]
    """Reserved columns that it may look at."""

    condition = ""
    column_types: pa.Schema | None = field(default=None, kw_only=True, compare=False, repr=False)
    statistics_file: StatisticsFile | None = field(
        default=None, kw_only=True, repr=False, metadata={LATER_FIELD: True}
    )

    _names: ClassVar[tuple[str, ...]] = ()
    _statistics: ClassVar[tuple[str, ...]] = ()
    _paths: ClassVar[tuple[Path, ...]] = ()

    @classmethod
    def types(cls) -> dict[str, pa.DataType]:
        """Return the types of all scores by name."""
        known = known_measures()
        return cls.kind.types(known.images if cls.kind is ImageScore else known.samples)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            types = self.types()
            paths = paths_in(self.condition)
            names = {path[0].lower() for path in paths if path[0].lower() in types}  # as in SQL
            others = [path for path in paths if path[0].lower() not in types]
            statistics = sorted({path[0] for path in others if ending_of(path[0].lower()) is not None})
            for statistic in statistics:
                of = score_or_column(statistic)
                names.update([of.lower()] if of.lower() in types else [])
                others = [path for path in others if path[0] != statistic]
                others += [(of,)] if of.lower() not in types and (of,) not in others else []
            for first, *_ in others:
                if first.lower() in RESERVED_COLUMNS and first.lower() not in self.reserved:
                    raise ConditionError(f"the column {first!r} cannot be used")
            # Goes with the filter to workers, which may know neither settings nor plugins.
            object.__setattr__(self, "_names", tuple(sorted(names)))
            object.__setattr__(self, "_paths", tuple(others))
            object.__setattr__(self, "_statistics", tuple(statistics))
            if all(path[0].lower() in self.reserved for path in others):
                self._refuse_misfit({})  # else only the schemas of shards can tell
        except ConditionError as error:
            raise self._fault(error) from error

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), *(measure for name in self._names for measure in self.kind.needed(name)))

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path[0] for path in self._paths))

    def statistics(self) -> tuple[str, ...]:
        return tuple(map(self._statistic_name, self._statistics))

    def opened(self, statistics: str = "") -> Self:
        return (
            replace(self, statistics_file=StatisticsFile.newest(statistics))
            if self._statistics and statistics
            else self
        )

    def refuse_missing_statistics(self) -> None:
        known = {} if self.statistics_file is None else self.statistics_file.read().counted
        for statistic in self.statistics():
            if statistic not in known:
                raise self._fault(StatisticError(not_computed(statistic)))

    def fitted(self, shards: Mapping[str, pa.Schema], others: Iterable[pa.Schema], folder: str) -> Self:
        """Return the filter with the types of its columns.

        Raises:
            FilterSettingError: no shard has a column of this name, or the condition does not fit its type.
        """
        if not self._paths or not shards:
            return self
        every = [*shards.items(), *(("", schema) for schema in others)]
        by_shard: dict[str, dict[str, pa.DataType]] = {}
        known: dict[str, pa.DataType] = {}
        try:
            names = set(chain.from_iterable(schema.names for _, schema in every))
            names = names.difference(RESERVED_COLUMNS).union(self.reserved)
            for name in self.columns():
                if spelled(name, names) is None:
                    there_are = sorted({*self.types(), *names})
                    raise ConditionError(f"no shard has a column {name!r}; {nearest(name, there_are)}")
            for key, schema in every:
                by_shard[key] = self._types_in(schema)
                for name, type_ in by_shard[key].items():
                    known.setdefault(name, type_)
        except (ConditionError, AmbiguousName) as error:
            raise self._fault(error) from error
        made = replace(self, column_types=pa.schema(list(known.items())))
        first_of: dict[tuple[tuple[str, pa.DataType], ...], str] = {}
        for key in sorted(shards):
            first_of.setdefault(tuple(by_shard[key].items()), key)
        for types, key in first_of.items():
            try:
                made._refuse_misfit(dict(types))
            except ConditionError as error:
                raise self._fault(ConditionError(f"shard {key!r}: {error}")) from error
        return made

    def verdict(self, score: S) -> str | None:
        return self.verdicts([score])[0]

    def verdicts(self, scores: Sequence[S]) -> Sequence[str | None]:
        return self.judged(scores, pa.table({"": pa.nulls(len(scores))}))

    def judged(self, scores: Sequence[S], columns: pa.Table) -> Sequence[str | None]:
        if not scores:
            return []
        table = columns
        for name in self.columns():
            column = spelled(name, table.column_names)
            if column is None:
                table = table.append_column(name, pa.nulls(len(scores), self._type_of_absent(name)))
            elif pa.types.is_null(table.column(column).type):
                values = pa.nulls(len(scores), self._type_of_absent(name))
                table = table.set_column(table.column_names.index(column), column, values)
        for name in self._names:
            table = table.append_column(name, pa.array(looked_up(scores, name)))
        try:
            for statistic in self._statistics:
                table = table.append_column(statistic, self._statistic(statistic, table))
            holds = evaluate(self.condition, table)
        except (ConditionError, StatisticError) as error:
            raise self._fault(error) from error
        return [None if keep else _REFUSED for keep in holds]

    def _statistic_name(self, statistic: str) -> str:
        return statistic_name(self.kind.rows, statistic.lower())

    def _statistic(self, statistic: str, table: pa.Table) -> pa.Array:
        """Return a statistic of each row of a table, which has the column that it is computed of."""
        if self.statistics_file is None:
            raise StatisticError(not_computed(self._statistic_name(statistic)))
        column = spelled(score_or_column(statistic), table.column_names)
        assert column is not None, "columns that a shard lacks are null"
        return self.statistics_file.read().of(
            self._statistic_name(statistic), table.column(column).combine_chunks()
        )

    def _types_in(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the types of the columns that it looks at, by their names in a schema.

        Those that are missing there, or have no value, are left out.
        """
        names = set(schema.names).difference(RESERVED_COLUMNS)
        found = {name: spelled(name, names) for name in self.columns()}
        for name, column in found.items():
            for other, its in found.items():
                if name.lower() == other.lower() and column != its:
                    raise ConditionError(
                        f"{name!r} and {other!r} are two columns: SQL cannot tell them apart"
                    )
        there = [schema.field(name) for name in dict.fromkeys(found.values()) if name is not None]
        return {column.name: column.type for column in there if not pa.types.is_null(column.type)}

    def _type_of_absent(self, name: str) -> pa.DataType:
        """Return the type of a column that a shard lacks."""
        known = spelled(name, self.column_types.names) if self.column_types is not None else None
        return pa.null() if known is None else self.column_types.field(known).type  # type: ignore[union-attr]

    def _refuse_misfit(self, columns: Mapping[str, pa.DataType]) -> None:
        """Refuse a condition that does not fit these columns, beside scores and reserved columns.

        Raises:
            ConditionError: it is no condition.
        """
        scores = self.types()
        types = {name: scores[name] for name in self._names} | dict(columns)
        types |= {statistic: TYPES[ending_of(statistic.lower()) or ""] for statistic in self._statistics}
        for name in self.columns():
            if spelled(name, types) is None:
                reserved = name.lower() if name.lower() in self.reserved else None
                types[name] = (
                    self._type_of_absent(name)
                    if reserved is None
                    else INTERLEAVED_SCHEMA.field(reserved).type
                )
        refuse_other_than_condition(self.condition, pa.schema(list(types.items())))

    def _fault(self, error: Exception) -> FilterSettingError:
        return FilterSettingError(self.settings()["condition"].name, f"{self.condition!r}: {error}")


@dataclass(frozen=True)
class ImageCondition(Condition[ImageScore], ScoreFilter):
    """Keeps the images for which a condition holds."""

    name = "keep_images"
    kind = ImageScore
    reserved = OF_IMAGES

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
    reserved = OF_TEXTS

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
    reserved = OF_SAMPLES

    condition: str = setting(
        "keep_samples",
        str,
        "true",
        'condition for the samples that are kept, such as "words >= 20 and images > 0"',
    )
