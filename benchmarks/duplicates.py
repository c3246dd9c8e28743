"""Duplicates: time and memory of the search, and what it finds beside what is known and beside others.

``--peers`` is a Python that has datasketch, imagehash and pdqhash. ``--photographs`` and ``--texts`` are
folders of real ones; without them some are made.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.measuring import Measurement, Work, measure
from benchmarks.photographs import Photographs
from benchmarks.results import Results
from mm_assets.duplicates import Pairs, near_hashes, near_signatures
from mm_assets.filters.minhash import SIGNATURE, signature, words_of
from mm_assets.pool import WORKER_ENVIRONMENT

_SEED = 20_262
_SHARD = 10_000  # documents
_WORDS = 200  # of a document
_SIDE = 256  # pixels of a picture
_MOST_BITS, _LEAST_SIMILARITY = 31, 0.8
_PDQ_BITS = (31, 48, 64, 90)  # of 256
_PHASH_BITS = (4, 8, 12)  # of 64


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser(
        "duplicates", help="search of duplicates: time, recall, precision (20 minutes)"
    )
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--texts-to-clusters", type=int, default=1_000_000)
    parser.add_argument("--hashes", type=int, default=1_000_000)
    parser.add_argument("--digests", type=int, default=10_000_000)
    parser.add_argument("--photographs", type=Path, help="a folder of real ones; some are made")
    parser.add_argument("--texts", type=Path, help="a folder of real ones; some are made")
    parser.add_argument("--peers", type=Path, help="a Python with datasketch, imagehash and pdqhash")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the search over made data, then decide about planted copies."""
    results = Results(f"duplicates-{options.documents}", "Duplicates")
    _costs(results, options)
    _pictures(results, options.photographs, options.peers)
    _texts(results, options.texts, options.peers)
    results.publish()
    return 0


def _task(name: str, python: Path | None = None, **arguments: Any) -> Measurement:
    return measure(
        f"benchmarks.duplicates:prepare_{name}", python=python, environment=WORKER_ENVIRONMENT, **arguments
    )


def _costs(results: Results, options: argparse.Namespace) -> None:
    documents, hashes, digests, peers = options.documents, options.hashes, options.digests, options.peers
    signing = _task("signatures", count=20_000)
    whole = _task("texts_to_clusters", count=options.texts_to_clusters)
    whole = replace(whole, cpu=whole.cpu - whole.result["making"])
    found = {
        f"signatures of 20,000 documents of {_WORDS} words": signing,
        f"texts of {options.texts_to_clusters:,} documents to clusters": whole,
        f"clusters of {documents:,} documents": _task("documents", count=documents),
        f"equal ones of {digests:,} digests": _task("digests", count=digests),
        f"PDQ hashes within {_MOST_BITS} bits, of {hashes:,}": _task("hashes", count=hashes),
    }
    if peers:
        found["signatures of 2,000 of them by datasketch"] = measure(
            "benchmarks.duplicate_peers:prepare_signatures", python=peers, count=2000, words=_WORDS
        )
    recall = _task("recall", count=20_000).result
    results.say(
        "Each in a process of its own; MiB is the peak of its memory above that before. What is compared is "
        "made at random, a fifth of the documents and a tenth of the hashes are copies of others."
    )
    results.table(
        ("what", "CPU, s", "wall, s", "MiB", "found"),
        [
            (
                name,
                f"{each.cpu:.1f}",
                f"{each.wall:.1f}",
                f"{each.peak:.0f}",
                str(each.result.get("found", "")),
            )
            for name, each in found.items()
        ],
    )
    results.say(
        f"Documents a second of CPU with shingling: {20_000 / signing.cpu:,.0f}. Pairs of 20,000 hashes that "
        f"a comparison of all with all finds: {recall['expected']}; found of them: {recall['found']}, "
        f"others: {recall['others']}."
    )
    results.keep({name: vars(each) for name, each in found.items()} | {"recall of hashes": recall})


