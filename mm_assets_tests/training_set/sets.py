"""Sources of training sets, small and made up, and a pool that does its jobs here."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from mm_assets.formats.webdataset.client_files import TarPartitionStats
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import failure_of
from mm_assets.training_set import SCANNED, Source, SourceTar, our_tars
from mm_assets.training_set.build import TrainingSet
from mm_assets.training_set.plan import Recipe
from mm_assets_tests.formats.datasets import batch_of, item, write

RECIPE = Recipe(splits={"train": 0.8, "validation": 0.2}, shards=4, seed=11)
EXTRAS = (pa.field("url", pa.string()), pa.field("tokens", pa.int64()), pa.field("quality", pa.float64()))


@cache
def _jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), "green").save(file, "JPEG")
    return file.getvalue()


class Here:
    """Runs jobs in this process; ``most`` of them, then it fails as if the machine had gone."""

    def __init__(self, most: int | None = None) -> None:
        self.done: list[str] = []
        self._most = most

    def map(
        self, fn: Callable[[Any], Any], jobs: Iterable[Any]
    ) -> Generator[tuple[Any, Any | WorkerFailure], None, None]:
        for job in jobs:
            if fn.__name__ == "write_shard":
                if len(self.done) == self._most:
                    raise KeyboardInterrupt
                self.done.append(job.name)
            try:
                yield job, fn(job)
            except Exception as error:  # noqa: BLE001  (as a worker does)
                yield job, failure_of(error)


def rows_of(sample_id: str, size: int) -> list[dict[str, Any]]:
    """The rows of a document with a text and an image that no other document has."""
    seed = hashlib.sha256(sample_id.encode()).digest()
    image = _jpeg() + (seed * (size // len(seed) + 1))[:size]
    number = int.from_bytes(seed[:2], "big")
    return [
        item(sample_id, url=f"https://www.site{number % 5}.org/{number}", tokens=number, quality=number / 7),
        item(sample_id, 0, text_content=f"text of {sample_id}", content_type="text/plain"),
        item(sample_id, 1, "image", binary_content=image, content_type="image/jpeg"),
    ]


def make_source(folder: Path, prefix: str, shards: int = 2, samples: int = 12, size: int = 3000) -> None:
    """Write tars of ours; the sizes of samples differ by half."""
    batches = []
    for shard in range(shards):
        ids = [f"{prefix}/doc.{shard * samples + number:03d}" for number in range(samples)]
        rows = [
            row for place, name in enumerate(ids) for row in rows_of(name, size + place * size // samples)
        ]
        batches.append(batch_of(rows, EXTRAS, partition=f"{prefix}-{shard}"))
    write("webdataset", folder, batches)


def source(folder: Path, name: str | None = None) -> Source:
    found = our_tars(str(folder), name or folder.name)
    assert found is not None
    return found


def training_set(folder: Path, kind: str = "webdataset") -> TrainingSet:
    return TrainingSet(str(folder), kind)


def tree(folder: Path) -> Mapping[str, bytes]:
    """All files below a folder, without locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def made_up(name: str, **columns: Any) -> tuple[Source, dict[str, pa.Table]]:
    """A source without files, and its samples, for plans alone."""
    count = len(columns["sample_id"])
    uri = f"/{name}/0.tar"
    tar = SourceTar(name, uri, "0.tar", "stamp", TarPartitionStats("0.tar", count, 0))
    sizes = columns.pop("bytes", [1000] * count)
    offsets = [sum(sizes[:place]) for place in range(count)]
    given = {"offset": offsets, "bytes": sizes, **columns}
    arrays = [pa.array(given.get(field.name, [None] * count), field.type) for field in SCANNED]
    return Source(name, (tar,)), {uri: pa.table(arrays, SCANNED)}
