"""Raw shards to measure with, in the two layouts of MINT-1T."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import Document, Layout, make_documents

SAMPLE_BYTES = 1_550_000
"""Of images in a sample, roughly: 6,818 of them make the 9.9 GB of the published benchmark."""

_SEED = 20_261
_DIFFERENT_BYTES = (
    150_000_000  # of images; samples beyond have the same ones again, under other names and with other texts
)
_SYLLABLES = "ta ri mo den sul ke pra ni vor el ash tion mar is con que".split()
_SHORT = "the of and to in a café naïve 数据 Größe — Σ".split()


@dataclass(frozen=True)
class Shape:
    """``samples`` in all, spread over the shards as evenly as they go; ``images`` are the fewest and the most
    of one sample.
    """

    layout: Layout
    shards: int
    samples: int
    sample_bytes: int = SAMPLE_BYTES
    images: tuple[int, int] = (4, 8)

    @property
    def name(self) -> str:
        images = "-".join(map(str, self.images))
        return f"{self.layout}-{self.shards}x{self.samples}-{self.sample_bytes}-{images}"

    def samples_of(self, shard: int) -> int:
        """How many samples one shard has."""
        return self.samples // self.shards + (shard < self.samples % self.shards)


def make_shards(folder: Path, shape: Shape) -> list[Path]:
    """The shards of this shape below ``folder``, made unless they are there.

    The same shape gives the same bytes.
    """
    target = folder / shape.name
    if not target.exists():
        made = folder / f"{shape.name}.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        different = min(max(_DIFFERENT_BYTES // shape.sample_bytes, 1), shape.samples_of(0))
        documents = make_documents(shape.layout, different, shape.sample_bytes, shape.images, _SEED)
        for shard in range(shape.shards):
            _write_shard(made / f"shard-{shard:05d}.tar", shape, shard, documents)
        made.rename(target)
    return sorted(target.glob("*.tar"))


def _write_shard(path: Path, shape: Shape, shard: int, documents: list[Document]) -> None:
    words = _vocabulary()
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(shape.samples_of(shard)):
            key = hashlib.sha256(repr((_SEED, astuple(shape), shard, number)).encode()).hexdigest()[:32]
            rng = np.random.default_rng([_SEED, 2, shard, number])
            for name, data in _members(
                key, documents[(shard + number) % len(documents)], shape.layout, rng, words
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _members(
    key: str, document: Document, layout: Layout, rng: np.random.Generator, words: list[str]
) -> Iterator[tuple[str, bytes]]:
    texts: list[str | None] = []
    images: list[str | None] = []
    details: list[dict[str, Any]] = []
    for position, is_image in enumerate(document.is_image):
        if is_image:
            width, height = document.sizes[len(details)]
            page, xref = position // 4, int(rng.integers(5, 400))
            details.append(
                {"height": height, "page": page, "sha256": rng.bytes(32).hex(), "width": width, "xref": xref}
            )
            images.append(
                f"{key}.{position}.jpg" if layout == "members" else f"page_{page}_image_{xref}_{position}"
            )
            texts.append(None)
        else:
            texts.append(
                " ".join(words[at] for at in rng.integers(0, len(words), int(rng.integers(40, 220))))
            )
            images.append(None)
    payload = {
        "bff_contained_ngram_count_before_dedupe": int(rng.integers(0, 40)),
        "image_metadata": details,
        "images": images,
        "language_id_whole_page_fasttext": {"en": round(float(rng.uniform(0.5, 1.0)), 6)},
        "pdf_name": f"{key}.pdf",
        "previous_word_count": int(rng.integers(100, 20000)),
        "texts": texts,
        "url": f"https://example.org/{key[:2]}/{key}.pdf",
    }
    yield f"{key}.json", json.dumps(payload, ensure_ascii=False).encode()
    names = [image for image in images if image is not None] if layout == "members" else [f"{key}.tiff"]
    yield from zip(names, document.files, strict=True)


def _vocabulary() -> list[str]:
    rng = np.random.default_rng(_SEED)
    made = (
        "".join(_SYLLABLES[at] for at in rng.integers(0, len(_SYLLABLES), int(rng.integers(1, 5))))
        for _ in range(4000)
    )
    return [*_SHORT, *made]
