"""A script of ``examples/`` as it runs, once or several times, and what its training loop is given.

Arguments: its name, and its runs: a JSON list of [its arguments, its environment]. Last line of each run:
batches of [sample id, [text or [width, height, digest of the pixels]], embedding].
"""

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))


def plain(item: str | Image.Image) -> Any:
    return item if isinstance(item, str) else [*item.size, hashlib.sha256(item.tobytes()).hexdigest()]


def main(name: str, runs: list[tuple[list[str], dict[str, str]]]) -> None:
    example = importlib.import_module(name)
    for arguments, environment in runs:
        batches: list[Any] = []

        def train_step(samples: list[dict[str, Any]], batches: list[Any] = batches) -> None:
            batches.append(
                [
                    [
                        one["sample_id"],
                        list(map(plain, one["items"])),
                        list(map(float, one.get("embedding", []))),
                    ]
                    for one in samples
                ]
            )

        example.train_step = train_step
        with mock.patch.dict(os.environ, environment):
            example.main(arguments)
        print(json.dumps(batches))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
