"""What a program kept, read from its output: the same for two programs, or there is nothing to compare."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import xxhash
from PIL import Image

Item = tuple[Any, ...]
"""``("text", digest)`` or ``("image", width, height[, digest])``."""

Kept = dict[str, tuple[Item, ...]]
"""Items in reading order by sample id. Positions do not count: Curator numbers what it keeps anew, this
project leaves gaps.
"""


def kept(folder: Path, target: str, with_bytes: bool) -> Kept:
    """The texts and images of an output; ``with_bytes``: images by their bytes too, where neither program
    encodes them anew.
    """
    samples: Kept = {}
    for file in sorted(folder.glob("*.parquet" if target == "parquet" else "*.tar")):
        for sample_id, items in (_parquet_samples if target == "parquet" else _tar_samples)(file, with_bytes):
            if sample_id in samples:
                raise ValueError(f"{file}: sample {sample_id} is there twice")
            samples[sample_id] = items
    return samples


def images_of(samples: Kept) -> int:
    """How many images there are."""
    return sum(item[0] == "image" for items in samples.values() for item in items)


def check_same(ours: Kept, theirs: Kept) -> None:
    """Raises ``ValueError`` naming the first sample in which two outputs differ."""
    for sample_id in sorted({*ours, *theirs}):
        if ours.get(sample_id) != theirs.get(sample_id):
            raise ValueError(
                f"not the same was kept of sample {sample_id}: {ours.get(sample_id)} and "
                f"{theirs.get(sample_id)}"
            )


def _parquet_samples(file: Path, with_bytes: bool) -> Iterator[tuple[str, tuple[Item, ...]]]:
    columns = ["sample_id", "position", "modality", "text_content", "binary_content"]
    found: dict[str, list[tuple[int, Item]]] = {}
    parquet = pq.ParquetFile(file)
    for batch in parquet.iter_batches(64, columns=columns):
        for row in batch.to_pylist():
            items = found.setdefault(row["sample_id"], [])
            if row["modality"] == "text":
                items.append((row["position"], _text(row["text_content"])))
            elif row["modality"] == "image":
                items.append((row["position"], _image(row["binary_content"], with_bytes)))
    for sample_id, placed in found.items():
        yield sample_id, tuple(item for _, item in sorted(placed, key=lambda entry: entry[0]))


def _tar_samples(file: Path, with_bytes: bool) -> Iterator[tuple[str, tuple[Item, ...]]]:
    with tarfile.open(file) as tar:
        members = {info.name: info for info in tar.getmembers()}

        def read(name: str) -> bytes:
            stream = tar.extractfile(members[name])
            assert stream is not None, name
            return stream.read()

        for name in members:
            if not name.endswith(".json"):
                continue
            sample, key = json.loads(read(name)), name.removesuffix(".json")
            items: list[Item] = []
            for position in range(max(len(sample["texts"]), len(sample["images"]))):
                if (text := _at(sample["texts"], position)) is not None:
                    items.append(_text(text))
                if (image := _at(sample["images"], position)) is not None:
                    items.append(_image(read(image if image in members else f"{key}.{image}"), with_bytes))
            yield sample["sample_id"], tuple(items)


def _at(values: list[str | None], position: int) -> str | None:
    return values[position] if position < len(values) else None


def _text(text: str) -> Item:
    return "text", xxhash.xxh3_64_hexdigest(text.encode())


def _image(data: bytes, with_bytes: bool) -> Item:
    with Image.open(io.BytesIO(data)) as image:
        size = image.size
    return ("image", *size, xxhash.xxh3_64_hexdigest(data)) if with_bytes else ("image", *size)
