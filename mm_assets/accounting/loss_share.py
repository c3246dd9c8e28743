"""Loss share: how much of a raw shard does not reach its output, and why.

Above ``MM_MAX_LOSS`` the shard is refused, with the causes in one line that says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.survey import DAMAGE, ShardSurvey
from mm_assets.formats.names import is_parquet
from mm_assets.formats.reports import (
    CONTENT,
    NO_PAIRS,
    UNREAD,
    ContentColumns,
    PartitionReport,
    merged_content,
)
from mm_assets.formats.webdataset import DEFAULT_IMAGE_EXTENSIONS, SOURCE, extension
from mm_assets.model.errors import (
    DENIED,
    DUPLICATE_ID,
    INCOMPLETE_SAMPLE,
    UNREFERENCED_FRAME,
    UNREFERENCED_MEMBER,
    counted,
)
from mm_assets.model.json_codec import is_json
from mm_assets.model.losses import Loss
from mm_assets.model.samples import parse_source_ref
from mm_assets.model.schema import RESERVED_COLUMNS

_NAMED = 8  # limit of the fields, or kinds of faults, in a message


_LONGEST = 200  # limit of characters of a reason


# Suffixes beside images that are no jsons of another name.
_NO_JSON = frozenset((*DEFAULT_IMAGE_EXTENSIONS, "txt", "caption", "cls", "npy"))


_UNRESOLVED = "unresolved"  # among the reasons: images that cannot be found


_PAIR = "a pair is NAME.jpg with NAME.txt, or with the field 'caption' in NAME.json"


_NO_ITEM, _NO_IMAGE, _NOTHING = (
    "no sample has a text or an image",
    "no sample has an image",
    "nothing of it can be read",
)


@dataclass(frozen=True)
class LossShare:
    """Losses of a shard, and how much of it is left.

    Attributes:
        lost: items that are quarantined or kept with an error, and members and frames that no sample
            references, counted by kind of fault. What is denied does not count.
        kept: the other items.
        samples: the samples that can be read.
        lack: why nothing in the shard is recognised: no sample has a text or an image, there are images but
            none belongs to a sample, or nothing of a damaged file could be read. Empty otherwise.
        unreadable_bytes: how many of ``nbytes`` belong to no member of the tar.
        nbytes: bytes of the unpacked files.
        images: how many unreferenced members are images.
        fields: names of the fields in the documents.
        has_candidates: whether any of these might be read as texts or images: in tars and JSON lines, a list.
        repeated: how many samples have an id that is taken.
        reasons: lines on why members are referenced by no sample, or nothing is recognised, by their names in
            `ContentColumns`.
        examples: a reason for each kind of fault.
        suffixes: those of unreferenced members, the most common first.
    """

    lost: Mapping[str, int] = field(default_factory=dict)
    kept: int = 0
    samples: int = 0
    lack: str = ""
    unreadable_bytes: int = 0
    nbytes: int = 0
    images: int = 0
    fields: tuple[str, ...] = ()
    examples: Mapping[str, str] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ()
    has_candidates: bool = True
    repeated: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_report(cls, report: PartitionReport) -> LossShare:
        """Return the losses in a writer's report, before the shard is published."""
        unreferenced = [
            loss for notes in report.notes.values() for loss in notes.get("unreferenced_losses", ())
        ]
        items = [loss for loss in report.quarantined if loss.is_item]
        faults = _without_denied((*items, *unreferenced))
        damaged_ranges = [loss for loss in report.quarantined if not loss.is_item]
        content = (
            report.texts
            + report.images
            + sum(loss.modality != "metadata" for loss in (*items, *report.filtered))
        )
        images = report.images + sum(loss.modality == "image" for loss in (*items, *report.filtered))
        unused = sum(map(_is_image, unreferenced))
        lack = ""
        # Our own shards need no field settings, so nothing in them can be misunderstood.
        is_of_others = any(notes.get("of_others") for notes in report.notes.values())
        found = report.rows + len(report.filtered) + len(items) + len(unreferenced)
        if not report.samples:
            lack = _NOTHING if damaged_ranges and not found else ""
        elif is_of_others:
            # The images of a sample that cannot be read are unreferenced too.
            lack = _NO_ITEM if not content else _NO_IMAGE if unused and not (images or items) else ""
        errors = [error for error in report.errors if error.outcome == "kept"]
        examples = _examples((*damaged_ranges, *faults))
        for error in errors:
            examples.setdefault(error.kind, error.message[:_LONGEST])
        columns = [
            field for field in report.schema if field.name not in RESERVED_COLUMNS and field.name != SOURCE
        ]
        return cls(
            Counter(
                [
                    *(loss.kind for loss in faults),
                    *(error.kind for error in errors),
                ]
            ),
            report.rows + len(report.filtered) - len(errors),
            report.samples,
            lack,
            sum(map(_nbytes, damaged_ranges)),
            sum(notes.get("nbytes", 0) for notes in report.notes.values()),
            unused,
            tuple(field.name for field in columns),
            examples,
            _suffixes(parse_source_ref(loss.source_ref)["member"] or "" for loss in unreferenced),
            any(map(is_parquet, report.notes)) or any(map(_may_be_list, columns)),
            sum(loss.kind == DUPLICATE_ID and loss.is_cause for loss in items),
            _reasons(merged_content(notes.get(CONTENT, {}) for notes in report.notes.values())),
        )

    @classmethod
    def of_survey(cls, survey: ShardSurvey, claimed_ids: Mapping[str, str]) -> LossShare:
        """Return the losses known before a shard is read.

        References that lead nowhere, undecodable images and samples without content are only known after
        reading.

        Args:
            survey: the survey of the shard.
            claimed_ids: its sample ids that other shards keep, with the shard of each.
        """
        unreadable = {
            kind: losses for kind, losses in survey.losses.items() if kind not in (*DAMAGE, *DENIED)
        }
        damaged_ranges = [
            loss for kind, losses in survey.losses.items() if kind in DAMAGE for loss in losses.first
        ]
        items = int(pc.sum(survey.samples.column("items")).as_py() or 0)
        repeated = survey.samples.filter(
            pc.is_in(survey.sample_ids, pa.array(list(claimed_ids), pa.string()))
        )
        duplicates = int(pc.sum(repeated.column("items")).as_py() or 0)
        lost = Counter({kind: losses.count for kind, losses in unreadable.items()})
        lost[DUPLICATE_ID] += duplicates
        lost[UNREFERENCED_MEMBER] += survey.unreferenced.count + survey.skipped.count
        examples = _examples(
            (*damaged_ranges, *(loss for losses in unreadable.values() for loss in losses.first))
        )
        if repeated.num_rows:
            sample_id, shard = min(claimed_ids.items())
            examples[DUPLICATE_ID] = f"{sample_id!r:.100} by shard {shard!r}"
        types = {name: type_ for name, type_ in survey.columns.required_types().items() if name != SOURCE}
        sources = survey.samples.column("source").slice(0, 1).to_pylist()
        reasons = _reasons(survey.content or {})
        for _, _, reason in survey.unresolved.first[:1]:
            reasons[_UNRESOLVED] = f"{counted(survey.unresolved.count, 'image')} cannot be found: {reason}"
        within = survey.losses.get(DUPLICATE_ID)
        return cls(
            +lost,
            items - duplicates,
            survey.samples.num_rows - repeated.num_rows,
            _NOTHING if damaged_ranges and not items and not lost.total() else "",
            unreadable_bytes=sum(map(_nbytes, damaged_ranges)),
            nbytes=survey.nbytes,
            images=sum(extension(name) in DEFAULT_IMAGE_EXTENSIONS for name in survey.unreferenced.first),
            fields=tuple(types),
            examples=examples,
            suffixes=_suffixes(survey.unreferenced.first),
            has_candidates=any(map(is_parquet, sources))
            or any(_may_be_list(t.field) for t in types.values()),
            repeated=repeated.num_rows + (0 if within is None else within.count),
            reasons=reasons,
        )

    @property
    def total(self) -> int:
        """Number of items and members, lost or kept."""
        return sum(self.lost.values()) + self.kept

    @property
    def share(self) -> float:
        """The larger of the shares of lost items and of unreadable bytes, 0 to 1.

        A shard without content counts as 1.
        """
        if self.lack:
            return 1.0
        return max(sum(self.lost.values()) / max(self.total, 1), self.unreadable_bytes / max(self.nbytes, 1))

    def refusal(self, most: float) -> str | None:
        """Return why a shard is refused if at most the share ``most`` may be lost; None if it is accepted."""
        if self.share <= most:
            return None
        return (
            f"{self.share:.0%} of it would be lost, and MM_MAX_LOSS is {most:g}: {'; '.join(self._causes())}"
        )

    def _causes(self) -> list[str]:
        causes = []
        if self.unreadable_bytes:
            reason = next(iter(self.examples.values()), "")
            causes.append(
                f"{self.unreadable_bytes} of {self.nbytes} bytes are of no tar member that can be read: "
                f"{reason}"
            )
        elif self.lack == _NOTHING:
            causes.append(f"{_NOTHING}: {next(iter(self.examples.values()), '')}")
        unreferenced = self.lost.get(UNREFERENCED_MEMBER, 0)
        is_unrecognized = bool(unreferenced or (self.lack and self.samples))
        causes += self.reasons.values() if is_unrecognized else ()
        # What is lost with the rest of its sample comes last: the fault of that is the cause.
        faults = sorted(self._faults().most_common(_NAMED), key=lambda entry: entry[0] == INCOMPLETE_SAMPLE)
        for kind, count in faults:
            if kind == DUPLICATE_ID:
                hint = "remove a copy; if ids start anew in each shard, set MM_SAMPLE_ID_PREFIX=shard"
                samples = counted(self.repeated, "sample has", "samples have")
                causes.append(f"{samples} an id that is taken ({self.examples.get(kind, '')}): {hint}")
            else:
                causes.append(f"{kind} {count}: {self.examples.get(kind, '')}")
        return [*causes, *([self._unrecognized(unreferenced)] if is_unrecognized else [])]

    def _faults(self) -> Counter[str]:
        unreferenced = (UNREFERENCED_MEMBER, UNREFERENCED_FRAME)
        return Counter({kind: count for kind, count in self.lost.items() if kind not in unreferenced})

    def _unrecognized(self, unreferenced: int) -> str:
        fields = (
            ", ".join(self.fields[:_NAMED]) + (", …" if self.fields[_NAMED:] else "")
            if self.fields
            else "none"
        )
        content = self.lack or f"{counted(self.samples, 'sample')} can be read"
        found = ""
        if unreferenced == 1:
            kind = "an image" if self.images else "no image"
            found = f"1 member of the tar, {kind}, is referenced by no sample; "
        elif unreferenced:
            images = "1 of them an image" if self.images == 1 else f"{self.images} of them images"
            found = f"{unreferenced} members of the tar, {images}, are referenced by no sample; "
        # Without a document there are no fields: the suffixes of documents, or of pairs, are others.
        seen = f"; suffixes seen: {', '.join(self.suffixes[:_NAMED])}" if not self.samples else ""
        cure = self._cure()
        return f"{found}{content}; fields seen: {fields}{seen}{f'; {cure}' if cure else ''}"

    def _cure(self) -> str:
        """Return what to do about what no sample references; empty where nothing more than the causes helps.

        The settings may be given already.
        """
        if not self.samples:
            if self._faults():
                return ""
            if self.images and _NO_JSON.issuperset(self.suffixes):
                return _PAIR
            return "check MM_JSON_EXTENSIONS, MM_IMAGE_EXTENSIONS"
        if not self.lack and not self.images:
            return "raise MM_MAX_LOSS if these members may be left out"
        if not self.lack and (self._faults() or self.reasons):
            return ""
        if self.has_candidates:
            return "check MM_TEXTS_FIELD, MM_IMAGES_FIELD"
        known = "none of these fields is texts or images of a known layout: see docs/raw_shards.md"
        lists = known if self.fields else ""
        pair = _PAIR if self.images and NO_PAIRS not in self.reasons else ""
        return "; ".join(filter(None, (lists, pair)))


