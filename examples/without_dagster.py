"""Convert raw shards with the library alone, and look up a document by its id: no Dagster, no torch.

    python examples/without_dagster.py 'RAW/*.tar' OUT

The base install has all that this needs: ``pip install mm-assets``.
"""

import argparse
from pathlib import Path
from typing import Any

from mm_assets import (
    InterleavedArrowCacheWriter,
    InterleavedArrowDataset,
    InterleavedParquetReader,
    InterleavedParquetWriter,
    InterleavedWebdatasetReader,
)


def convert(raw: str, out: Path) -> None:
    """Write the documents as Parquet, and these again as a cache for training."""
    parquet, cache = str(out / "parquet"), str(out / "arrow_cache")
    # A document with an image that cannot be had is left out, and counted.
    writer = InterleavedParquetWriter(parquet, on_materialize_error="drop_sample")
    report = writer.write(InterleavedWebdatasetReader(raw))
    print(f"{parquet}: {report.samples} samples, {report.images} images, {len(report.errors)} errors")
    report = InterleavedArrowCacheWriter(cache).write(InterleavedParquetReader(parquet))
    print(f"{cache}: {report.samples} samples, {report.images} images")


def described(item: dict[str, Any]) -> str:
    """An item of a document in a few words."""
    if item["modality"] == "text":
        return f"text of {len(item['text'])} letters"
    return f"image of {len(item['image'])} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", help="tars: a file, a folder or a pattern")
    parser.add_argument("out", type=Path, help="folder for the outputs")
    parser.add_argument("--sample", help="id of the document to show (default: the first)")
    options = parser.parse_args()

    convert(options.raw, options.out)
    dataset = InterleavedArrowDataset(options.out / "arrow_cache")
    document = dataset[0 if options.sample is None else dataset.index(options.sample)]
    print(f"{document['sample_id']}: {', '.join(map(described, document['items']))}")


if __name__ == "__main__":
    main()
