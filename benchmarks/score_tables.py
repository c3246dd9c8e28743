"""Tables of decisions: those of this project and of the peer beside what is known of the pictures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median

from benchmarks.score_pictures import Labelled

Row = tuple[str, ...]
NEAR = 31
"""Bits in which the PDQ hashes of near duplicates differ at most, by convention."""


def quality(name: str, pictures: Sequence[Labelled], dropped: Sequence[bool]) -> Row:
    """Precision and recall of the drops of a filter."""
    counts = Counter(
        (picture.drop, is_dropped) for picture, is_dropped in zip(pictures, dropped, strict=True)
    )
    hits, false, missed = counts[True, True], counts[False, True], counts[True, False]
    precision = f"{hits / (hits + false):.3f}" if hits + false else "–"
    recall = f"{hits / (hits + missed):.3f}" if hits + missed else "–"
    return name, str(len(pictures)), str(hits + missed), str(false), str(missed), precision, recall


def by_kind(pictures: Sequence[Labelled], columns: Sequence[Sequence[bool]]) -> list[Row]:
    """For each kind of picture: how many there are, how many should be dropped, and on how many each column
    decides rightly.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0] * (2 + len(columns)))
    for picture, *dropped in zip(pictures, *columns, strict=True):
        right = (is_dropped == picture.drop for is_dropped in dropped)
        for place, value in enumerate([True, picture.drop, *right]):
            found[picture.kind][place] += value
    return [(kind, *map(str, counts)) for kind, counts in found.items()]


def distances(pictures: Sequence[Labelled], hashes: Sequence[str]) -> list[Row]:
    """Bits between the hash of the first copy of each photograph and the others, and between photographs."""
    bits = [int(value, 16) for value in hashes]
    first: dict[int, int] = {}
    for picture, value in zip(pictures, bits, strict=True):
        first.setdefault(picture.source, value)
    of_kind: dict[str, list[int]] = defaultdict(list)
    for picture, value in zip(pictures, bits, strict=True):
        of_kind[picture.kind].append((value ^ first[picture.source]).bit_count())
    of_kind["another photograph"] = [(a ^ b).bit_count() for a, b in combinations(first.values(), 2)]
    return [
        (kind, str(len(found)), str(min(found)), f"{median(found):.0f}", str(max(found)),
         str(sum(value <= NEAR for value in found)))
        for kind, found in of_kind.items()
    ]  # fmt: skip


def parity(name: str, pictures: Sequence[Labelled], ours: Sequence[bool], theirs: Sequence[bool]) -> Row:
    """On how many pictures two decide alike, and which the others are."""
    pairs = list(zip(pictures, ours, theirs, strict=True))
    same = sum(one == other for _, one, other in pairs)
    only_ours = [picture for picture, one, other in pairs if one and not other]
    only_theirs = [picture for picture, one, other in pairs if other and not one]
    return name, str(len(pairs)), str(same), _kinds(only_ours), _kinds(only_theirs)


def _kinds(pictures: Iterable[Labelled]) -> str:
    counts = Counter(f"{picture.group}: {picture.kind}" for picture in pictures)
    return "; ".join(f"{count} {kind}" for kind, count in counts.most_common()) or "–"
