"""Filters that refuse what a benchmark has, so that no model is trained on what it is measured with.

A `Benchmark` is a dataset of any format. Its images are known by SHA-256 and PDQ hash. Its texts are known by
all their words in a row of a length, or as a whole where they are shorter: texts of its items and of its
columns, such as ``question`` or ``choices``. What is known is kept as a table named by a digest of the files,
which all workers read.

Nothing has to be known of other shards: a text or image is judged by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.filters import (
    DROP_ITEM,
    DROP_SAMPLE,
    FLAG,
    Filter,
    FilterSettingError,
    S,
    TextFilter,
    setting,
)
from mm_assets.filters.chain import ScoreFilter
from mm_assets.filters.known_hashes import KnownHashes
from mm_assets.filters.minhash import shingles, words_of
from mm_assets.filters.scores import score_rows
from mm_assets.formats.parquet import publish_table, read_small_table
from mm_assets.formats.raw_shards import location_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import detect_format, reader_for
from mm_assets.model.errors import counted, warn_user
from mm_assets.model.json_codec import is_json, strings_in
from mm_assets.model.schema import RESERVED_COLUMNS
from mm_assets.storage import without_secrets
from mm_assets.storage.errors import error_line, is_store_failure, located
from mm_assets.storage.files import absolute, exists, is_remote, join
from mm_assets.storage.stamps import local_stamp, remote_stamps

LEAST_WORDS: Final = 5
"""Words of a text that is looked for as a whole: shorter ones are no leaks, but common phrases."""

DISTANCE: Final = 31
"""Most bits that PDQ hashes of an image and of one in a benchmark differ in."""

LEAST_QUALITY: Final = 50
"""Quality from which hashes are compared."""

_SCHEMA = pa.schema(
    [
        pa.field("words", pa.uint64()),
        pa.field("sha256", pa.string()),
        pa.field("hash", pa.string()),
        pa.field("item", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Benchmark:
    """A dataset that nothing may be like.

    Args:
        digest: of names and stamps of its files.
        name: last part of its location, for people: a reason must not name folders of this machine.
        length: words in a row that texts may not share with it.
    """

    location: str
    digest: str
    length: int
    name: str

    @classmethod
    def of(cls, location: str, length: int) -> Self:
        """Return the benchmark at a place.

        Raises:
            OSError: it cannot be read.
            ValueError: it is of no known format, or of several.
        """
        location = os.path.expanduser(location)
        name = without_secrets(absolute(location)).rstrip("/").rpartition("/")[2]
        location = location_of(location)
        with located(location):
            files = [file for part in _reader(location).partitions() for file in part.files]
        stamps = {file: local_stamp(file) for file in files if not is_remote(file)}
        stamps |= remote_stamps(file for file in files if is_remote(file))
        told = repr([(file.rpartition("/")[2], stamps[file]) for file in sorted(files)])
        return cls(location, xxhash.xxh3_128_hexdigest(f"{length} {told}".encode()), length, name)

    def published(self, folder: str) -> str:
        """Return the location of what is known of it, in a folder."""
        return join(folder, f"{self.digest}.benchmark.parquet")

    def publish(self, folder: str) -> None:
        """Write what is known of it, if it is not there."""
        if not exists(self.published(folder)):
            publish_table(self.published(folder), self.read())

    def read(self) -> pa.Table:
        """Return what is known of it, in the order of the words; warn of images that cannot be read.

        Raises:
            OSError, ValueError: it cannot be read, or is damaged: what is like the rest would stay.
        """
        from mm_assets.filters.measures import selected_measures

        measures = selected_measures(_SCORES).images
        parts = [_SCHEMA.empty_table()]
        unread: list[str] = []
        with located(self.location):
            reader = _reader(self.location)
            for partition in reader.partitions():
                for batch in reader.open(partition):
                    parts += [self._texts(batch.data), self._images(batch.data, measures)]
                    unread += batch.data.column("materialize_error").drop_null().to_pylist()
        if unread:
            images = counted(len(unread), "image")
            warn_user(f"{self.name}: {images} cannot be read and are not looked for: {unread[0]}")
        return pa.concat_tables(parts).sort_by("words")

    def _texts(self, table: pa.Table) -> pa.Table:
        words: list[npt.NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        items: list[str] = []
        for sample_id, text in _texts_of(table):
            found = np.unique(word_hashes(text, self.length))
            words.append(found)
            items += [sample_id] * len(found)
        return _table(words=pa.array(np.concatenate(words)), item=pa.array(items, pa.string()))

    def _images(self, table: pa.Table, measures: Sequence[Any]) -> pa.Table:
        is_image = pc.and_(
            pc.equal(table.column("modality"), "image"), pc.is_null(table.column("materialize_error"))
        )
        rows = pc.indices_nonzero(is_image).to_pylist()
        scores = score_rows(table, rows, measures=measures) if rows else []
        places = [
            f"{sample_id} [{position}]"
            for sample_id, position in zip(
                table.column("sample_id").take(pa.array(rows, pa.int64())).to_pylist(),
                table.column("position").take(pa.array(rows, pa.int64())).to_pylist(),
                strict=True,
            )
        ]
        return _table(
            sha256=pa.array([score.get("sha256") for score in scores], pa.string()),
            hash=pa.array([_hash_of(score) for score in scores], pa.string()),
            item=pa.array(places, pa.string()),
        )


_SCORES: Final = ("sha256", "perceptual_hash", "perceptual_quality")


def _reader(location: str) -> InterleavedReader:
    return reader_for(detect_format(location, tell_ignored=_refuse), location)


def _refuse(line: str) -> None:
    """Refuse a benchmark of which files would be ignored: what is like these would stay."""
    raise ValueError(line)


def _table(**columns: pa.Array) -> pa.Table:
    rows = len(columns["item"])
    return pa.table(
        [columns.get(name, pa.nulls(rows, _SCHEMA.field(name).type)) for name in _SCHEMA.names],
        schema=_SCHEMA,
    )


def _texts_of(table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield sample id and text of each text, and of each text in columns, also in lists and objects."""
    ids = table.column("sample_id").to_pylist()
    for name in ["text_content", *(name for name in table.column_names if name not in RESERVED_COLUMNS)]:
        column = table.column(name)
        if pa.types.is_primitive(column.type):
            continue
        is_coded = is_json(table.schema.field(name))
        for sample_id, value in zip(ids, column.to_pylist(), strict=True):
            decoded = json.loads(value) if is_coded and value is not None else value
            yield from ((sample_id, text) for text in strings_in(decoded))


