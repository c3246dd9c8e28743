"""What the raw shards say, read with tarfile and json alone, and how a client's report differs from it."""

import hashlib
import io
import json
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from mm_assets_tests.clients.open_with.normal_form import Document, collected, document, stripped

CONTENT = ("texts", "images", "tiffs", "errors")
EXTRAS = ("metadata", "text_extra", "image_extra")


def _spread(
    payload: Mapping[str, Any], items: Sequence[Any], names: Iterable[str]
) -> list[dict[str, Any] | None]:
    """Per-item lists are aligned with the items that are not null."""
    present = [position for position, item in enumerate(items) if item is not None]
    entries: list[dict[str, Any] | None] = [None] * len(items)
    for place, position in enumerate(present):
        entries[position] = {name: payload[name][place] for name in names}
    return entries


def pixels(data: bytes) -> str:
    """Digest of a picture as a training loop sees it: RGB, first frame."""
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")
    return hashlib.sha256(repr(rgb.size).encode() + rgb.tobytes()).hexdigest()


def raw_samples(
    shard: Path, per_image: Sequence[str] = (), per_text: Sequence[str] = (), id_field: str = "sample_id"
) -> Iterator[tuple[str, Document, list[bytes | None]]]:
    """(id, truth, image bytes by position) for every document of one raw shard."""
    with tarfile.open(shard) as tar:
        contents = {info.name: tar.extractfile(info).read() for info in tar.getmembers() if info.isfile()}  # type: ignore[union-attr]
    for name, data in contents.items():
        if not name.lower().endswith(".json"):
            continue
        payload = json.loads(data)
        texts, tokens = payload["texts"], payload["images"]
        images = [None if token is None else contents[token] for token in tokens]
        extra = {
            "metadata": {
                field: value
                for field, value in payload.items()
                if field not in (id_field, "texts", "images", *per_image, *per_text)
            },
            "text": _spread(payload, texts, per_text),
            "image": _spread(payload, tokens, per_image),
        }
        yield payload[id_field], document(texts, images, extra), images


def read_truth(
    root: Path, per_image: Sequence[str] = (), per_text: Sequence[str] = ()
) -> dict[str, Document]:
    """Every document of the raw shards in normal form, with ``pixels`` beside it."""
    return collected(
        (sample_id, {**sample, "pixels": stripped(None if data is None else pixels(data) for data in images)})
        for shard in sorted(root.rglob("*.tar"))
        for sample_id, sample, images in raw_samples(shard, per_image, per_text)
    )


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: NaN is NaN, 1 is 1.0, True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def without_tiffs(sample: Mapping[str, Any], images: Sequence[str | None]) -> list[str | None]:
    """Digests of the images that are no TIFF: those may be laid out anew (a frame is split off, never
    re-encoded).
    """
    tiffs = sample["tiffs"]
    kept = (
        None if position < len(tiffs) and tiffs[position] else value for position, value in enumerate(images)
    )
    return stripped(kept)


def differences(
    expected: Mapping[str, Document],
    found: Mapping[str, Document],
    parts: Sequence[str] = (*CONTENT, *EXTRAS),
) -> list[str]:
    """One line for each part of each sample that is not as expected; empty when all is well."""
    lines = [f"sample {sample_id!r} is missing" for sample_id in expected.keys() - found.keys()]
    lines += [
        f"sample {sample_id!r} is nowhere in the source" for sample_id in found.keys() - expected.keys()
    ]
    for sample_id in sorted(expected.keys() & found.keys()):
        for part in parts:
            want, got = expected[sample_id][part], found[sample_id][part]
            if part == "images":
                want, got = (without_tiffs(expected[sample_id], images) for images in (want, got))
            if not same(want, got):
                lines.append(f"sample {sample_id!r}: {part} {_where(want, got)}")
    return lines


def _where(want: Any, got: Any) -> str:
    if isinstance(want, dict) and isinstance(got, dict):
        keys = sorted(key for key in want.keys() | got.keys() if not same(want.get(key), got.get(key)))
        return "; ".join(f"[{key!r}] is {got.get(key)!r:.80}, source {want.get(key)!r:.80}" for key in keys)
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        places = [
            place for place, (one, other) in enumerate(zip(want, got, strict=True)) if not same(one, other)
        ]
        return "; ".join(f"[{place}] is {got[place]!r:.80}, source {want[place]!r:.80}" for place in places)
    return f"is {got!r:.160}, source {want!r:.160}"
