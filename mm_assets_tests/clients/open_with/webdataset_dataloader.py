"""webdataset in a torch DataLoader with two workers."""

import json
import sys
from pathlib import Path

import webdataset as wds
from normal_form import collected, from_payload, report
from torch.utils.data import DataLoader


def main(folder: Path) -> None:
    dataset = wds.WebDataset([str(tar) for tar in sorted(folder.glob("*.tar"))], shardshuffle=False)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    report(collected(from_payload(json.loads(sample["json"]), sample.__getitem__) for sample in loader))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
