"""Ledger: the items in, the items out and each lost item of every asset and shard, as tables for SQL.

* `Ledger` reads and writes two Parquet files a shard: its lost items, and its balance, an entry for items in,
  out, and lost by kind.
* `Balance` holds items in against items out, and their digests.
* `LossShare` is the share of a raw shard that does not reach its output. Above ``MM_MAX_LOSS`` the shard is
  refused, with the causes in one line that says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.record import ShardRecord, file_problems, recorded_files
from mm_assets.accounting.survey import DAMAGE, ShardSurvey
from mm_assets.formats.names import is_parquet, partition_filename
from mm_assets.formats.parquet.files import UnreadableFile, publish_table, read_small_table
from mm_assets.formats.reports import (
    CONTENT,
    NO_PAIRS,
    UNREAD,
    ContentColumns,
    PartitionReport,
    merged_content,
)
from mm_assets.formats.webdataset.layout import DEFAULT_IMAGE_EXTENSIONS, SOURCE, extension
from mm_assets.model.errors import (
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
from mm_assets.storage.files import StorageOptions, exists, join, remove

ITEMS_SCHEMA = pa.schema(
    [
        pa.field("asset", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("sample_id", pa.string()),
        pa.field("position", pa.int32()),
        pa.field("modality", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("threshold", pa.string()),
        pa.field("is_cause", pa.bool_(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("member", pa.string()),
        pa.field("byte_offset", pa.int64()),
        pa.field("byte_size", pa.int64()),
        pa.field("frame_index", pa.int32()),
    ]
)
BALANCE_SCHEMA = pa.schema(
    [
        pa.field("asset", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("entry", pa.string(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("items", pa.int64()),
        pa.field("samples", pa.int64()),
        pa.field("digest", pa.string()),
    ]
)
LEDGER_FOLDER = "ledger"
_MODULUS = 1 << 128  # modulus of the sums in `ContentDigest`


@dataclass(frozen=True)
class Balance:
    """Items in, and where they went; ``filtered`` and ``quarantined`` count them by kind.

    A damaged range holds an unknown number of items: its kind is listed with the count of the known ones,
    even if that is 0. Digests are sums over rows, in hex; None if unknown.

    Attributes:
        items_in: None when the input does not state its number of items.
        items_out: rows written.
        filtered: items that filters took out, by kind.
        quarantined: faulty items, by kind.
        samples_out: samples written.
        in_digest: of the rows of the input.
        out_digest: of the rows written.
        source_digest: of the rows written, in the types they came in with.
        lost_digest: of the rows taken out.
    """

    items_in: int | None
    items_out: int
    filtered: Mapping[str, int]
    quarantined: Mapping[str, int]
    samples_out: int | None = None
    in_digest: str | None = None
    out_digest: str | None = None
    source_digest: str | None = None
    lost_digest: str | None = None

    @classmethod
    def of(cls, report: PartitionReport, in_digest: str | None = None) -> Balance:
        """Return the balance of a writer's report; ``in_digest`` is that of the input's rows."""
        filtered, quarantined = _items_by_kind(report.filtered), _items_by_kind(report.quarantined)
        digests = (
            in_digest,
            report.digest or None,
            report.source_digest or report.digest or None,
            report.lost_digest or None,
        )
        return cls(report.items, report.rows, filtered, quarantined, report.samples, *digests)

    @property
    def difference(self) -> int | None:
        """Items in minus all items accounted for; None: unknown.

        Above 0 some vanished, below 0 some are extra.
        """
        if self.items_in is None:
            return None
        return self.items_in - self.items_out - sum(self.filtered.values()) - sum(self.quarantined.values())

    @property
    def is_balanced(self) -> bool | None:
        """True if every item is accounted for; None: unknown."""
        return None if self.difference is None else self.difference == 0

    @property
    def digests_agree(self) -> bool | None:
        """True if the rows written and those taken out are together the rows of the input; None: unknown."""
        if not self.in_digest or not self.source_digest:
            return None
        total = int(self.source_digest, 16) + int(self.lost_digest or "0", 16)
        return total % _MODULUS == int(self.in_digest, 16)


class Ledger:
    """Ledger tables below a storage root (folder or URL).

    ``ledger/items/<asset>/<partition>.parquet`` has one row per lost item (`ITEMS_SCHEMA`); a shard without
    losses has no file. ``ledger/balance/<asset>/<partition>.parquet`` has one row per entry
    (`BALANCE_SCHEMA`): ``in``, ``out``, ``filtered`` and ``quarantined`` by kind. The entry ``lost`` has the
    digest of all rows taken out, whose items the other entries count. All files of a table have the same
    columns and types. A file is only rewritten if it changes.
    """

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._storage = root
        self._root = join(root, LEDGER_FOLDER)
        self._options = options

    def items_folder(self, asset: str) -> str:
        """Return the folder with the lost items of an asset, one file per shard."""
        return join(self._root, "items", partition_filename(asset))

    def items_uri(self, asset: str, partition: str) -> str:
        """Return the location of the lost items of a shard."""
        return join(self.items_folder(asset), _file_name(partition))

    def balance_uri(self, asset: str, partition: str) -> str:
        """Return the location of the balance of a shard."""
        return join(self._root, "balance", partition_filename(asset), _file_name(partition))

    def write(
        self,
        asset: str,
        partition: str,
        account: PartitionReport | tuple[Balance, Sequence[Loss]],
        in_digest: str | None = None,
    ) -> Balance:
        """Write the ledger of one shard in place of the previous one; each file appears as a whole.

        Args:
            asset: the asset.
            partition: the shard.
            account: a writer's report, or a balance with the losses that it counts.
            in_digest: for a report, the digest of the input's rows.

        Returns:
            The balance written.
        """
        balance, losses = (
            account if isinstance(account, tuple) else (Balance.of(account, in_digest), account.losses)
        )
        publish_losses(self.items_uri(asset, partition), items_table(asset, partition, losses), self._options)
        publish_table(
            self.balance_uri(asset, partition),
            balance_table(asset, partition, balance, losses),
            self._options,
        )
        return balance

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return the lost items of a shard; no rows if it lost none or has no ledger.

        Raises:
            UnreadableFile: the file is damaged.
        """
        return self._read(self.items_uri(asset, partition), ITEMS_SCHEMA)

    def recorded_items(self, asset: str, partition: str, record: ShardRecord | None) -> pa.Table:
        """Return the `items` of a shard if the file is the one that its record describes.

        Raises:
            UnreadableFile: the file is damaged, missing or another.
        """
        uri = self.items_uri(asset, partition)
        if record is not None and (
            line := "; ".join(file_problems(self._storage, recorded_files(record, uri), self._options))
        ):
            raise UnreadableFile(line)
        return self.items(asset, partition)

    def balance(self, asset: str, partition: str) -> pa.Table:
        """Return the entries of a shard; no rows if it has no ledger.

        Raises:
            UnreadableFile: the file is damaged.
        """
        return self._read(self.balance_uri(asset, partition), BALANCE_SCHEMA)

    def uris(self, asset: str, partition: str) -> list[str]:
        """Return the locations of a shard's two files, existing or not."""
        return [self.items_uri(asset, partition), self.balance_uri(asset, partition)]

    def _read(self, uri: str, schema: pa.Schema) -> pa.Table:
        if not exists(uri, self._options):
            return schema.empty_table()
        return read_small_table(uri, schema.names, self._options)