def _hash_of(score: Any) -> str | None:
    """Return the PDQ hash of an image, where it says something."""
    value: str | None = score.get("perceptual_hash")
    return value if value is not None and score.get("perceptual_quality") >= LEAST_QUALITY else None


def word_hashes(text: str, length: int) -> npt.NDArray[np.uint64]:
    """Return hashes of all words in a row of a length; of a shorter text one of the whole, or none."""
    words = words_of(text)
    return shingles(words, length) if len(words) >= min(length, LEAST_WORDS) else np.zeros(0, np.uint64)


class KnownItems:
    """What is known of a benchmark.

    Args:
        table: as published.
    """

    def __init__(self, table: pa.Table) -> None:
        texts = table.filter(table.column("words").is_valid())
        images = table.filter(table.column("words").is_null())
        self._words = texts.column("words").to_numpy()
        self._items = texts.column("item")
        hashed = images.filter(images.column("hash").is_valid())
        self._files = dict(
            zip(images.column("sha256").to_pylist(), images.column("item").to_pylist(), strict=True)
        )
        self._hashes = KnownHashes(hashed.column("hash").to_pylist(), DISTANCE)
        self._hashed = hashed.column("item")

    def text(self, words: npt.NDArray[np.uint64]) -> tuple[str, None] | None:
        """Return the item that shares words with a text; None if there is none."""
        at = np.searchsorted(self._words, words)
        inside = at < len(self._words)
        hits = at[inside][self._words[at[inside]] == words[inside]]
        return (str(self._items[int(hits[0])]), None) if len(hits) else None

    def image(self, sha256: str | None, hash_: str | None) -> tuple[str, int | None] | None:
        """Return the item with an equal file, or with the nearest picture and its bits that differ.

        None if none is near.
        """
        if sha256 in self._files:
            return str(self._files[sha256]), None
        if hash_ is None or (found := self._hashes.nearest(hash_)) is None:
            return None
        nearest, distance = found
        return str(self._hashed[nearest]), distance


