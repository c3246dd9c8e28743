"""Convert raw shards with the library alone, and look up a document by its id: no Dagster, no torch.

    python examples/without_dagster.py 'RAW/*.tar' OUT

The base install has all that this needs: ``pip install mm-assets``.
"""

import argparse
from typing import Any

from mm_assets import (
    InterleavedArrowCacheWriter,
    InterleavedArrowDataset,
    InterleavedParquetReader,
    InterleavedParquetWriter,
    InterleavedWebdatasetReader,
)


def convert(raw: str, out: str) -> None:
    """Write the documents as Parquet, and these again as a cache for training."""
    parquet, cache = f"{out}/parquet", f"{out}/arrow_cache"
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
    parser.add_argument("out", help="folder for the outputs, on a disk of this machine")
    parser.add_argument("--sample", help="id of the document to show (default: the first)")
    options = parser.parse_args()

    convert(options.raw, options.out)
    dataset = InterleavedArrowDataset(f"{options.out}/arrow_cache")
    document = dataset[0 if options.sample is None else dataset.index(options.sample)]
    print(f"{document['sample_id']}: {', '.join(map(described, document['items']))}")


if __name__ == "__main__":
    main()
