"""The Arrow cache beside Hugging Face datasets: the same examples and features through both, and our shards
opened by theirs.
"""

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 60
NAMES = ["cat", "dog", "cow"]


def examples() -> Iterator[dict[str, Any]]:
    chance = np.random.default_rng(7)
    for number in range(COUNT):
        yield {
            "number": number if number % 7 else None,
            "ratio": number / 7,
            "text": f"ü {number}",
            "label": NAMES[number % 3] if number % 2 else number % 3,
            "image": chance.integers(0, 256, (5, 4, 3), np.uint8),
            "array": chance.random((2, 3, 4), np.float32),
            "list": list(range(number % 5)),
            "nested": [[1], [], [number, 2]],
        }


def features(library: Any) -> Any:
    return library.Features(
        {
            "number": library.Value("int32"),
            "ratio": library.Value("float64"),
            "text": library.Value("string"),
            "label": library.ClassLabel(names=NAMES),
            "image": library.Image(),
            "array": library.Array3D(shape=(2, 3, 4), dtype="float32"),
            "list": library.Sequence(library.Value("int64")),
            "nested": library.Sequence(library.Sequence(library.Value("int32"))),
        }
    )


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of either library as JSON values."""
    return {
        name: value if isinstance(value, list) else np.asarray(value).tolist() for name, value in row.items()
    }


def plain_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [plain(row) for row in rows]


def main(folder: Path) -> None:
    os.environ.update(
        HF_HOME=str(folder / "home"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    )
    import datasets
    from PIL import Image
    from torch.utils.data import DataLoader

    from mm_assets import formats

    ours = formats.write_sharded_arrow_cache(
        enumerate(examples()), features(formats), folder / "cache", batch_size=7, shard_size_bytes=3000
    )
    cache = formats.ArrowCache(folder / "cache")
    theirs = datasets.Dataset.from_generator(examples, features=features(datasets))
    expected = plain_rows(theirs)

    names = [str(path) for path in ours.shard_paths]
    opened = datasets.load_dataset("arrow", data_files=names, split="train").cast_column(
        "image", datasets.Image()
    )
    streamed = datasets.load_dataset("arrow", data_files=names, split="train", streaming=True)
    arrays = [np.frombuffer(row["array"], np.float32).reshape(2, 3, 4).tolist() for row in opened]
    seen = {}
    for method in ("fork", "spawn"):
        loader = DataLoader(
            cache,
            batch_size=8,
            shuffle=True,
            num_workers=2,
            collate_fn=plain_rows,
            multiprocessing_context=method,
        )
        seen[method] = (
            sorted((row for rows in loader for row in rows), key=lambda row: row["ratio"]) == expected
        )
    report = {
        "shards": ours.num_shards,
        "rows of both": len(expected),
        "our reader finds what theirs does": plain_rows(cache) == expected,
        "our shards in datasets": [
            {**plain(row), "array": array} for row, array in zip(opened, arrays, strict=True)
        ]
        == expected,
        "our shards streamed": [np.asarray(Image.open(io.BytesIO(row["image"]))).tolist() for row in streamed]
        == [row["image"] for row in expected],
        "DataLoader": seen,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
