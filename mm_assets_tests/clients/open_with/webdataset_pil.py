"""webdataset with decode("pil"): pictures as a training loop gets them. Reports ``pixels`` in place of
``images``.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import webdataset as wds
from normal_form import Document, collected, document, report, stripped
from PIL import Image


def pixels(image: Image.Image) -> str:
    return hashlib.sha256(repr(image.size).encode() + image.convert("RGB").tobytes()).hexdigest()


def one(sample: dict[str, Any]) -> tuple[str, Document]:
    payload = sample["json"]
    digests = [None if reference is None else pixels(sample[reference]) for reference in payload["images"]]
    found = document(payload["texts"], (), payload.get("_row_extra"), payload["_row_errors"])
    return payload["sample_id"], {**found, "pixels": stripped(digests)}


def main(folder: Path) -> None:
    tars = [str(tar) for tar in sorted(folder.glob("*.tar"))]
    report(collected(map(one, wds.WebDataset(tars, shardshuffle=False).decode("pil"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
