"""Scores of images by this project's measures, and decisions by the peer's stages, each in the measured
process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.measuring import Work
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO

_MAX_PIXELS = 100_000_000
_BATCH = 100  # images of a batch of the peer


def prepare_scores(files: Sequence[str], names: Sequence[str]) -> Work:
    """Measure image files; the work gives the values of each, in the order of ``names``, or its error."""
    from mm_assets.filters.measure import ImageContent
    from mm_assets.filters.measures import IMAGE_MEASURES
    from mm_assets.formats.images import probe
    from mm_assets.model.errors import ImageError

    by_name = {measure.name: measure for measure in IMAGE_MEASURES}
    images = [Path(file).read_bytes() for file in files]

    def score(data: bytes) -> list[Any] | str:
        info = probe(data)
        content = ImageContent(memoryview(data), info, _MAX_PIXELS)
        try:
            ratio = info.display_width / info.display_height
            return [ratio if name == "ratio" else by_name[name].measure(content) for name in names]
        except ImageError as error:
            return str(error)

    score(images[0])
    return lambda: {"scores": [score(data) for data in images]}


def prepare_decode(files: Sequence[str]) -> Work:
    """Decode image files to pixels, which all scores of pixels share."""
    from mm_assets.formats.images import probe
    from mm_assets.formats.images.pixels import rgb_pixels

    images = [Path(file).read_bytes() for file in files]

    def work() -> dict[str, Any]:
        return {"pixels": sum(rgb_pixels(data, probe(data).format, _MAX_PIXELS).size for data in images)}

    rgb_pixels(images[0], probe(images[0]).format, _MAX_PIXELS)
    return work


def prepare_peer(files: Sequence[str], stage: str) -> Work:
    """Run a stage of the peer, ``blur``, ``qr`` or ``ratio``; the work gives which images it keeps."""
    from loguru import logger
    from nemo_curator.stages import interleaved

    # The package's own __init__ imports the filter by CLIP, which needs torchvision and transformers, too.
    package = ModuleType(f"{interleaved.__name__}.filter")
    package.__path__ = [f"{interleaved.__path__[0]}/filter"]
    sys.modules[package.__name__] = package
    from nemo_curator.stages.interleaved.filter.blur_filter import InterleavedBlurFilterStage
    from nemo_curator.stages.interleaved.filter.qrcode_filter import InterleavedQRCodeFilterStage
    from nemo_curator.stages.interleaved.stages import InterleavedAspectRatioFilterStage

    logger.remove()
    stages: dict[str, Any] = {
        "blur": InterleavedBlurFilterStage(),
        "qr": InterleavedQRCodeFilterStage(),
        "ratio": InterleavedAspectRatioFilterStage(
            min_aspect_ratio=MIN_ASPECT_RATIO, max_aspect_ratio=MAX_ASPECT_RATIO
        ),
    }
    batches = list(_batches([Path(file).read_bytes() for file in files]))
    stages[stage].process(next(_batches([Path(files[0]).read_bytes()])))

    def work() -> dict[str, Any]:
        kept: set[str] = set()
        for batch in batches:
            kept.update(stages[stage].process(batch).to_pandas()["sample_id"])
        return {"kept": [str(number) in kept for number in range(len(files))]}

    return work


def _batches(images: Sequence[bytes]) -> Iterator[Any]:
    """Batches of samples with one image each, numbered."""
    import pyarrow as pa
    from nemo_curator.tasks.interleaved import INTERLEAVED_SCHEMA, InterleavedBatch

    for first in range(0, len(images), _BATCH):
        rows = [
            {"sample_id": str(first + n), "position": 0, "modality": "image", "binary_content": data}
            for n, data in enumerate(images[first : first + _BATCH])
        ]
        table = pa.Table.from_pylist(rows, schema=INTERLEAVED_SCHEMA)
        yield InterleavedBatch(dataset_name="benchmark", data=table)
