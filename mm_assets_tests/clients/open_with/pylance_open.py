"""pylance: a whole scan, and a filtered one that must use the same rows."""

import sys
from pathlib import Path

import lance
from normal_form import from_rows, report, require_same


def main(folder: Path) -> None:
    (table,) = [folder] if folder.suffix == ".lance" else folder.glob("*.lance")
    dataset = lance.dataset(str(table))
    encoded = [
        field.name for field in dataset.schema if (field.metadata or {}).get(b"mm_assets:encoding") == b"json"
    ]
    found = from_rows(dataset.to_table().to_pylist(), encoded)

    images = dataset.to_table(
        columns=["sample_id", "position", "binary_content"], filter="modality = 'image'"
    )
    by_scan = sum(digest is not None for sample in found.values() for digest in sample["images"])
    require_same(
        by_scan, images.num_rows - images["binary_content"].null_count, "images by scan and by filter"
    )
    report(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
