"""Hugging Face datasets: load_dataset(folder), as a map and streaming, every picture decoded once."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from normal_form import Document, collected, from_payload, report, require_same


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        # Read when datasets is imported; without it the library keeps its cache in $HOME and asks the Hub.
        os.environ.update(
            HF_HOME=home, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1"
        )
        import datasets

        def documents(rows: Iterable[dict[str, Any]]) -> dict[str, Document]:
            return collected(
                from_payload(row["json"], lambda ref, row=row: row[ref]["bytes"]) for row in rows
            )

        def decoded(rows: Iterable[dict[str, Any]]) -> int:
            return sum(
                row[ref].size[0] > 0 for row in rows for ref in row["json"]["images"] if ref is not None
            )

        mapped = datasets.load_dataset(str(folder), split="train")
        streamed = datasets.load_dataset(str(folder), split="train", streaming=True)
        require_same(decoded(mapped), decoded(streamed), "pictures decoded as a map and streaming")

        bare = mapped.features.copy()  # the same, with the bytes of a picture in place of the picture
        images = [name for name, feature in bare.items() if isinstance(feature, datasets.Image)]
        bare.update((name, datasets.Image(decode=False)) for name in images)
        found = documents(mapped.cast(bare))
        require_same(found, documents(streamed.cast(bare)), "load_dataset as a map and streaming")
        report(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