@lru_cache(maxsize=16)
def _opened(uri: str) -> KnownItems:
    return KnownItems(read_small_table(uri))


@lru_cache(maxsize=4)
def _read(benchmark: Benchmark) -> KnownItems:
    return KnownItems(benchmark.read())


@dataclass(frozen=True)
class Contaminated(Filter[S]):
    """Refuses what a benchmark has; the reason names benchmark and item.

    Args:
        digests: of the benchmarks: what they hold is part of fingerprints, where they lie is not.
        benchmarks: once the filter is `opened`.
        folder: where what is known of them is, once it is `fitted`; empty: they themselves are read.
    """

    files: tuple[str, ...] = ()
    digests: tuple[str, ...] = field(default=(), kw_only=True)
    benchmarks: tuple[Benchmark, ...] = field(default=(), kw_only=True, compare=False, repr=False)
    folder: str = field(default="", kw_only=True, compare=False, repr=False)

    length = 13

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], action: str = "") -> Self | None:
        return super().from_settings(values, action) if values.get("decontaminate") else None

    def opened(self, statistics: str = "") -> Self:
        try:
            found = tuple(Benchmark.of(file, self.length) for file in self.files)
        except (OSError, ValueError) as error:
            raise self._fault(error) from error
        return replace(self, benchmarks=found, digests=tuple(each.digest for each in found))

    def fitted(self, shards: Mapping[str, pa.Schema], others: Iterable[pa.Schema], folder: str) -> Self:
        if not folder:
            return self
        try:
            for each in self.benchmarks:
                each.publish(folder)
        except (OSError, ValueError) as error:
            raise self._fault(error) from error
        return replace(self, folder=folder)

    def verdict(self, score: Any) -> str | None:
        raise ValueError("benchmarks are looked up, not scored")

    @property
    def threshold(self) -> str:
        return ", ".join(f"{each.name} xxh3:{each.digest}" for each in self.benchmarks)

    def _found(self, known: Callable[[KnownItems], tuple[str, int | None] | None]) -> tuple[str, int | None]:
        """Return the reason of the first benchmark in which ``known`` finds an item, and the distance.

        The reason is empty if there is none.
        """
        for each in self.benchmarks:
            opened = _opened(each.published(self.folder)) if self.folder else _read(each)
            if (found := known(opened)) is not None:
                return f"in {each.name}: {found[0]}", found[1]
        return "", None

    def _fault(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and is_store_failure(error):
            return error
        return FilterSettingError("decontaminate", error_line(error))


_MEANING: Final = "benchmarks of which nothing is kept: files, folders or URLs of any format"


@dataclass(frozen=True)
class ContaminatedImages(Contaminated[Any], ScoreFilter):
    """Refuses images that a benchmark has."""

    name = "decontaminate_images"
    scores = _SCORES

    files: tuple[str, ...] = setting("decontaminate", tuple, (), _MEANING, compare=False)

    def verdict(self, score: Any) -> str | None:
        return self._found_of(score)[0] or None

    def measure(self, score: Any) -> float | None:
        return self._found_of(score)[1]

    def _found_of(self, score: Any) -> tuple[str, int | None]:
        sha256, hash_ = score.get("sha256"), _hash_of(score)
        return self._found(lambda known: known.image(sha256, hash_))


@dataclass(frozen=True)
class ContaminatedTexts(Contaminated[Any], TextFilter):
    """Refuses the samples of texts that a benchmark has."""

    name = "decontaminate_texts"
    actions = (DROP_SAMPLE, DROP_ITEM, FLAG)

    files: tuple[str, ...] = setting("decontaminate", tuple, (), _MEANING, compare=False)
    length: int = setting(
        "decontaminate_words", int, 13, "words in a row that no text may share with a benchmark"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise FilterSettingError("decontaminate_words", f"it is 1 or more, not {self.length}")

    def columns(self) -> tuple[str, ...]:
        return ("text_content",)

    def judged(self, scores: Sequence[Any], columns: pa.Table) -> Sequence[str | None]:
        texts = columns.column("text_content").to_pylist()
        hashes = [word_hashes(text or "", self.length) for text in texts]
        return [
            (self._found(partial(KnownItems.text, words=words))[0] or None) if len(words) else None
            for words in hashes
        ]
