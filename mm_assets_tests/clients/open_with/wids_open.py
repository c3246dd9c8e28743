"""wids: random access through index.json, from the last sample to the first."""

import json
import sys
import tempfile
from pathlib import Path

import wids
from normal_form import Document, collected, from_payload, report


def main(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as cache
    ):  # wids' own cache is keyed by path and would serve an older tar
        dataset = wids.ShardListDataset(str(folder / "index.json"), transformations=[], cache_dir=cache)

        def one(number: int) -> tuple[str, Document]:
            sample = dataset[number]
            payload = json.loads(sample[".json"].read())
            return from_payload(payload, lambda reference: sample[f".{reference}"].read())

        report(collected(one(number) for number in reversed(range(len(dataset)))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