def made_documents(count: int, words: int) -> list[str]:
    """Documents of words drawn at random."""
    draw = random.Random(_SEED)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    return [" ".join(draw.choices(known, k=words)) for _ in range(count)]


def prepare_signatures(count: int) -> Work:
    """Take the signatures of made documents."""
    texts = made_documents(count, _WORDS)

    def work() -> dict[str, Any]:
        for text in texts:
            signature(words_of(text))
        return {}

    return work


def prepare_texts_to_clusters(count: int) -> Work:
    """Take the signatures of documents by shard, and find their clusters.

    A fifth are those of the shard before with a few words changed. The CPU seconds that the texts take to be
    made are told apart.
    """
    import pyarrow as pa

    from mm_assets.duplicates.finder import Documents

    draw = np.random.default_rng(_SEED)
    known = np.array(made_documents(1, 20_000)[0].split(), object)
    images = pa.table({"sample_id": pa.array([], pa.string()), "sha256": pa.array([], pa.string())})

    def work() -> dict[str, Any]:
        making, before = 0.0, np.zeros((0, _WORDS), np.int64)
        with tempfile.TemporaryDirectory() as folder:
            documents = Documents(_LEAST_SIMILARITY, folder)
            for shard in range(count // _SHARD):
                started = time.process_time()
                words = draw.integers(0, len(known), (_SHARD, _WORDS))
                words[: len(before) // 5] = before[-(len(before) // 5) :] if len(before) else words[:0]
                words[np.arange(len(before) // 5), draw.integers(0, _WORDS, len(before) // 5)] = 0
                before = words
                texts = [" ".join(known[row]) for row in words]
                making += time.process_time() - started
                signed = [signature(words_of(text)).tobytes() for text in texts]
                scores = {
                    "sample_id": [f"document-{shard:06}-{row:05}" for row in range(_SHARD)],
                    "images": pa.array([0] * _SHARD, pa.int32()),
                    "words": [_WORDS] * _SHARD,
                    "text_digest": [f"{shard:016x}{row:016x}" for row in range(_SHARD)],
                    "minhash": pa.array(signed, pa.binary(2 * SIGNATURE)),
                }
                documents.add(shard, pa.table(scores), images)
            return {"found": len(documents.clusters()[1].copies), "making": making}

    return work


def prepare_documents(count: int) -> Work:
    """Add documents by shard, and find their clusters; a fifth are copies of some of the shard before."""
    import pyarrow as pa

    from mm_assets.duplicates.finder import Documents

    draw = np.random.default_rng(_SEED)
    base = draw.integers(0, 1 << 16, (_SHARD, SIGNATURE), np.uint16)
    images = pa.table({"sample_id": pa.array([], pa.string()), "sha256": pa.array([], pa.string())})
    copies = _SHARD // 5

    def shards() -> Iterator[pa.Table]:
        before = base
        for shard in range(count // _SHARD):
            values = (base ^ draw.integers(0, 1 << 16, SIGNATURE, np.uint16)) + np.uint16(shard * 7)
            is_kept = (
                draw.random((copies, SIGNATURE)) < draw.choice([0.7, 0.85, 0.9, 0.95, 1.0], copies)[:, None]
            )
            originals = before[draw.integers(copies, _SHARD, copies)]
            values[:copies] = np.where(is_kept, originals, values[:copies])
            before = values
            data = pa.py_buffer(values.tobytes())
            yield pa.table(
                {
                    "sample_id": [f"document-{shard:06}-{row:05}" for row in range(_SHARD)],
                    "images": pa.array(draw.integers(0, 5, _SHARD), pa.int32()),
                    "words": draw.integers(50, 500, _SHARD),
                    "text_digest": [f"{shard:016x}{row:016x}" for row in range(_SHARD)],
                    "minhash": pa.FixedSizeBinaryArray.from_buffers(
                        pa.binary(2 * SIGNATURE), _SHARD, [None, data]
                    ),
                }
            )

    def work() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            documents = Documents(_LEAST_SIMILARITY, folder)
            for shard, scores in enumerate(shards()):
                documents.add(shard, scores, images)
            return {"found": len(documents.clusters()[1].copies)}

    return work


def prepare_digests(count: int) -> Work:
    """Find equal digests, of which a tenth are there twice."""
    from mm_assets.duplicates import firsts_of_equal

    keys = np.random.default_rng(_SEED).integers(0, 1 << 63, (count, 4), np.uint64)
    keys[: count // 10] = keys[-(count // 10) :]
    return lambda: {"found": int((firsts_of_equal(keys) != np.arange(count)).sum())}


def _hashes(count: int) -> Any:
    """Hashes, of which a tenth are others with up to 40 of their bits flipped."""
    draw = np.random.default_rng(_SEED)
    hashes = draw.integers(0, 1 << 64, (count, 4), np.uint64)
    copies = count // 10
    flips = np.argsort(draw.random((copies, 256)), axis=1) < draw.integers(0, 41, copies)[:, None]
    hashes[:copies] = hashes[draw.integers(copies, count, copies)] ^ np.packbits(flips, axis=1).view(
        np.uint64
    )
    return np.unique(hashes, axis=0)


def prepare_hashes(count: int) -> Work:
    """Find the pairs of near hashes."""
    hashes = _hashes(count)
    return lambda: {"found": len(near_hashes(hashes, _MOST_BITS))}


def prepare_recall(count: int) -> Work:
    """Compare the pairs that are found with those of a comparison of all with all."""
    hashes = _hashes(count)

    def work() -> dict[str, Any]:
        expected = set()
        for first in range(len(hashes)):
            distances = np.bitwise_count(hashes[first + 1 :] ^ hashes[first]).sum(axis=1)
            expected |= {
                (first, first + 1 + other) for other in np.flatnonzero(distances <= _MOST_BITS).tolist()
            }
        found = _places(near_hashes(hashes, _MOST_BITS))
        return {"expected": len(expected), "found": len(expected & found), "others": len(found - expected)}

    return work


def _places(pairs: Pairs) -> set[tuple[int, int]]:
    return set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def _cropped(picture: Image.Image, share: float) -> Image.Image:
    margin = round(picture.width * share / 2)
    return picture.crop((margin, margin, picture.width - margin, picture.height - margin))


def _jpeg(picture: Image.Image, quality: int = 90) -> bytes:
    data = io.BytesIO()
    picture.convert("RGB").save(data, "JPEG", quality=quality)
    return data.getvalue()


_CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    "encoded again, quality 30": lambda picture: _jpeg(picture, 30),
    "scaled to a half": lambda picture: _jpeg(picture.resize((picture.width // 2, picture.height // 2))),
    "scaled by 1.5, other ratio": lambda picture: _jpeg(
        picture.resize((picture.width * 3 // 2, picture.height))
    ),
    "brighter by 30 %": lambda picture: _jpeg(ImageEnhance.Brightness(picture).enhance(1.3)),
    "grey": lambda picture: _jpeg(picture.convert("L")),
    "cropped by 2 %": lambda picture: _jpeg(_cropped(picture, 0.02)),
    "cropped by 5 %": lambda picture: _jpeg(_cropped(picture, 0.05)),
    "cropped by 10 %": lambda picture: _jpeg(_cropped(picture, 0.1)),
    "mirrored": lambda picture: _jpeg(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}


def _originals(folder: Path | None) -> Iterator[Image.Image]:
    """Pictures that are none of each other: parts of those in the folder, without any that overlap."""
    if folder is None:
        made, draw = Photographs(_SEED), np.random.default_rng(_SEED)
        yield from (made.take(draw, _SIDE, _SIDE) for _ in range(300))
        return
    for file in sorted(folder.iterdir()):
        try:
            whole = Image.open(file).convert("RGB")
        except OSError:
            continue
        for top in range(0, whole.height - _SIDE + 1, _SIDE):
            for left in range(0, whole.width - _SIDE + 1, _SIDE):
                yield whole.crop((left, top, left + _SIDE, top + _SIDE))


def _pictures(results: Results, folder: Path | None, peers: Path | None) -> None:
    originals = list(_originals(folder))
    kinds = ["original", *_CHANGES]
    data = [[_jpeg(picture), *(change(picture) for change in _CHANGES.values())] for picture in originals]
    with tempfile.TemporaryDirectory() as stored:
        for number, row in enumerate(data):
            for kind, content in enumerate(row):
                Path(stored, f"{number:05}-{kind}").write_bytes(content)
        ours = _task("pdq", folder=stored).result["values"]
        rows = {f"PDQ, {most} of 256 bits": _judged(ours, most, len(kinds)) for most in _PDQ_BITS}
        if peers:
            task = "benchmarks.duplicate_peers:prepare_phash"
            theirs = measure(task, python=peers, folder=stored).result["values"]
            rows |= {f"imagehash phash, {m} of 64": _judged(theirs, m, len(kinds)) for m in _PHASH_BITS}
    origin = "parts of real photographs" if folder else "pictures made for this"
    results.say(
        f"{len(originals)} {origin}, {_SIDE} pixels wide, and copies of each: the share of the copies whose "
        "hash is near that of their original (recall), and of all near pairs those of one original "
        "(precision)."
    )
    results.table(
        ("copies", *rows),
        [
            *(
                (kind, *(f"{found[0][n]:.3f}" for found in rows.values()))
                for n, kind in enumerate(kinds)
                if n
            ),
            ("precision", *(f"{found[1]:.4f}" for found in rows.values())),
        ],
    )


def _judged(values: Sequence[str | None], most: int, kinds: int) -> tuple[list[float], float]:
    """The recall of each kind, and the precision of all near pairs.

    Args:
        values: hexadecimal hashes, ``kinds`` of each original; None for one that is not compared.
    """
    known = [value for value in values if value is not None]
    size = len(known[0]) // 2
    blank = np.array([value is None for value in values])
    data = bytes.fromhex("".join(value or "0" * 2 * size for value in values))
    hashes = np.frombuffer(data, np.uint8).reshape(-1, size)
    hits, right, wrong = np.zeros(kinds), 0, 0
    for place in range(len(hashes)):
        distances = np.bitwise_count(hashes ^ hashes[place]).sum(axis=1)
        is_near = (distances <= most) & ~blank & ~blank[place]
        is_near[place] = False
        own = np.arange(len(hashes)) // kinds == place // kinds
        right, wrong = right + int((is_near & own).sum()), wrong + int((is_near & ~own).sum())
        if place % kinds == 0:
            hits += np.concatenate([[False], is_near[place + 1 : place + kinds]])
    return (hits / (len(hashes) // kinds)).tolist(), right / max(right + wrong, 1)


def prepare_pdq(folder: str) -> Work:
    """Hash the pictures of a folder; those of low quality are not compared."""
    from mm_assets.filters.measure import LEAST_QUALITY, ImageContent
    from mm_assets.filters.measures import PerceptualHash, PerceptualQuality
    from mm_assets.formats.images import probe

    def value(file: Path) -> str | None:
        data = memoryview(file.read_bytes())
        image = ImageContent(data, probe(data), 1 << 28)
        is_compared = PerceptualQuality().measure(image) >= LEAST_QUALITY
        return PerceptualHash().measure(image) if is_compared else None

    return lambda: {"values": [value(file) for file in sorted(Path(folder).iterdir())]}


def _edited(words: Sequence[str], share: float, draw: random.Random) -> list[str]:
    """Words of which a share is replaced, left out or repeated."""
    found: list[str] = []
    for word in words:
        if draw.random() >= share:
            found.append(word)
        else:
            found += draw.choice(([draw.choice(words)], [], [word, word]))
    return found


def _real_texts(folder: Path | None) -> list[str]:
    """Texts of 100 to 1,000 words."""
    if folder is None:
        return made_documents(1000, _WORDS)
    found = []
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            words = file.read_text(errors="replace").split()
            found += [" ".join(words[n : n + 400]) for n in range(0, len(words) - 99, 400)]
    return list(dict.fromkeys(found))[:5000]


def _texts(results: Results, folder: Path | None, peers: Path | None) -> None:
    draw = random.Random(_SEED)
    originals = _real_texts(folder)
    copies = [
        " ".join(_edited(text.split(), share, draw))
        for share in (0.005, 0.01, 0.02, 0.04, 0.08)
        for text in originals
    ]
    texts = [*originals, *copies]
    with tempfile.TemporaryDirectory() as stored:
        Path(stored, "texts").write_text("\n".join(texts))
        ours = _task("near_texts", file=str(Path(stored, "texts")))
        theirs = {"mm_assets": ours}
        if peers:
            theirs["datasketch, 112 permutations, LSH at 0.8"] = measure(
                "benchmarks.duplicate_peers:prepare_near_texts", python=peers, file=str(Path(stored, "texts"))
            )
    shingled = [_shingles(text) for text in texts]
    found = {name: {tuple(pair) for pair in each.result["pairs"]} for name, each in theirs.items()}
    known = _similar(shingled, {pair for pairs in found.values() for pair in pairs}, len(originals))
    origin = "real texts" if folder else "texts made for this"
    results.say(
        f"{len(originals):,} {origin} of up to 400 words, and five copies of each with 0.5 to 8 % of the "
        "words changed. Similarity is that of the sets of five words, counted, not estimated. Recall is of "
        "the pairs of an original and its copy, and of all that either has found; precision of all that was "
        "found."
    )
    bands = ((0.8, 0.85), (0.85, 0.9), (0.9, 0.95), (0.95, 1.01))
    rows = []
    for name, pairs in found.items():
        cells = [name, f"{theirs[name].cpu:.1f}"]
        for low, high in bands:
            right = {pair for pair, share in known.items() if low <= share < high}
            cells.append(f"{len(right & pairs) / max(len(right), 1):.3f}")
        cells += [f"{np.mean([known[pair] >= least for pair in pairs]):.3f}" for least in (0.8, 0.75)]
        rows.append(tuple(cells))
    heads = (f"recall {low:g}–{min(high, 1):g}" for low, high in bands)
    results.table(("", "CPU, s", *heads, "precision at 0.8", "at 0.75"), rows)


def _shingles(text: str) -> set[tuple[bytes, ...]]:
    words = words_of(text)
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def _similar(
    shingled: Sequence[set[tuple[bytes, ...]]], found: Iterable[tuple[int, int]], originals: int
) -> dict[tuple[int, int], float]:
    """The similarity of the pairs that were found, and of each original and its copies."""
    planted = {(place % originals, place) for place in range(originals, len(shingled))}
    pairs = {(first, second) for first, second in [*found, *planted]}
    return {
        (first, second): len(shingled[first] & shingled[second])
        / max(len(shingled[first] | shingled[second]), 1)
        for first, second in pairs
    }


def prepare_near_texts(file: str) -> Work:
    """Find the pairs of near texts, a line each."""
    texts = Path(file).read_text().split("\n")

    def work() -> dict[str, Any]:
        signatures = np.stack([signature(words_of(text)) for text in texts])
        _, firsts, group_of = np.unique(signatures, axis=0, return_index=True, return_inverse=True)
        members: dict[int, list[int]] = {}
        for place, group in enumerate(group_of.tolist()):
            members.setdefault(int(firsts[group]), []).append(place)
        rows = np.sort(firsts)
        found = {pair for equal in members.values() for pair in combinations(equal, 2)}
        for first, second in _places(near_signatures(signatures, rows, _LEAST_SIMILARITY)):
            alike = product(members[int(rows[first])], members[int(rows[second])])
            found |= {(min(pair), max(pair)) for pair in alike}
        return {"pairs": sorted(found)}

    return work
