"""Stored scores as filters judge them: for the preview, and while a shard is filtered.

* `StoredScores`: the score files below a storage root, read a shard at a time and without any image.
* `outdated_scores`: whether stored scores are those of the rows as they are now, by the records of their
  making.
* `ScoredShard`: the scores of one shard as rows.
* `measured`, `distances`: the numbers that verdicts are about, and how far they are from bounds.
* `FilterObserver`: notes, while a shard is filtered, what each filter of the chain would drop alone, and
  images near bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_assets.accounting import (
    CURATED,
    DERIVED_FOLDERS,
    ShardRecord,
    digest_files,
    recorded_files,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters import KEYS, Bounds, Filter, RowColumns, RowKeys, bounds_of, spelled
from mm_assets.filters.chain import FilterChain, ItemRefusals, Verdicts
from mm_assets.filters.id_list import IdFilter, Marks
from mm_assets.filters.measure import DECODE_ERROR, Score, is_measured, missing_measures
from mm_assets.filters.measures import MeasureSelection, names_of
from mm_assets.filters.score_columns import Rows, SampleScoreColumns, ScoreColumns
from mm_assets.filters.scores import (
    ImageScore,
    ImageScores,
    SampleScore,
    SampleScores,
    image_views,
)
from mm_assets.filters.texts import TextPosition, TextScore
from mm_assets.formats.images.pixels import ThumbnailStrip, thumbnail
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, open_parquet, read_small_table
from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import DEFAULT_BATCH_BYTES
from mm_assets.model.errors import ShardError
from mm_assets.model.samples import Step
from mm_assets.storage.files import join
from mm_assets.storage.listing import names_in
from mm_assets.view import image
from mm_assets.view.overview import DROPPED, evenly_spread, rows


@dataclass(frozen=True)
class ScoredShard:
    """The scores of one shard, and its items as rows: images, samples and texts, as their scores stand.

    A sample's row stands for its metadata, and for its texts where their scores are not looked at.

    Attributes:
        row_keys: of the rows; an image that could not be measured has an error.
        unscored_row_keys: the same for filters that look at no image: only faulty rows have an error.
        item_refusals: what filters say against images without an error and texts, with their scores by row.
        items: items that each row stands for.
        nbytes: bytes of the image of each row.
        images: rows that are images.
        sample_rows: rows behind them that are samples; those of texts follow.
    """

    file_name: str
    row_keys: RowKeys
    unscored_row_keys: RowKeys
    item_refusals: ItemRefusals
    samples: SampleScores
    items: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    images: int
    sample_rows: int

    @property
    def scores(self) -> Mapping[int, ImageScore]:
        """The scores of the images without an error, by row."""
        return self.item_refusals.scores

    @cached_property
    def judged_samples(self) -> ScoreColumns[SampleScore]:
        """The scores of the samples in columns."""
        return SampleScoreColumns([score for _, score in self.samples])

    @property
    def rows_of_samples(self) -> Rows:
        """The rows that are samples."""
        return np.arange(self.images, self.images + self.sample_rows)

    def judged(self) -> dict[type[Score], ScoreColumns[Any]]:
        """Return the scores that filters judge, by their kind."""
        items = self.item_refusals
        return {
            ImageScore: items.judged_images,
            SampleScore: self.judged_samples,
            TextScore: items.text_columns,
        }

    def verdicts(self, chain: FilterChain) -> Verdicts:
        """Return what tells what filters decide about the rows."""
        return self._verdicts if chain.images else self._verdicts_unscored

    @cached_property
    def _verdicts(self) -> Verdicts:
        return Verdicts(self.row_keys, self.item_refusals, lambda: self.samples)

    @cached_property
    def _verdicts_unscored(self) -> Verdicts:
        if self.unscored_row_keys is self.row_keys:
            return self._verdicts
        return Verdicts(self.unscored_row_keys, self.item_refusals, lambda: self.samples)

    def mark(self, judge: IdFilter, marks: dict[str, Marks]) -> None:
        """Note which rows of the lists of a filter name something of this shard."""
        images = ((key["sample_id"], key["position"]) for key in self.row_keys.at(range(self.images)))
        digests = (score.get("sha256") for score in self.scores.values())
        judge.mark(marks, (sample_id for sample_id, _ in self.samples), images, digests)

    @classmethod
    def of(
        cls,
        file_name: str,
        images: ImageScores,
        samples: SampleScores,
        columns: Sequence[str] = (),
        curated: pa.Table | None = None,
    ) -> ScoredShard:
        """Return a shard with these scores.

        Args:
            columns: those that filters look at.
            curated: its curated rows with these columns; None where the rows of the scores have all.
        """
        rows: list[Mapping[str, Any]] = []
        scores: dict[int, ImageScore] = {}
        nbytes: list[int] = []
        for (sample_id, position), score in images:
            error = score.error or score.values.get(DECODE_ERROR)
            if error is None:
                scores[len(rows)] = score
            nbytes.append(score.byte_size or 0)
            rows.append(_row(sample_id, position, "image", error))
        images_in, items = len(rows), [1] * len(rows)
        texts: dict[int, TextScore] = {}
        for sample_id, sample in samples:
            rows.append(_row(sample_id, -1, "metadata", None))
            items.append(1 + (0 if _POSITIONS in sample.values else sample.texts))
        sample_rows = len(rows) - images_in
        for sample_id, sample in samples:
            for index, position in enumerate(sample.values.get(_POSITIONS, ())):
                texts[len(rows)] = sample.text(index)
                rows.append(_row(sample_id, int(position), "text", None))
                items.append(1)
        nbytes += [0] * (len(rows) - len(nbytes))
        beside = None
        if curated is not None:
            beside = _columns_of(curated, rows)
        elif columns:
            beside = RowColumns(pa.Table.from_pylist(rows))
        row_keys, unscored = RowKeys(rows, beside), _without_errors_of_measures(rows, samples)
        return cls(
            file_name,
            row_keys,
            row_keys if unscored is rows else RowKeys(unscored, beside),
            ItemRefusals(scores, lambda: texts, beside),
            samples,
            np.array(items, np.int64),
            np.array(nbytes, np.int64),
            images_in,
            sample_rows,
        )


_POSITIONS: Final = TextPosition.name


def _columns_of(curated: pa.Table, rows: Sequence[Mapping[str, Any]]) -> RowColumns:
    """Return columns of curated rows, by the rows of their scores."""
    places = zip(*(curated.column(name).to_pylist() for name in ("sample_id", "position")), strict=True)
    numbers = {place: number for number, place in enumerate(places)}
    return RowColumns(curated, [numbers.get((row["sample_id"], row["position"]), -1) for row in rows])


def _row(sample_id: str, position: int, modality: str, error: str | None) -> dict[str, Any]:
    return {"sample_id": sample_id, "position": position, "modality": modality, "materialize_error": error}


def _without_errors_of_measures(
    rows: Sequence[Mapping[str, Any]], samples: SampleScores
) -> Sequence[Mapping[str, Any]]:
    """Return rows where as many images of each sample have an error as had one before they were measured.

    Sample scores say how many, not which; whoever looks at no image cannot tell.
    """
    with_errors = Counter(row["sample_id"] for row in rows if row["materialize_error"] is not None)
    if not with_errors:
        return rows
    images = Counter(row["sample_id"] for row in rows if row["modality"] == "image")
    sound = {sample_id: sample.images - images[sample_id] for sample_id, sample in samples}
    mended = {sample_id: sound.get(sample_id, 0) + count for sample_id, count in with_errors.items()}
    found = []
    for row in rows:
        if row["materialize_error"] is not None and mended[row["sample_id"]] > 0:
            mended[row["sample_id"]] -= 1
            row = {**row, "materialize_error": None}
        found.append(row)
    return found


WITHOUT_RECORD: Final = "whose {} have no record"
OTHER_BYTES: Final = "whose {} are not as they were written"
OTHER_ROWS: Final = "whose {} are not those of its curated rows"
RAW_CHANGED: Final = "whose raw shard has changed since"
_RAW: Final = "raw_shards"  # input of curated rows in their record

RawVersions = Callable[[str], str | None]
"""The version of a raw shard as it is now, by partition key; None where that is not known."""


def outdated_scores(
    root: str, assets: Sequence[str], files: Sequence[str], raw_version: RawVersions
) -> dict[str, str]:
    """Return why the scores of some shards do not count, by file name; nothing of those that do.

    The next run would measure them again.

    Args:
        root: storage root.
        assets: those of scores.
        files: names of the files of shards, with suffix.
        raw_version: what raw shards are now.
    """
    stems = {file.rpartition(".")[0]: file for file in files}
    ledger = Ledger(root)
    curated = ledger.records_by_name(CURATED.asset, stems)
    found: dict[str, str] = {}
    for asset in assets:
        scored = ledger.records_by_name(asset, stems)
        intact = _intact(root, asset, stems, scored)
        for stem, file in stems.items():
            reason = _reason(scored.get(stem), curated.get(stem), intact.get(stem, True))
            if reason is not None:
                found.setdefault(file, reason.format(asset))
    for stem, record in curated.items():
        made_of = record.account.get("inputs", {}).get(_RAW)
        if made_of is not None and raw_version(record.key) not in (made_of, None):
            found.setdefault(stems[stem], RAW_CHANGED)
    return found


def _reason(scored: ShardRecord | None, curated: ShardRecord | None, is_intact: bool) -> str | None:
    if scored is None:
        return WITHOUT_RECORD
    if not is_intact:
        return OTHER_BYTES
    of_rows = scored.account.get("inputs", {}).get(CURATED.asset)
    return OTHER_ROWS if curated is None or of_rows != curated.version else None


def _intact(
    root: str, asset: str, stems: Mapping[str, str], scored: Mapping[str, ShardRecord]
) -> dict[str, bool]:
    """Return whether the file of each shard has the digest in its record; old records have none."""
    uris = {stem: join(root, DERIVED_FOLDERS[asset], stems[stem]) for stem in scored}
    written = {stem: recorded_files(record, uris[stem]) for stem, record in scored.items()}
    present = digest_files(root, [uris[stem] for stem, digests in written.items() if digests])
    return {
        stem: all(present.get(path) == digest for path, digest in digests.items())
        for stem, digests in written.items()
    }


Numbers = npt.NDArray[np.float64]


def measured(judge: Filter[Any], scores: Sequence[Any]) -> Numbers:
    """Return the numbers that verdicts are about (`Filter.numbers`); nan where there is none."""
    if isinstance(judge, Bounds) and isinstance(scores, ScoreColumns):
        found = scores.numbers(judge.of)
        if found is not None:
            return found
    return np.array([np.nan if value is None else value for value in judge.numbers(scores)], np.float64)


def distances(judge: Filter[Any], values: Numbers) -> Numbers:
    """Return how far values are from the nearest bound; 0 for a filter without one, inf for no value."""
    bounds = bounds_of(judge)
    if not bounds:
        return np.zeros(len(values))
    nearest = np.min([np.abs(values - bound.value) for bound in bounds], axis=0)
    return np.where(np.isnan(nearest), np.inf, nearest)


MOST_SHARDS: Final = 400
"""Shards that are looked at if none is named."""

IMAGES, SAMPLES = ImageScores.asset, SampleScores.asset
_SCHEMAS: Final = {kind.asset: kind.columns for kind in (ImageScores, SampleScores)}
_SUFFIX: Final = ".parquet"
_THREADS: Final = 8


class StoredScores:
    """The score files of some shards.

    Args:
        root: storage root.
        named: shards to look at; none: those of all, evenly spread.
        raw_version: what raw shards are now.
        most: shards to look at where none is named; None: all.

    Raises:
        ValueError: there are no scores, or a named shard has none.

    Attributes:
        shards: file names of the shards that have image scores and sample scores of their rows as they are.
        of_shards: number of the shards that there are.
        left_out: shards that do not, by the reason.
    """

    def __init__(
        self,
        root: str,
        named: Sequence[str] = (),
        raw_version: RawVersions = lambda key: None,
        most: int | None = MOST_SHARDS,
    ) -> None:
        self.root = root
        files = {asset: _files(join(root, DERIVED_FOLDERS[asset])) for asset in (IMAGES, SAMPLES)}
        known = sorted(files[IMAGES] | files[SAMPLES])
        if not known:
            raise ValueError(f"{root}: no scores are stored here; {how_to_measure()}")
        chosen = [_known(root, name, known) for name in dict.fromkeys(named)]
        looked_at = chosen or evenly_spread(known, most or len(known))
        self.of_shards = len(known)
        self.left_out: dict[str, list[str]] = {}
        for asset, names in files.items():
            self._leave_out(dict.fromkeys((f for f in looked_at if f not in names), without(asset)))
        self.shards = [name for name in looked_at if all(name in names for names in files.values())]
        self._columns = self._read_columns()
        outdated = outdated_scores(root, tuple(files), list(self._columns), raw_version)
        self._leave_out(outdated)
        self.shards = [name for name in self._columns if name not in outdated]
        self._columns = {name: self._columns[name] for name in self.shards}

    def _leave_out(self, reasons: Mapping[str, str]) -> None:
        for name, reason in reasons.items():
            self.left_out.setdefault(reason, []).append(name)

    def missing(self, measures: MeasureSelection) -> dict[str, int]:
        """Return the measures that stored scores lack, or have in another version: shards by measure."""
        counts: dict[str, int] = {}
        for columns in self._columns.values():
            for asset, asked in ((IMAGES, measures.images), (SAMPLES, measures.samples)):
                for measure in missing_measures(columns[asset], asked):  # type: ignore[type-var]
                    counts[measure.name] = counts.get(measure.name, 0) + 1
        return counts

    def numbers(self) -> tuple[list[str], list[str], list[str]]:
        """Return the names of all measured columns of numbers: of images, of samples, of texts."""
        images, samples = (
            {column for all_of in self._columns.values() for column in all_of[asset]}
            for asset in (IMAGES, SAMPLES)
        )
        of_texts = {
            column.name
            for column in samples
            if pa.types.is_list(column.type) and _is_number(column.type.value_type)
        }
        found = [sorted({c.name for c in columns if _is_number(c.type)}) for columns in (images, samples)]
        return found[0], found[1], sorted(of_texts)

    def read(
        self,
        file_name: str,
        images: Iterable[str] = (),
        samples: Iterable[str] = (),
        texts: Iterable[str] = (),
        columns: Sequence[str] = (),
    ) -> ScoredShard:
        """Return the scores of one shard, with these measures and columns as far as it has them.

        Raises:
            UnreadableFile: a file is damaged; the message names it.
        """
        tables = [
            read_small_table(
                self._uri(asset, file_name),
                [
                    *_SCHEMAS[asset].names,
                    *sorted(set(names_of(self._columns[file_name][asset])) & set(names)),
                ],
            )
            for asset, names in ((IMAGES, images), (SAMPLES, {*samples, *texts}))
        ]
        curated = self._curated_columns(file_name, columns) if set(columns).difference(KEYS) else None
        return ScoredShard.of(file_name, ImageScores(tables[0]), SampleScores(tables[1]), columns, curated)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the curated rows of each shard, by its name."""
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda name: self._open_curated(name)[2], self.shards)
            return dict(zip(map(shard_name, self.shards), found, strict=True))

    def _curated_columns(self, file_name: str, columns: Sequence[str]) -> pa.Table:
        reader, partition, schema = self._open_curated(file_name)
        found = dict.fromkeys([*KEYS, *(spelled(name, schema.names) for name in columns)])
        names = [name for name in found if name is not None]
        _, tables = reader.project(partition, names)
        return pa.concat_tables([pa.schema([schema.field(name) for name in names]).empty_table(), *tables])

    def _open_curated(self, file_name: str) -> tuple[InterleavedReader, Partition, pa.Schema]:
        partition = Partition(shard_name(file_name), (self.curated(file_name),))
        reader = InterleavedParquetReader((), max_batch_bytes=DEFAULT_BATCH_BYTES)
        return reader, partition, reader.open(partition).schema

    def curated(self, file_name: str) -> str:
        """Return the location of the curated rows of a shard."""
        return join(self.root, CURATED.folder, file_name)

    def _uri(self, asset: str, file_name: str) -> str:
        return join(self.root, DERIVED_FOLDERS[asset], file_name)

    def _read_columns(self) -> dict[str, dict[str, list[pa.Field]]]:
        """Return the columns of measures of each shard, by asset; a shard with a damaged file is left out."""

        def read(file_name: str) -> dict[str, list[pa.Field]] | str:
            columns = {}
            for asset in (IMAGES, SAMPLES):
                try:
                    columns[asset] = self._columns_of(asset, file_name)
                except (UnreadableFile, ShardError):
                    return asset
            return columns

        with ThreadPoolExecutor(_THREADS) as pool:
            found = dict(zip(self.shards, pool.map(read, self.shards), strict=True))
        sound: dict[str, dict[str, list[pa.Field]]] = {}
        for name, columns in found.items():
            if isinstance(columns, str):
                self._leave_out({name: without(columns)})
            else:
                sound[name] = columns
        return sound

    def _columns_of(self, asset: str, file_name: str) -> list[pa.Field]:
        uri, always = self._uri(asset, file_name), _SCHEMAS[asset].names
        with closing(open_parquet(uri, uri, None, {})) as file:
            schema = file.schema_arrow
        if schema.names[: len(always)] != always:
            raise UnreadableFile(f"{uri}: damaged: these are no {asset.replace('_', ' ')}")
        return [column for column in schema if is_measured(column)]


