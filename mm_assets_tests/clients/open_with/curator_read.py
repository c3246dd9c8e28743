"""NeMo Curator's reader with two parameters, bytes fetched on read.

It re-encodes every TIFF, so besides ``images`` this reports ``ranges``: digests of the byte ranges its
locators name.
"""

import json
import sys
from pathlib import Path

from loguru import logger
from nemo_curator.stages.interleaved.io.readers.webdataset import InterleavedWebdatasetReaderStage
from nemo_curator.tasks import FileGroupTask, InterleavedBatch
from normal_form import document, from_rows, report, sha256, stripped


def byte_range(source_ref: str) -> bytes:
    locator = InterleavedBatch.parse_source_ref(source_ref)
    with open(locator["path"], "rb") as tar:
        tar.seek(locator["byte_offset"])
        return tar.read(locator["byte_size"])


def main(folder: Path) -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    stage = InterleavedWebdatasetReaderStage(
        sample_id_field="sample_id", images_field="image_members", materialize_on_read=True
    )
    tars = [str(tar) for tar in sorted(folder.glob("*.tar"))]
    result = stage.process(FileGroupTask(dataset_name="ours", data=tars))
    batches = result if isinstance(result, list) else [result]
    rows = [row for batch in batches for row in batch.to_pyarrow().to_pylist()]

    extras, errors, ranges = {}, {}, {}
    for row in rows:
        if row["modality"] == "metadata":  # what it does not know it passes on, as JSON text
            extras[row["sample_id"]] = json.loads(row["_row_extra"]) if row.get("_row_extra") else None
            errors[row["sample_id"]] = json.loads(row["_row_errors"])
        elif row["modality"] == "image":
            ranges.setdefault(row["sample_id"], {})[row["position"]] = sha256(byte_range(row["source_ref"]))
    found = from_rows(rows)
    for sample_id, sample in found.items():
        told = document((), (), extras[sample_id], [*sample["errors"], *errors[sample_id]])
        sample.update((part, told[part]) for part in ("errors", "metadata", "text_extra", "image_extra"))
        positions = ranges.get(sample_id, {})
        sample["ranges"] = stripped(
            positions.get(position) for position in range(max(positions, default=-1) + 1)
        )
    report(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