def _without_denied(losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses that are faults: neither what is denied, nor what goes with it."""
    denied = {loss.sample_id for loss in losses if loss.kind in DENIED}
    return [
        loss
        for loss in losses
        if loss.kind not in DENIED
        and not (denied and loss.kind == INCOMPLETE_SAMPLE and loss.sample_id in denied)
    ]


def _reasons(content: ContentColumns) -> dict[str, str]:
    return {key: line for key in (*UNREAD.values(), NO_PAIRS) for line in content.get(key, ())[:1]}


def _may_be_list(field: pa.Field) -> bool:
    return pa.types.is_list(field.type) or is_json(field)


def _nbytes(loss: Loss) -> int:
    return parse_source_ref(loss.source_ref)["byte_size"] or 0


def _is_image(loss: Loss) -> bool:
    return extension(parse_source_ref(loss.source_ref)["member"] or "") in DEFAULT_IMAGE_EXTENSIONS


def _suffixes(members: Iterable[str]) -> tuple[str, ...]:
    counts = Counter(extension(member) or "(none)" for member in members)
    return tuple(suffix for suffix, _ in counts.most_common())


def _examples(losses: Iterable[Loss]) -> dict[str, str]:
    """Return the first reason of each kind."""
    found: dict[str, str] = {}
    for loss in losses:
        found.setdefault(
            loss.kind, loss.reason if len(loss.reason) <= _LONGEST else f"{loss.reason[:_LONGEST]}…"
        )
    return found