def _file_name(partition: str) -> str:
    return f"{partition_filename(partition)}.parquet"


def publish_losses(uri: str, items: pa.Table, options: StorageOptions | None = None) -> None:
    """Publish a table of lost items; without any, remove the file of an earlier run."""
    if items.num_rows:
        publish_table(uri, items, options)
    else:
        remove(uri, options)


def items_table(asset: str, partition: str, losses: Iterable[Loss]) -> pa.Table:
    """Return a table with one row per loss, in `ITEMS_SCHEMA`."""
    rows = [_row(asset, partition, loss) for loss in losses]
    return pa.Table.from_arrays(
        [_column([row[f.name] for row in rows], f.type) for f in ITEMS_SCHEMA], schema=ITEMS_SCHEMA
    )


def balance_table(asset: str, partition: str, balance: Balance, losses: Iterable[Loss]) -> pa.Table:
    """Return a table with one row per entry, in `BALANCE_SCHEMA`."""
    samples = _samples_by_kind(losses)
    entries: list[dict[str, Any]] = [
        {"entry": "in", "items": balance.items_in, "digest": balance.in_digest},
        {
            "entry": "out",
            "items": balance.items_out,
            "samples": balance.samples_out,
            "digest": balance.out_digest,
        },
    ]
    for entry, kinds in (("filtered", balance.filtered), ("quarantined", balance.quarantined)):
        entries += [
            {"entry": entry, "kind": kind, "items": items, "samples": samples.get((entry, kind))}
            for kind, items in sorted(kinds.items())
        ]
    if balance.lost_digest is not None:
        entries.append({"entry": "lost", "digest": balance.lost_digest})
    return pa.Table.from_pylist(
        [{"asset": asset, "partition": partition, **entry} for entry in entries], schema=BALANCE_SCHEMA
    )


def _items_by_kind(losses: Iterable[Loss]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for loss in losses:
        counts[loss.kind] += loss.is_item
    return dict(counts)


def _samples_by_kind(losses: Iterable[Loss]) -> dict[tuple[str, str], int | None]:
    """Count samples with losses by outcome and kind; None where a damaged range holds unknown ones."""
    ids: dict[tuple[str, str], set[str | None]] = {}
    for loss in losses:
        ids.setdefault((loss.outcome, loss.kind), set()).add(loss.sample_id if loss.is_item else None)
    return {key: None if None in found else len(found) for key, found in ids.items()}


def locator_columns(source_ref: str | None) -> dict[str, Any]:
    """Return the columns ``source member byte_offset byte_size frame_index`` of a locator.

    Invalid values are null.
    """
    try:
        ref: Mapping[str, Any] = parse_source_ref(source_ref)
    except (TypeError, ValueError):
        ref = {}
    return {
        "source": _text(ref.get("path")),
        "member": _text(ref.get("member")),
        "byte_offset": _number(ref.get("byte_offset"), 63),
        "byte_size": _number(ref.get("byte_size"), 63),
        "frame_index": _number(ref.get("frame_index"), 31),
    }


def _row(asset: str, partition: str, loss: Loss) -> dict[str, Any]:
    row = {"asset": asset, "partition": partition, **loss.__dict__}
    return row | locator_columns(row.pop("source_ref"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object, bits: int) -> int | None:
    """Return a byte or frame number, or None: locators come with the data and may hold anything."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits else None
    )


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:  # a lone surrogate in text that comes from bad data
        return pa.array(
            [None if v is None else v.encode("utf-8", "backslashreplace").decode() for v in values], type_
        )


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
            references, counted by kind of fault.
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
        columns = [
            field for field in report.schema if field.name not in RESERVED_COLUMNS and field.name != SOURCE
        ]
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
        lists = "texts and images are read from lists, and none of these fields is one" if self.fields else ""
        pair = _PAIR if self.images and NO_PAIRS not in self.reasons else ""
        return "; ".join(filter(None, (lists, pair)))


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
