"""A script of ``examples/`` as it runs, and what its training loop is given.

Arguments: its name, then its own arguments. Last line: batches of [sample id, [text or [width, height, digest
of the pixels]], embedding].
"""

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))


def plain(item: str | Image.Image) -> Any:
    return item if isinstance(item, str) else [*item.size, hashlib.sha256(item.tobytes()).hexdigest()]


def main(name: str, arguments: list[str]) -> None:
    example, batches = importlib.import_module(name), []

    def train_step(samples: list[dict[str, Any]]) -> None:
        batches.append(
            [
                [one["sample_id"], list(map(plain, one["items"])), list(map(float, one.get("embedding", [])))]
                for one in samples
            ]
        )

    example.train_step = train_step
    example.main(arguments)
    print(json.dumps(batches))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
