"""A published folder as `datasets` loads it by its card: rows, features and sample ids."""

import json
import os
import sys
import tempfile
from pathlib import Path


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        # Read when datasets is imported; without it the library keeps its cache in $HOME and asks the Hub.
        os.environ.update(
            HF_HOME=home, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1"
        )
        from datasets import load_dataset

        found = load_dataset(str(folder), split="train", cache_dir=home)
        ids = {row.get("json", row)["sample_id"] for row in found}
        print(json.dumps({"rows": found.num_rows, "features": str(found.features), "ids": sorted(ids)}))


main(Path(sys.argv[1]))
