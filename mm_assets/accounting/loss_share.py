"""Share of a raw shard that does not reach its output, and the causes in one line that says what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.shard_survey import DAMAGE, ShardSurvey
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.webdataset.layout import DEFAULT_IMAGE_EXTENSIONS, SOURCE, extension
from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.faults import DUPLICATE_ID, UNREFERENCED_FRAME, UNREFERENCED_MEMBER
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.schema import RESERVED_COLUMNS
from mm_assets.interleaved.source_ref import parse_source_ref

_NAMED = 8  # limit of the fields, or kinds of faults, in a message
_LONGEST = 200  # limit of characters of a reason
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
            references, counted by kind of fault.
        kept: the other items.
        samples: the samples that can be read.
        lack: why nothing in the shard is recognised: no sample has a text or an image, there are images but
            none belongs to a sample, or nothing of a damaged file could be read. Empty otherwise.
        unreadable_bytes: how many of ``nbytes`` belong to no member of the tar.
        nbytes: bytes of the unpacked files.
        images: how many unreferenced members are images.
        fields: names of the fields in the documents.
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

    @classmethod
    def of_report(cls, report: PartitionReport) -> LossShare:
        """Return the losses in a writer's report, before the shard is published."""
        unreferenced = [
            loss for notes in report.notes.values() for loss in notes.get("unreferenced_losses", ())
        ]
        items = [loss for loss in report.quarantined if loss.is_item]
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
        examples = _examples((*damaged_ranges, *items, *unreferenced))
        for error in errors:
            examples.setdefault(error.kind, error.message[:_LONGEST])
        return cls(
            Counter(
                [
                    *(loss.kind for loss in (*items, *unreferenced)),
                    *(error.kind for error in errors),
                ]
            ),
            report.rows + len(report.filtered) - len(errors),
            report.samples,
            lack,
            sum(map(_nbytes, damaged_ranges)),
            sum(notes.get("nbytes", 0) for notes in report.notes.values()),
            unused,
            tuple(name for name in report.schema.names if name not in RESERVED_COLUMNS and name != SOURCE),
            examples,
            _suffixes(parse_source_ref(loss.source_ref)["member"] or "" for loss in unreferenced),
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
        unreadable = {kind: losses for kind, losses in survey.losses.items() if kind not in DAMAGE}
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
        if duplicates:
            sample_id, shard = min(claimed_ids.items())
            examples[DUPLICATE_ID] = f"{sample_id!r:.100} by shard {shard!r}"
        return cls(
            +lost,
            items - duplicates,
            survey.samples.num_rows - repeated.num_rows,
            _NOTHING if damaged_ranges and not items and not lost.total() else "",
            unreadable_bytes=sum(map(_nbytes, damaged_ranges)),
            nbytes=survey.nbytes,
            images=sum(extension(name) in DEFAULT_IMAGE_EXTENSIONS for name in survey.unreferenced.first),
            fields=tuple(name for name in survey.columns.required_types() if name != SOURCE),
            examples=examples,
            suffixes=_suffixes(survey.unreferenced.first),
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
        if unreferenced or (self.lack and self.samples):
            causes.append(self._unrecognized(unreferenced))
        for kind, count in Counter(self.lost).most_common(_NAMED):
            if kind == DUPLICATE_ID:
                hint = "remove a copy; if ids start anew in each shard, set MM_SAMPLE_ID_PREFIX=shard"
                causes.append(
                    f"{counted(count, 'item is', 'items are')} of samples whose id is taken "
                    f"({self.examples.get(kind, '')}): {hint}"
                )
            elif kind not in (UNREFERENCED_MEMBER, UNREFERENCED_FRAME):
                causes.append(f"{kind} {count}: {self.examples.get(kind, '')}")
        return causes

    def _unrecognized(self, unreferenced: int) -> str:
        fields = (
            ", ".join(self.fields[:_NAMED]) + (", …" if self.fields[_NAMED:] else "")
            if self.fields
            else "none"
        )
        content = self.lack or f"{counted(self.samples, 'sample')} can be read"
        found = (
            f"{unreferenced} members of the tar, {self.images} of them images, are referenced by no sample; "
            if unreferenced
            else ""
        )
        # Without a document there are no fields: the suffixes of documents, or of pairs, are others.
        seen = f"; suffixes seen: {', '.join(self.suffixes[:_NAMED])}" if not self.samples else ""
        return f"{found}{content}; fields seen: {fields}{seen}; {self._cure()}"

    def _cure(self) -> str:
        """Return what to do about what no sample references; the settings may be given already."""
        if not self.samples:
            return "check MM_JSON_EXTENSIONS, MM_IMAGE_EXTENSIONS"
        if self.lack or self.images:
            return "check MM_TEXTS_FIELD, MM_IMAGES_FIELD"
        return "raise MM_MAX_LOSS if these members may be left out"


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
