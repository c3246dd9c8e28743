"""Scores of images: CPU of each measure beside the peer's stages, and decisions beside what is known."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import curator
from benchmarks.measuring import Measurement, measure
from benchmarks.photographs import Photographs, draw_size
from benchmarks.results import Results, spread
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO
from benchmarks.score_pictures import Labelled, encoded, labelled, photographs
from benchmarks.score_tables import NEAR, by_kind, distances, parity, quality
from benchmarks.workbench import fresh_output, warm
from mm_assets.filters.clip import ClipMeasure
from mm_assets.filters.measures import IMAGE_MEASURES
from mm_assets.pool import WORKER_ENVIRONMENT

_SIZES = {"1 MP": 1_000_000.0, "thumbnails": 40_000.0}  # pixels
_LEAST_SHARPNESS, _GREATEST_QR_AREA = 100.0, 0.05  # the peer's defaults
_STAGES = {"blur": "NeMo Curator, blur", "qr": "NeMo Curator, QR code"}
_OURS = ("sharpness", "sharpness_512", "qr_area", "perceptual_hash", "ratio")
_SEED = 20_262


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "scores", help="scores of images beside NeMo Curator's filters: CPU, decisions (8 minutes)"
    )
    parser.add_argument("--images", type=int, default=1000, help="half of them of 1 MP, half thumbnails")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photographs", type=Path, help="a folder of real ones to degrade; some are made")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure CPU in turns, then decide about degraded photographs."""
    results = Results(f"scores-{options.images}", f"Scores of images beside NeMo Curator {curator.version()}")
    _costs(results, options.images // 2, options.rounds)
    _decisions(results, options.photographs)
    results.publish()
    return 0


def _costs(results: Results, images: int, rounds: int) -> None:
    runs: dict[str, dict[str, list[Measurement]]] = {size: defaultdict(list) for size in _SIZES}
    for size, area in _SIZES.items():
        with fresh_output() as folder:
            files = _stored(folder, (picture for picture in _photographs(images, area)))
            for _ in range(rounds):
                for name, found in _measured(files).items():
                    runs[size][name].append(found)
    milliseconds = {
        size: {name: [run.cpu * 1000 / images for run in found] for name, found in of_size.items()}
        for size, of_size in runs.items()
    }
    results.say(
        f"{images:,} JPEG of about 1 MP and {images:,} thumbnails of about 0.04 MP, like photographs. "
        f"Milliseconds of CPU for an image, user and system, decoding included; {rounds} rounds in turns, "
        "each in a process of its own: median (least–greatest). The peer's are its stages over batches of "
        "100 images, without an executor. MiB is the peak of memory above that before, at 1 MP."
    )
    peaks = {name: max(run.peak for run in found) for name, found in runs["1 MP"].items()}
    results.table(
        ("what", *(f"{size}, ms" for size in _SIZES), "MiB"),
        [
            (name, *(spread(milliseconds[size][name]) for size in _SIZES), f"{peak:.0f}")
            for name, peak in peaks.items()
        ],
    )
    for size in _SIZES:
        middle = {name: median(values) for name, values in milliseconds[size].items()}
        slowest = max(middle[name] for name in _STAGES.values())
        results.say(
            f"Goal at {size}: all scores together cost no more than the slowest stage of the peer; "
            f"they cost {middle['all scores'] / slowest:.2f} of it."
        )
    results.keep({"cpu_ms": milliseconds, "peak_mib": peaks})


def _measured(files: Sequence[str]) -> dict[str, Measurement]:
    """One run of each."""
    names = [kind.name for kind in IMAGE_MEASURES if not isinstance(kind, ClipMeasure)]
    found = {"decoding alone": _ours("prepare_decode", files)}
    found |= {name: _ours("prepare_scores", files, names=[name]) for name in names}
    found["all scores"] = _ours("prepare_scores", files, names=names)
    return found | {label: _peer(files, stage) for stage, label in _STAGES.items()}


def _ours(task: str, files: Sequence[str], **arguments: Any) -> Measurement:
    return measure(f"benchmarks.score_tasks:{task}", environment=WORKER_ENVIRONMENT, files=files, **arguments)


def _peer(files: Sequence[str], stage: str) -> Measurement:
    return measure("benchmarks.score_tasks:prepare_peer", python=curator.PYTHON, files=files, stage=stage)


def _photographs(images: int, area: float) -> Iterable[bytes]:
    made, rng = Photographs(_SEED), np.random.default_rng(_SEED)
    return (encoded(made.take(rng, *draw_size(rng, area)), quality=85) for _ in range(images))


def _stored(folder: Path, images: Iterable[bytes]) -> list[str]:
    """The paths of new files."""
    folder.mkdir()
    files = []
    for number, data in enumerate(images):
        files.append(folder / f"{number:05}")
        files[-1].write_bytes(data)
    return warm(files)


def _decisions(results: Results, folder: Path | None) -> None:
    sources = photographs(folder)
    pictures = labelled(sources)
    with fresh_output() as output:
        files = _stored(output, (picture.data for picture in pictures))
        scores = _ours("prepare_scores", files, names=_OURS).result["scores"]
        kept = {stage: _peer(files, stage).result["kept"] for stage in (*_STAGES, "ratio")}
    theirs = {stage: [not is_kept for is_kept in of_stage] for stage, of_stage in kept.items()}
    # Like the peer, drop what cannot be decoded.
    ours = [[True] * 5 if isinstance(found, str) else _drops(found) for found in scores]
    small, native, qr, ratio = ([drops[place] for drops in ours] for place in (1, 0, 2, 4))
    origin = "real photographs and documents" if folder else "photographs made for this"
    results.say(
        f"{len(sources)} {origin}, degraded in code to {len(pictures):,} pictures. Thresholds are the peer's "
        f"defaults: sharpness {_LEAST_SHARPNESS:.0f}, QR area {_GREATEST_QR_AREA}, width/height "
        f"{MIN_ASPECT_RATIO} to {MAX_ASPECT_RATIO}. To be dropped are: what was blurred, pictures of which a "
        "QR code covers more than the threshold, and those that are shown outside of the ratios. "
        "A photograph that is soft by itself counts as sharp."
    )
    columns = {
        "blur": {"mm_assets, sharpness": native, "mm_assets, sharpness_512": small, "peer": theirs["blur"]},
        "qr": {"mm_assets, qr_area": qr, "peer": theirs["qr"]},
        "ratio": {"mm_assets, aspect ratio": ratio, "peer": theirs["ratio"]},
    }
    places = {group: [n for n, made in enumerate(pictures) if made.group == group] for group in columns}
    results.table(
        ("filter", "by", "pictures", "to be dropped", "false drops", "missed", "precision", "recall"),
        [
            (group, *quality(name, *_at(places[group], pictures, drops)))
            for group, named in columns.items()
            for name, drops in named.items()
        ],
    )
    results.say("The same by kind of picture: on how many each decides rightly.")
    for group, named in columns.items():
        chosen, *drops = _at(places[group], pictures, *named.values())
        results.table(("kind", "pictures", "to be dropped", *named), by_kind(chosen, drops))
    _distances(results, pictures, scores)
    results.say("Where both decide alike, on all of the pictures, and which those are that one drops alone.")
    pairs = {"blur": native, "qr": qr, "ratio": ratio}
    alike = [parity(stage, pictures, drops, theirs[stage]) for stage, drops in pairs.items()]
    results.table(("filter", "pictures", "alike", "dropped by mm_assets alone", "by the peer alone"), alike)
    results.keep(
        {"decisions": [_figures(*row) for row in zip(pictures, scores, *kept.values(), strict=True)]}
    )


def _drops(values: Sequence[Any]) -> list[bool]:
    """Whether each of the scores is a reason to drop the image."""
    native, small, area, _, ratio = values
    return [
        native < _LEAST_SHARPNESS,
        small < _LEAST_SHARPNESS,
        area >= _GREATEST_QR_AREA,
        False,
        not MIN_ASPECT_RATIO <= ratio <= MAX_ASPECT_RATIO,
    ]


def _distances(results: Results, pictures: Sequence[Labelled], scores: Sequence[Any]) -> None:
    copies = [n for n, made in enumerate(pictures) if made.group == "copy"]
    chosen, values = _at(copies, pictures, scores)
    results.say(
        f"Bits in which perceptual hashes differ from that of the first copy, and {NEAR} or fewer of 256: "
        "near duplicates by the convention of PDQ."
    )
    rows = distances(chosen, [found[3] for found in values])
    results.table(("copy", "pairs", "least", "median", "greatest", "near duplicates"), rows)


def _at(places: Sequence[int], *columns: Sequence[Any]) -> list[list[Any]]:
    return [[column[place] for place in places] for column in columns]


def _figures(picture: Labelled, scores: Any, *kept: bool) -> dict[str, Any]:
    return {
        "picture": f"{picture.group}: {picture.kind}",
        "source": picture.source,
        "drop": picture.drop,
        "scores": scores,
        "peer_keeps": kept,
    }
