"""What a training loop waits for: paired tars beside plain webdataset; interleaved samples of all formats, in
order and at random.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.measuring import Measurement, measure
from benchmarks.paired_reads import Sizes, make_tars
from benchmarks.programs import OURS
from benchmarks.results import Results
from benchmarks.sample_reads import shuffled
from benchmarks.shards import Shape
from benchmarks.sources import files_of
from benchmarks.workbench import DATA, fresh_output, warm

_SAMPLE_BYTES = 300_000
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # others spin for a moment after numpy's import, which is no read
_RANDOM = 400  # samples read at random, at most
_SEED = 20_263
_NAMES = {
    "cache": "Arrow cache, InterleavedArrowDataset",
    "cache rows": "Arrow cache, ArrowCache.rows",
    "datasets": "Hugging Face datasets, Arrow",
    "lance": "Lance, scan or take",
    "parquet": "Parquet, row groups",
    "webdataset": "tars, webdataset",
}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "training",
        help="paired tars beside webdataset; cache, Lance, Parquet and datasets in order and at random",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        help="interleaved ones of 300 KB, in four shards (default: %(default)s)",
    )
    parser.add_argument(
        "--paired", type=int, default=2000, help="samples of 153 KB in paired tars (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure paired tars, then all formats."""
    curator.version()  # the clients' environment has datasets: say at once that it is missing
    results = Results(f"training-{options.samples}", "Training reads")
    results.say(
        f"One process, files in the page cache; medians of {options.rounds} rounds in turns. Bytes "
        f"are read, nothing is decoded."
    )
    results.keep({"paired": _paired(results, options), "samples": _samples(results, options)})
    results.publish()
    return 0


def _paired(results: Results, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows, figures = [], []
    for sizes in (Sizes(options.paired, 150_000, 3_000), Sizes(options.paired * 10, 2_000, 500)):
        tars = make_tars(DATA, sizes)
        apart = warm(Path(name) for names in tars.modalities.values() for name in names)
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "MultiModalWebDataset, two sets of tars": ("prepare_paired", {"modalities": tars.modalities}),
            "wds.WebDataset, one set": ("prepare_plain", {"files": warm(map(Path, tars.together))}),
            "files read whole": ("prepare_raw", {"files": apart}),
        }
        found: dict[str, list[Measurement]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, (task, arguments) in ways.items():
                found[name].append(
                    measure(f"benchmarks.paired_reads:{task}", environment=_ONE_THREAD, **arguments)
                )
        read = [found[name][0].result for name in list(ways)[:2]]
        if (
            read
            != [{"samples": sizes.samples, "payload": sizes.samples * (sizes.images + sizes.embeddings)}] * 2
        ):
            raise ValueError(f"not the same was read: {read}")
        what = f"{sizes.images / 1000:g} KB + {sizes.embeddings / 1000:g} KB"
        for name, done in found.items():
            rows.append((what, name, f"{sizes.samples:,}", *_costs(done, sizes.samples)))
            figures.append({"sizes": what, "samples": sizes.samples, "way": name, **_seconds(done)})
    results.table(("a sample", "read by", "samples", "samples/s", "CPU µs a sample"), rows)
    return figures


def _samples(results: Results, options: argparse.Namespace) -> list[dict[str, Any]]:
    shape = Shape("members", 4, options.samples, _SAMPLE_BYTES, (2, 4))
    source = files_of(shape, "parquet")
    count = min(_RANDOM, options.samples)
    orders = {"in order": None, "at random": shuffled(options.samples, _SEED)[:count]}
    rows, figures = [], []
    with fresh_output() as output:
        folders = {"parquet": str(source.files[0].parent)}
        for target in ("arrow_cache", "lance", "webdataset"):
            folders[target] = str(output / target)
            OURS.convert("parquet", target, source, output / target, is_filtered=False)
        folders["datasets"] = str(output / "datasets")
        hugging_face: dict[str, Any] = {
            "python": curator.PYTHON,
            "environment": {**_ONE_THREAD, "HF_HOME": str(output / "home"), "HF_HUB_OFFLINE": "1"},
        }
        files = [str(file) for file in source.files]
        measure(
            "benchmarks.sample_reads:make_hugging_face",
            files=files,
            folder=folders["datasets"],
            **hugging_face,
        )
        folders |= {"cache": folders["arrow_cache"], "cache rows": folders["arrow_cache"]}
        warm(
            Path(folder, name)
            for path in folders.values()
            for folder, _, names in os.walk(path)
            for name in names
        )

        def read(task: str, reader: str, order: list[int] | None) -> Measurement:
            more: dict[str, Any] = hugging_face if reader == "datasets" else {"environment": _ONE_THREAD}
            return measure(
                f"benchmarks.sample_reads:{task}", reader=reader, folder=folders[reader], order=order, **more
            )

        for name, order in orders.items():
            readers = [reader for reader in _NAMES if order is None or reader != "webdataset"]
            digests = {reader: read("digest_of", reader, order).result for reader in readers}
            if len({str(digest) for digest in digests.values()}) > 1:
                raise ValueError(f"not the same was read {name}: {digests}")
            found: dict[str, list[Measurement]] = {reader: [] for reader in readers}
            for _ in range(options.rounds):
                for reader in readers:
                    found[reader].append(read("prepare", reader, order))
            for reader, done in found.items():
                samples = done[0].result["samples"]
                rows.append((name, _NAMES[reader], f"{samples:,}", *_costs(done, samples)))
                figures.append({"order": name, "reader": reader, "samples": samples, **_seconds(done)})
    results.say(
        f"Interleaved samples of {_SAMPLE_BYTES // 1000} KB with 2 to 4 images, {options.samples} in "
        f"four shards; "
        "every format gave the same ids, texts and image bytes (by digest)."
    )
    results.table(("samples", "read by", "read", "samples/s", "CPU µs a sample"), rows)
    return figures


def _costs(done: list[Measurement], samples: int) -> tuple[str, str]:
    wall, cpu = median(one.wall for one in done), median(one.cpu for one in done)
    return f"{samples / wall:,.0f}", f"{cpu / samples * 1e6:,.0f}"


def _seconds(done: list[Measurement]) -> dict[str, Any]:
    return {"cpu": [one.cpu for one in done], "wall": [one.wall for one in done]}
