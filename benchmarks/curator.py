"""The peer's side: NeMo Curator's own stages in the measured process, one partition after the other, without
an executor.

That is its best case: Ray alone costs it more CPU than the work on sets this small. Runs in
``.venv-clients``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, Work
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO, PER_IMAGE_FIELDS

PYTHON = ROOT / ".venv-clients" / "bin" / "python"


def version() -> str:
    """Of the installed peer. Raises ``FileNotFoundError`` without one."""
    found = sorted(ROOT.glob(".venv-clients/lib/python3*/site-packages/nemo_curator-*.dist-info"))
    if not found:
        raise FileNotFoundError("NeMo Curator is not installed: run `make clients`")
    return found[0].name.removeprefix("nemo_curator-").removesuffix(".dist-info")


def prepare(
    source: str,
    target: str,
    files: Sequence[str],
    output: str,
    warm_up: Sequence[str],
    is_filtered: bool = True,
) -> Work:
    """Convert ``files`` of format ``source`` into a folder; ``warm_up`` are small ones that load every module
    before.
    """
    from loguru import logger

    logger.remove()
    _run(source, target, warm_up, f"{output}.warm-up", is_filtered)

    def work() -> dict[str, Any]:
        _run(source, target, files, output, is_filtered)
        return {"nbytes": sum(file.stat().st_size for file in Path(output).iterdir())}

    return work


def _run(source: str, target: str, files: Sequence[str], output: str, is_filtered: bool) -> None:
    from nemo_curator.backends.base import BaseStageAdapter
    from nemo_curator.tasks import EmptyTask

    pipeline = _pipeline(source, target, files, output, is_filtered)
    pipeline.build()
    for stage in pipeline.stages:
        stage.setup_on_node(None, None)
        stage.setup(None)
    first, *others = [BaseStageAdapter(stage) for stage in pipeline.stages]
    for partition in first.process_batch([EmptyTask()]):
        tasks = [partition]
        for adapter in others:
            tasks = [made for task in tasks for made in adapter.process_batch([task])]


def main() -> None:
    """Run pipelines one after the other as a user's script does: ``EXECUTOR FORMAT,FORMAT,… OUTPUT FILE …``.

    ``EXECUTOR`` is ``ray``, or ``none`` for the stages called in this process. Between each two formats there
    is a pipeline; that which filters is the only one, or that from Parquet to Parquet.
    """
    from loguru import logger

    logger.remove()
    executor, names, output, *files = sys.argv[1:]
    formats = names.split(",")
    if executor not in ("ray", "none") or len(formats) < 2:
        sys.exit(f"{executor} {names}: not ray or none, and formats between which there is a pipeline")
    run = _run_by_ray if executor == "ray" else _run
    for number, (source, target) in enumerate(pairwise(formats)):
        is_last = number == len(formats) - 2
        folder = output if is_last else f"{output}.{number}"
        run(source, target, files, folder, is_filtered=len(formats) == 2 or source == target)
        files = sorted(str(file) for file in Path(folder).iterdir())


def _run_by_ray(source: str, target: str, files: Sequence[str], output: str, is_filtered: bool) -> None:
    import ray
    from nemo_curator.backends.ray_data import RayDataExecutor

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    _pipeline(source, target, files, output, is_filtered).run(RayDataExecutor())


def _pipeline(source: str, target: str, files: Sequence[str], output: str, is_filtered: bool) -> Any:
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.interleaved.io import (
        InterleavedParquetReader,
        InterleavedParquetWriterStage,
        InterleavedWebdatasetReader,
        InterleavedWebdatasetWriterStage,
    )
    from nemo_curator.stages.interleaved.stages import InterleavedAspectRatioFilterStage

    pipeline = Pipeline(name="benchmark")
    arguments: dict[str, Any] = {"file_paths": list(files), "files_per_partition": 1}
    if source == "webdataset":  # fetched on read, as in Curator's own benchmark and tutorial
        pipeline.add_stage(
            InterleavedWebdatasetReader(
                **arguments, materialize_on_read=True, per_image_fields=PER_IMAGE_FIELDS
            )
        )
    else:
        pipeline.add_stage(InterleavedParquetReader(**arguments))
    if is_filtered:
        pipeline.add_stage(
            InterleavedAspectRatioFilterStage(
                min_aspect_ratio=MIN_ASPECT_RATIO, max_aspect_ratio=MAX_ASPECT_RATIO
            )
        )
    writer = InterleavedParquetWriterStage if target == "parquet" else InterleavedWebdatasetWriterStage
    pipeline.add_stage(writer(path=output, mode="overwrite", on_materialize_error="error"))
    return pipeline


if __name__ == "__main__":
    main()