def shard_name(file_name: str) -> str:
    """Return the name of a shard by that of its file."""
    stem = file_name.removesuffix(_SUFFIX)
    name = unquote(stem)
    return name if partition_filename(name) == stem else stem


def without(asset: str) -> str:
    """Return the reason to leave out a shard without a file of scores, or with a damaged one."""
    return f"without {asset}"


def how_to_measure(scores: Collection[str] = ()) -> str:
    """Return what to run for scores that are not stored."""
    setting = f"MM_SCORES={','.join(scores)} " if scores else ""
    return f"measure them: {setting}mm-assets run --assets {IMAGES},{SAMPLES}"


def _files(folder: str) -> set[str]:
    try:
        names = {name.rpartition("/")[2] for name in names_in(folder)}
    except FileNotFoundError:
        return set()
    return {name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")}


def _known(root: str, name: str, known: Sequence[str]) -> str:
    file_name = partition_filename(name) + _SUFFIX
    if file_name in known:
        return file_name
    near = get_close_matches(name, [shard_name(other) for other in known], n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise ValueError(f"{root}: shard {name!r} has no stored scores{hint}")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_MOST_FILTERS: Final = 2  # of which there are images: more do not fit into a strip
_LARGEST: Final = 1 << 20  # bytes of an image; each of four is kept until the shard is done


class ShardPictures:
    """Observer of a shard: the first images that stay, that its steps take out, and of a `FilterObserver`."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._shown, self._dropped = ThumbnailStrip(), ThumbnailStrip()
        self._chains = {step: FilterObserver(step) for step in steps if isinstance(step, FilterChain)}
        observed = (self._chains[step].observed() if step in self._chains else step for step in steps)
        self.steps: tuple[Step, ...] = (*map(self._dropped.of_removed, observed), self._shown)

    def metadata(self) -> dict[str, Any]:
        """Return the pictures as Markdown for an event."""
        strips = {"preview": self._shown.webp(), "preview_dropped": self._dropped.webp()}
        found = {name: image(strip, "image/webp") for name, strip in strips.items() if strip}
        for chain in self._chains.values():
            found |= chain.pictures()
        return {name: {"md": picture} for name, picture in found.items()}


class FilterObserver:
    """Watches a chain.

    Attributes:
        alone: each filter, and a chain of it alone.
    """

    def __init__(self, chain: FilterChain) -> None:
        self._chain = chain
        filters = chain.filters
        self.alone = [(judge, FilterChain.of([judge])) for judge in filters]
        self._items: dict[str, int] = dict.fromkeys((judge.name for judge in filters), 0)
        with_bounds = [judge.name for judge in chain.images if bounds_of(judge)][:_MOST_FILTERS]
        self._nearest: dict[tuple[str, bool], tuple[float, bytes]] = {
            (name, is_refused): (np.inf, b"") for name in with_bounds for is_refused in (False, True)
        }

    def observed(self) -> FilterChain:
        """Return the chain, which tells what it sees."""
        return replace(self._chain, observer=self._observe)

    def pictures(self) -> dict[str, str]:
        """Return Markdown, each shown without a click: items by filter, and images on both sides of bounds.

        Of each of the first filters that have bounds, the nearest image that it keeps and the nearest that it
        refuses, in this order.
        """
        found = {"preview_filters": rows(self._items, DROPPED)}
        near = [thumbnail(memoryview(data)) for _, data in self._nearest.values() if data]
        strip = ThumbnailStrip(pictures=[picture for picture in near if picture is not None]).webp()
        if strip:
            found["preview_borderline"] = image(strip, "image/webp")
        return found

    def _observe(
        self,
        table: pa.Table,
        row_keys: RowKeys,
        item_refusals: ItemRefusals,
        sample_scores: Callable[[], SampleScores],
    ) -> None:
        for judge, chain in self.alone:
            decisions = chain.decide(row_keys, item_refusals, sample_scores)
            self._items[judge.name] += len(decisions.refusals) + len(decisions.flags)
            if (judge.name, False) in self._nearest:
                self._note_nearest(judge, table, item_refusals)

    def _note_nearest(self, judge: Filter[ImageScore], table: pa.Table, item_refusals: ItemRefusals) -> None:
        scores, refused = item_refusals.scores, item_refusals.of(judge)
        within = [row for row, score in scores.items() if 0 < (score.byte_size or 0) <= _LARGEST]
        far = distances(judge, measured(judge, [scores[row] for row in within]))
        is_refused = np.array([row in refused for row in within], bool)
        for side in (False, True):
            of_side = np.where(is_refused == side, far, np.inf)
            best = int(of_side.argmin()) if len(of_side) else -1
            if best >= 0 and of_side[best] < self._nearest[judge.name, side][0]:
                (view,) = image_views(table, [within[best]])
                if view is not None and len(view) <= _LARGEST:
                    self._nearest[judge.name, side] = float(of_side[best]), bytes(view)
