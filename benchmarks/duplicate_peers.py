"""Searches of near duplicates by datasketch and imagehash, each in a measured process of their own Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.measuring import Work

_PERMUTATIONS = 112


def _signed(text: str) -> Any:
    from datasketch import MinHash

    words = text.lower().split()
    found = MinHash(num_perm=_PERMUTATIONS)
    found.update_batch([" ".join(words[n : n + 5]).encode() for n in range(len(words) - 4)])
    return found


def prepare_signatures(count: int, words: int) -> Work:
    """Take the signatures of documents of words drawn at random."""
    draw = random.Random(0)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    texts = [" ".join(draw.choices(known, k=words)) for _ in range(count)]

    def work() -> dict[str, Any]:
        for text in texts:
            _signed(text)
        return {}

    return work


def prepare_near_texts(file: str) -> Work:
    """Find the pairs of near texts, a line each."""
    from datasketch import MinHashLSH

    texts = Path(file).read_text().split("\n")

    def work() -> dict[str, Any]:
        index, pairs = MinHashLSH(threshold=0.8, num_perm=_PERMUTATIONS), []
        signed = [_signed(text) for text in texts]
        for place, each in enumerate(signed):
            near = [other for other in index.query(each) if signed[other].jaccard(each) >= 0.8]
            pairs += [(other, place) for other in near]
            index.insert(place, each)
        return {"pairs": pairs}

    return work


def prepare_phash(folder: str) -> Work:
    """Hash the pictures of a folder."""
    import imagehash
    from PIL import Image

    files = sorted(Path(folder).iterdir())
    return lambda: {"values": [str(imagehash.phash(Image.open(file))) for file in files]}
