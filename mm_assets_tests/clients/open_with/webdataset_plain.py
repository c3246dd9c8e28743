"""webdataset, nothing decoded: sample[images[position]] are the bytes."""

import json
import sys
from pathlib import Path

import webdataset as wds
from normal_form import collected, from_payload, report


def main(folder: Path) -> None:
    dataset = wds.WebDataset([str(tar) for tar in sorted(folder.glob("*.tar"))], shardshuffle=False)
    report(collected(from_payload(json.loads(sample["json"]), sample.__getitem__) for sample in dataset))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
