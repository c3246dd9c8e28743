"""Runs the code blocks of a Markdown text about `MultiModalWebDataset` by our import path: paired_blocks.py
TEXT.md FOLDER

FOLDER stands for the text's /data. A block goes on with the names of the one before. Prints a JSON line for
each block. What the text only hints at with ``...`` is filled in here.
"""

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

from mm_assets.formats import MultiModalWebDataset, PairedShardList, PairedTarExpander

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OURS = {
    "MultiModalWebDataset": MultiModalWebDataset,
    "PairedShardList": PairedShardList,
    "PairedTarExpander": PairedTarExpander,
}


def filled_in(block: str, folder: Path) -> str:
    block = re.sub(rf"\bwds\.({'|'.join(_OURS)})\b", r"\1", block).replace("/data/", f"{folder}/")
    block = block.replace('{"images": ..., "embeddings": ...}', "misaligned").replace("{...}", "aligned")
    return re.sub(r"^\s+\w+=\.\.\.,.*\n", "", block, flags=re.MULTILINE)  # the defaults are meant


def run(block: str, names: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"block": block, "keys": None, "error": None}
    printed = io.StringIO()
    before = names.get("ds")
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "<block>", "exec"), names)  # noqa: S102 (running it is the point)
        if names.get("ds") is not before and "://" not in block:
            told["keys"] = [sample["__key__"] for sample in names["ds"] if isinstance(sample, dict)]
    except ValueError as error:
        told["error"] = str(error)
    told["printed"] = printed.getvalue().splitlines()
    return told


def main(text: Path, folder: Path) -> None:
    names: dict[str, Any] = {"wds": wds, "DataLoader": DataLoader, **_OURS}
    for name, where in (("aligned", folder), ("misaligned", folder / "misaligned")):
        names[name] = {
            modality: str(where / modality / "shard_0000.tar") for modality in ("images", "embeddings")
        }
    names["modalities"] = names["aligned"]
    for block in _BLOCK.findall(text.read_text(encoding="utf-8")):
        print(json.dumps(run(filled_in(block, folder), names)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
