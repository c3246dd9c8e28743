"""Megatron-Energon, two ways: `energon prepare` on a bare copy of the tars, and the loader on the folder as
we left it.

`prepare` must accept the tars, and the .tar.idx it writes must be ours to the byte.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_val_dataset,
    reraise_exception,
    stateless,
)
from megatron.energon.cli.main import main as energon
from normal_form import Document, collected, from_payload, report, require_same


@edataclass
class Found(Sample):
    sample_id: str
    found: dict[str, Any]


@stateless
def cook(crude: dict[str, Any]) -> Found:
    sample_id, found = from_payload(json.loads(crude["json"]), crude.__getitem__)
    return Found(**basic_sample_keys(crude), sample_id=sample_id, found=found)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)
    decoder = None  # raw bytes

    @stateless
    def batch(self, samples: list[Found]) -> list[tuple[str, Document]]:
        return [(sample.sample_id, sample.found) for sample in samples]

    @stateless
    def encode_batch(self, batch: list[tuple[str, Document]]) -> list[tuple[str, Document]]:
        return batch


def load(folder: Path) -> dict[str, Document]:
    # A validation set ends after one epoch; by default a cooker's exception would be swallowed.
    workers = WorkerConfig(rank=0, world_size=1, num_workers=2, global_error_handler=reraise_exception)
    dataset = get_val_dataset(
        folder, split_part="train", worker_config=workers, batch_size=4, task_encoder=Encoder()
    )
    return collected(sample for batch in get_loader(dataset) for sample in batch)


def prepare(folder: Path) -> None:
    options = (
        "--non-interactive --split-ratio 1,0,0 --sample-type CrudeWebdataset --num-workers 2 --no-progress"
    )
    energon(["prepare", str(folder), *options.split()], standalone_mode=False)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        bare = Path(temporary)
        for tar in folder.glob("*.tar"):
            shutil.copy(tar, bare / tar.name)
        prepare(bare)
        for index in bare.glob("*.tar.idx"):
            if index.read_bytes() != (folder / index.name).read_bytes():
                raise ValueError(f"{index.name} is not what energon prepare writes")
        prepared = load(bare)
    ours = load(folder)
    require_same(prepared, ours, "energon after prepare, and on the index files we wrote")
    report(ours)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
