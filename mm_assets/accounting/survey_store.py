"""Store of the surveys of raw shards, and of notes on their published outputs: small files beside the data.

ledger/raw_shards/<partition>.parquet         survey of a raw shard: a row per sample
ledger/raw_shards/<partition>.published.json  schema of the shard's output, written at publication
ledger/sample_ids/<partition>.parquet         sample ids of that output
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa

from mm_assets.accounting import survey_codec
from mm_assets.accounting.contract import Published
from mm_assets.accounting.published_outputs import PublishedOutputs
from mm_assets.accounting.shard_columns import ShardColumns
from mm_assets.accounting.shard_survey import ShardSurvey
from mm_assets.formats.file_stamps import files_in
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.parquet_file import UNREADABLE
from mm_assets.formats.storage import StorageOptions, filesystem, is_remote, join, staged

T = TypeVar("T")

log = logging.getLogger(__name__)

_SURVEY, _PUBLISHED = ".parquet", ".published.json"
_THREADS = 16  # object stores answer in ~50 ms
_AT_ONCE = 64  # files held in memory


class SurveyStore:
    """Surveys below ``root`` (a folder or a URL), and notes on the published outputs of ``asset``.

    An unreadable survey is logged and counts as missing: its shard is surveyed again. If the notes on a
    published output are lost or unreadable, the output itself is read.
    """

    def __init__(
        self, root: str, options: StorageOptions | None = None, asset: str = "curated_parquet"
    ) -> None:
        self.root = root
        self.options = options
        self._folder = join(root, "ledger", "raw_shards")
        self._ids_folder = join(root, "ledger", "sample_ids")
        self._fs, self._path = filesystem(self._folder, options)
        self._ids_path = filesystem(self._ids_folder, options)[1]
        self._outputs = PublishedOutputs(root, asset, options)

    def write(self, partition: str, survey: ShardSurvey) -> None:
        """Publish a survey in one step; a local file with the same bytes is not rewritten."""
        with staged(self._uri(partition, _SURVEY), self.options) as file:
            survey_codec.write_survey(file.path, partition, survey)
            file.publish()

    def read(
        self, partition: str, version: str | None = None, layout: str | None = None
    ) -> ShardSurvey | None:
        """Return the survey of a raw shard; None without one of this version and layout (where given)."""
        for _, survey in self._read([partition], _SURVEY, survey_codec.read_survey):
            if version in (None, survey.version) and layout in (None, survey.layout):
                return survey
        return None

    def columns_and_ids(
        self, partitions: Iterable[str]
    ) -> Iterator[tuple[str, tuple[ShardColumns, pa.ChunkedArray]]]:
        """Yield the columns of each surveyed shard, and the ids of its readable samples."""
        return self._read(partitions, _SURVEY, survey_codec.read_columns_and_ids)

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the readable samples' ids of each surveyed shard, a few shards in memory at a time."""
        return self._read(partitions, _SURVEY, survey_codec.read_sample_ids)

    def partitions(self) -> list[str]:
        """Return the partitions that have a survey, sorted; their raw shards may no longer exist."""
        self._fs.invalidate_cache()
        try:
            names = [os.path.basename(path) for path in self._fs.ls(self._path, detail=False)]
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(_SURVEY) for name in names if name.endswith(_SURVEY)]
        # The partition keys of hashed names are only inside the files.
        hashed = {f"{self._path}/{stem}{_SURVEY}": stem for stem in stems if stem.startswith("=")}
        stated = self._parsed(hashed, lambda _, data: survey_codec.stated_partition(data))
        return sorted(
            [
                *(unquote(stem) for stem in stems if not stem.startswith("=")),
                *(partition for _, partition in stated),
            ]
        )

    def write_published(self, partition: str, published: Published, sample_ids: Iterable[str]) -> list[str]:
        """Note schema and sample ids of an output when it is published; return the locations of the notes."""
        ids_uri, published_uri, _ = self.uris(partition)
        with staged(ids_uri, self.options) as file:
            survey_codec.write_published_ids(file.path, partition, sample_ids)
            file.publish()
        with staged(published_uri, self.options) as file:
            survey_codec.write_published(file.path, partition, published)
            file.publish()
        return [ids_uri, published_uri]

    def uris(self, partition: str) -> list[str]:
        """Return the locations of a partition's survey and notes, existing or not."""
        ids_uri = join(self._ids_folder, partition_filename(partition) + _SURVEY)
        return [ids_uri, self._uri(partition, _PUBLISHED), self._uri(partition, _SURVEY)]

    def read_notes(self, partitions: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield what outputs were made with, of those of the partitions that have notes."""
        return self._read(partitions, _PUBLISHED, survey_codec.read_published)

    def read_outputs(self, landed: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield what ``landed`` (published) outputs were made with, from the outputs themselves."""
        return self._outputs.published(landed)

    def published_ids(self, landed: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the sample ids in the outputs of ``landed`` partitions, a few shards in memory at a time."""
        missing = set(landed)
        for key, ids in self.read_noted_ids(sorted(missing)):
            missing.remove(key)
            yield key, ids
        yield from self._outputs.sample_ids(missing)

    def read_noted_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield what `published_ids` does for those of the partitions that have notes."""
        paths = {f"{self._ids_path}/{partition_filename(key)}{_SURVEY}": key for key in partitions}
        return self._parsed(paths, survey_codec.read_published_ids)

    def survey_stamps(self) -> dict[str, str]:
        """Return a text for each survey that changes when it is replaced, by its name without suffix."""
        return self._stamps(self._folder, _SURVEY)

    def note_stamps(self) -> dict[str, str]:
        """Return the same of the notes on schemas."""
        return self._stamps(self._folder, _PUBLISHED)

    def id_stamps(self) -> dict[str, str]:
        """Return the same of the notes on sample ids."""
        return self._stamps(self._ids_folder, _SURVEY)

    def _stamps(self, folder: str, suffix: str) -> dict[str, str]:
        return {
            name.removesuffix(suffix): file.stamp
            for name, file in files_in(folder, self.options, suffix).items()
            if not name.startswith(".")
        }

    def _uri(self, partition: str, suffix: str) -> str:
        return join(self._folder, partition_filename(partition) + suffix)

    def _read(
        self, partitions: Iterable[str], suffix: str, parse: Callable[[str, bytes], T]
    ) -> Iterator[tuple[str, T]]:
        return self._parsed(
            {f"{self._path}/{partition_filename(key)}{suffix}": key for key in sorted(partitions)}, parse
        )

    def _parsed(self, paths: dict[str, str], parse: Callable[[str, bytes], T]) -> Iterator[tuple[str, T]]:
        """Yield key and ``parse(key, content)`` for each path that exists; ``paths`` maps paths to keys."""
        for path, data in self._contents(list(paths)):
            try:
                parsed = parse(paths[path], data)
            except UNREADABLE as error:
                log.warning("%s is unreadable and left out: %s", path, error)
                continue
            yield paths[path], parsed

    def _contents(self, paths: list[str]) -> Iterator[tuple[str, bytes]]:
        with ThreadPoolExecutor(_THREADS if is_remote(self._folder) else 1) as threads:
            for start in range(0, len(paths), _AT_ONCE):
                group = paths[start : start + _AT_ONCE]
                yield from (
                    (path, data)
                    for path, data in zip(group, threads.map(self._bytes, group), strict=True)
                    if data is not None
                )

    def _bytes(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None  # other errors are raised: an unreadable file must not count as missing
