"""Stored scores of the shards below a storage root, read a shard at a time and without any image."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from difflib import get_close_matches
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from mm_assets.accounting.outputs import CURATED, DERIVED_FOLDERS
from mm_assets.filters.image_scores import SCORES_SCHEMA, ImageScores
from mm_assets.filters.measure_selection import MeasureSelection, names_of
from mm_assets.filters.measured_columns import is_measured, missing_measures
from mm_assets.filters.sample_scores import SAMPLE_SCORES_SCHEMA, SampleScores
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.listing import names_in
from mm_assets.formats.parquet_file import UnreadableFile, open_parquet, read_small_table
from mm_assets.formats.storage import join
from mm_assets.interleaved.errors import ShardError
from mm_assets.overview.figures import evenly_spread
from mm_assets.preview.score_records import RawVersions, outdated_scores
from mm_assets.preview.scored_shard import ScoredShard

MOST_SHARDS: Final = 400
"""Shards that are looked at if none is named."""

IMAGES, SAMPLES = "image_scores", "sample_scores"
_SCHEMAS: Final = {IMAGES: SCORES_SCHEMA, SAMPLES: SAMPLE_SCORES_SCHEMA}
_SUFFIX: Final = ".parquet"
_THREADS: Final = 8


class StoredScores:
    """The score files of some shards.

    Args:
        root: storage root.
        named: shards to look at; none: at most `MOST_SHARDS` of all, evenly spread.
        raw_version: what raw shards are now.

    Raises:
        ValueError: there are no scores, or a named shard has none.

    Attributes:
        shards: file names of the shards that have image scores and sample scores of their rows as they are.
        of_shards: number of the shards that there are.
        left_out: shards that do not, by the reason.
    """

    def __init__(
        self, root: str, named: Sequence[str] = (), raw_version: RawVersions = lambda key: None
    ) -> None:
        self.root = root
        files = {asset: _files(join(root, DERIVED_FOLDERS[asset])) for asset in (IMAGES, SAMPLES)}
        known = sorted(files[IMAGES] | files[SAMPLES])
        if not known:
            raise ValueError(f"{root}: no scores are stored here; {how_to_measure()}")
        chosen = [_known(root, name, known) for name in dict.fromkeys(named)]
        looked_at = chosen or evenly_spread(known, MOST_SHARDS)
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

    def numbers(self) -> tuple[list[str], list[str]]:
        """Return the names of all measured columns of numbers: of images, of samples."""
        found = []
        for asset in (IMAGES, SAMPLES):
            columns = [column for all_of in self._columns.values() for column in all_of[asset]]
            found.append(sorted({column.name for column in columns if _is_number(column.type)}))
        return found[0], found[1]

    def read(self, file_name: str, images: Iterable[str] = (), samples: Iterable[str] = ()) -> ScoredShard:
        """Return the scores of one shard, with these measures as far as it has them.

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
            for asset, names in ((IMAGES, images), (SAMPLES, samples))
        ]
        return ScoredShard.of(file_name, ImageScores(tables[0]), SampleScores(tables[1]))

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
