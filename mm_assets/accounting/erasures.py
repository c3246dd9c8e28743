"""Erasures: what people asked to have erased, and the deny list that keeps it out of every later ingest.

ledger/erasures/<id>.json   one erasure: what was asked for, by digests alone, and what was done
ledger/erasures/<id>.work   what the scan after it looks for, in plain; only while it is unfinished

* `Entry` is one thing to erase, `Erasure` a request with the progress made. Finished, it is the certificate.
* `ErasureStore` keeps them. A damaged file is an error: nobody could say what may not come in.
* `DenyList` is all entries together, with the users' hash lists. Its step takes denied rows out of a stream,
  and names them so that nothing of them is told.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import LEDGER_FOLDER
from mm_assets.filters.id_list import HASH_DIGITS
from mm_assets.filters.known_hashes import DEFAULT_RADIUS, MOST_RADIUS, HashList, KnownHashes, picture_hashes
from mm_assets.formats.materialize import materialize_parts
from mm_assets.formats.names import ids_in_name
from mm_assets.formats.parquet import UnreadableFile
from mm_assets.formats.partitions import own_name
from mm_assets.formats.reports import CONTENT, LEFT_OUT_MEMBERS
from mm_assets.model.errors import ERASED, INCOMPLETE_SAMPLE, LISTED_HASH, require
from mm_assets.model.json_codec import is_json, json_value, strings_in
from mm_assets.model.losses import Loss
from mm_assets.model.nested_types import binary_views, take_rows
from mm_assets.model.samples import BatchStream, InterleavedBatch, StepResult, parse_source_ref
from mm_assets.storage.files import join
from mm_assets.storage.small_files import FolderFiles, seal, unseal
from mm_assets.storage.stamps import files_in

SAMPLE_ID, URL, SHA256, MD5, PDQ = "sample_id", "url", "sha256", "md5", "pdq"
KINDS: Final = (SAMPLE_ID, URL, SHA256, MD5, PDQ)
ALIAS: Final = "^erased:[0-9a-f]{32}$"
"""Expression that names of erased samples match."""
LONGEST_TEXT: Final = 1 << 16
"""Bytes of an id or a URL; longer texts of the data are not compared."""

FOLDER: Final = f"{LEDGER_FOLDER}/erasures"
_FORMAT: Final = 1
_SUFFIX, WORK = ".json", ".work"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_BLANKS: Final = b" \t\r\n\xef\xbb\xbf"  # with the mark of UTF-8
_FETCHED_BYTES: Final = 32 << 20  # of images that only a locator names, at a time


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def alias_of(sample_id: str) -> str:
    """Return what an erased sample is called wherever its id would stand."""
    return f"erased:{text_digest(sample_id)[:32]}"


def is_alias(sample_id: str) -> bool:
    """Return whether a text is the name of an erased sample."""
    return re.match(ALIAS, sample_id) is not None


@dataclass(frozen=True)
class Entry:
    """One thing that may not be in the data: a digest, never the thing itself.

    Attributes:
        kind: one of `KINDS`.
        value: hex digits: the SHA-256 of an id or a URL, or the hash of an image.
        radius: of a PDQ hash, the bits that may differ.
        given: an id or a URL in plain, for what looks for it; never stored.
    """

    kind: str
    value: str
    radius: int = 0
    given: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, kind: str, given: str, radius: int = DEFAULT_RADIUS) -> Entry:
        """Return the entry of an id, a URL or a hash in plain.

        Raises:
            ValueError: it is none; the message names it.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        if kind in HASH_DIGITS:
            value = given.lower()
            if len(value) != HASH_DIGITS[kind] or not set(value) <= set("0123456789abcdef"):
                raise ValueError(f"{kind}: {given!r:.100} is not {HASH_DIGITS[kind]} hex digits")
        else:
            nbytes = len(given.encode("utf-8", "surrogatepass"))
            if not 0 < nbytes <= LONGEST_TEXT:
                raise ValueError(f"{kind}: {given!r:.100} has {nbytes} bytes, not 1 to {LONGEST_TEXT}")
            return cls(kind, text_digest(given), given=given)
        if kind != PDQ:
            return cls(kind, value)
        if not 0 <= radius <= MOST_RADIUS:
            raise ValueError(f"{kind}: a radius of {radius} for {given!r:.100} is not 0 to {MOST_RADIUS}")
        return cls(kind, value, radius)


@dataclass(frozen=True)
class Erasure:
    """A request to erase, and what was done for it. It holds no content.

    Attributes:
        id: names the file and the reason of each loss.
        begun: time, ISO 8601 in UTC.
        entries: what was asked for.
        partitions: those that hold it, with the number of their rows: their shards are made again.
        found: where it was found, and how often.
        rewritten: what was rebuilt, rewritten, dropped or removed.
        scan: what was looked through after that, and what was found.
        finished: time; None: it is not.
    """

    id: str
    begun: str
    entries: tuple[Entry, ...]
    partitions: Mapping[str, int] = field(default_factory=dict)
    found: Mapping[str, Any] = field(default_factory=dict)
    rewritten: Mapping[str, Any] = field(default_factory=dict)
    scan: Mapping[str, Any] = field(default_factory=dict)
    finished: str | None = None

    @classmethod
    def begin(cls, entries: Iterable[Entry]) -> Erasure:
        """Return a new erasure, each entry once."""
        now = datetime.now(UTC)
        id_ = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        return cls(id_, now.isoformat(timespec="seconds"), tuple(dict.fromkeys(entries)))

    @property
    def reason(self) -> str:
        """The reason of what it takes out."""
        return f"erased on request {self.id}"


class ErasureStore(FolderFiles):
    """The erasures of a storage root, a folder or URL."""

    def __init__(self, root: str) -> None:
        super().__init__(join(root, FOLDER))

    def all(self) -> list[Erasure]:
        """Return all erasures, the earliest first.

        Raises:
            UnreadableFile: one is damaged.
        """
        names = sorted(name for name in self._list("") if name.endswith(_SUFFIX) and name[0] != ".")
        return [self._parsed(name, data) for name, data in self._read_many(names).items()]

    def stamps(self) -> dict[str, str]:
        """Return a text for each erasure that changes with it, from one listing."""
        listed = files_in(self._uri(""), suffix=_SUFFIX)
        return {name: file.stamp for name, file in listed.items() if name[0] != "."}

    def unfinished(self) -> list[Erasure]:
        """Return the erasures that were interrupted, or are being made."""
        return [erasure for erasure in self.all() if erasure.finished is None]

    def read(self, id_: str) -> Erasure:
        """Return an erasure.

        Raises:
            ValueError: there is none, or it is damaged.
        """
        data = self._read(_named(id_, _SUFFIX))
        if data is None:
            raise ValueError(f"{self.folder}: no erasure {id_!r:.100}")
        return self._parsed(f"{id_}{_SUFFIX}", data)

    def write(self, erasure: Erasure) -> None:
        """Write an erasure in one step. From then on its entries are denied."""
        stated = [{"kind": e.kind, "value": e.value, "radius": e.radius} for e in erasure.entries]
        fields = {**asdict(erasure), "entries": stated}
        self._write(_named(erasure.id, _SUFFIX), seal({"format": _FORMAT, **fields}, indent=1))

    def write_work(self, id_: str, work: bytes) -> None:
        """Keep what the scan of an erasure looks for until it is finished."""
        self._write(_named(id_, WORK), work)

    def read_work(self, id_: str) -> bytes | None:
        """Return what `write_work` was given; None if it is not kept."""
        return self._read(_named(id_, WORK))

    def remove_work(self, id_: str) -> None:
        """Remove what `write_work` was given, if it is kept."""
        self._remove(_named(id_, WORK))

    def _parsed(self, name: str, data: bytes) -> Erasure:
        try:
            fields = unseal(data)
            if fields.pop("format") != _FORMAT:
                raise ValueError(f"not of format {_FORMAT}")
            entries = tuple(Entry(**entry) for entry in fields.pop("entries"))
            erasure = Erasure(entries=entries, **fields)
            if f"{erasure.id}{_SUFFIX}" != name:
                raise ValueError(f"belongs to erasure {erasure.id!r}")
        except (ValueError, TypeError, KeyError) as error:
            raise UnreadableFile(
                f"{join(self.folder, name)}: damaged, and nobody can tell what may not come in: put it back "
                f"from a copy, or remove it and erase again ({error})"
            ) from error
        return erasure


def _named(id_: str, suffix: str) -> str:
    if not _ID.fullmatch(id_):
        raise ValueError(f"{id_!r:.100} is no id of an erasure")
    return f"{id_}{suffix}"


class Denial(NamedTuple):
    """Why a row may not come in.

    Attributes:
        kind: `ERASED` or `LISTED_HASH`.
        reason: for the ledger.
        is_of_sample: whether the whole sample goes.
    """

    kind: str
    reason: str
    is_of_sample: bool = False


@dataclass(frozen=True)
class DenyList:
    """What may not come in: entries of all erasures, and users' hash lists. It is false if there are none.

    Attributes:
        entries: those of erasures, each with its denial.
        partitions: ids of the erasures that name a partition, by partition.
        lists: hash lists.
    """

    entries: Mapping[Entry, Denial] = field(default_factory=dict)
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: tuple[HashList, ...] = ()

    @classmethod
    def of(cls, erasures: Iterable[Erasure]) -> DenyList:
        """Return the list of some erasures; of equal entries the first counts."""
        entries: dict[Entry, Denial] = {}
        partitions: dict[str, tuple[str, ...]] = {}
        for erasure in erasures:
            for entry in erasure.entries:
                is_of_sample = entry.kind == SAMPLE_ID
                entries.setdefault(entry, Denial(ERASED, erasure.reason, is_of_sample))
            for partition in erasure.partitions:
                partitions[partition] = (*partitions.get(partition, ()), erasure.id)
        return cls(entries, partitions)

    @classmethod
    def read(cls, root: str, lists: Iterable[HashList] = ()) -> DenyList:
        """Return the list of a storage root, with one listing; files are read where they have changed.

        Args:
            root: a folder or URL.
            lists: hash lists that count as well.

        Raises:
            UnreadableFile: an erasure is damaged.
        """
        store = ErasureStore(root)
        stamps = store.stamps()
        known = _read_before.get(store.folder, ({}, cls()))
        if known[0] != stamps:
            known = _read_before[store.folder] = stamps, cls.of(store.all())
        return replace(known[1], lists=given) if (given := tuple(lists)) else known[1]

    def __bool__(self) -> bool:
        return bool(self.entries or self.lists)

    @cached_property
    def digest(self) -> str:
        """Digest of all entries, whoever asked for them, and of hash lists."""
        stated = sorted((entry.kind, entry.value, entry.radius) for entry in self.entries)
        lists = sorted(each.digest for each in self.lists)
        return hashlib.sha256(json.dumps([stated, lists]).encode()).hexdigest()[:32]

    @property
    def needs_pixels(self) -> bool:
        """Whether images have to be decoded."""
        return bool(self._pictures)

    @property
    def needs_bytes(self) -> bool:
        """Whether the bytes of images have to be read."""
        return bool(self.lists or self._of_kind(SHA256) or self._of_kind(MD5) or self.needs_pixels)

    def refuse_missing_extra(self) -> None:
        """Raise `MissingExtra` if pictures are to be compared and nothing can.

        Raises:
            MissingExtra: the extra that brings it is not installed.
        """
        if self.needs_pixels:
            require("pdqhash", "cv2")

    def erasures_of(self, partition: str) -> list[str]:
        """Return the ids of the erasures that name a partition: its shard is made again for each."""
        return list(self.partitions.get(partition, ()))

    alias = staticmethod(alias_of)

    def denial_of(self, sample_id: str) -> Denial | None:
        """Return what is said against a sample by its id; None if nothing is."""
        ids = self._of_kind(SAMPLE_ID)
        return ids.get(text_digest(sample_id)) if ids else None

    def hides_sample(self, sample_id: str) -> bool:
        """Return whether the id of a sample may not be told."""
        return self.denial_of(sample_id) is not None

    def hides_member(self, name: str, prefixes: Iterable[str] = ("",)) -> bool:
        """Return whether the name of a tar's member tells the id of an erased sample.

        Args:
            name: of the member, as `ids_in_name` takes it.
            prefixes: what the reader puts before the ids of the tar.
        """
        ids = self._of_kind(SAMPLE_ID)
        return bool(ids) and any(
            stem[1:] in ids or any(text_digest(prefix + stem) in ids for prefix in prefixes)
            for stem in ids_in_name(name)
        )

    def names_hidden_in(self, partition: str, files: Iterable[str]) -> Callable[[Iterable[str]], list[str]]:
        """Return a function that replaces names of members, or lines that begin with one, by `ERASED`.

        Args:
            partition: the shard.
            files: its files; ids may be given names of either as prefix.
        """
        owners = {partition, *(own for file in files if (own := own_name(partition, file)) is not None)}
        prefixes = ["", *(f"{owner}/" for owner in owners)]
        return lambda names: [ERASED if self.hides_member(name, prefixes) else name for name in names]

    def hides_text(self, text: str) -> bool:
        """Return whether a text is an id or a URL that may not be told."""
        return any(text_digest(text) in self._of_kind(kind) for kind in (SAMPLE_ID, URL))

    def hides_bytes(self, data: bytes | memoryview) -> bool:
        """Return whether bytes are an image that may not come in, or a JSON text with such an id or URL."""
        if self._of_bytes(data) is not None:
            return True
        if not bytes(data[:64]).lstrip(_BLANKS).startswith((b"{", b"[")):
            hash_ = KnownHashes.hash_of(data) if self._pictures else None
            return hash_ is not None and self._of_picture(hash_) is not None
        quoted = _QUOTED.findall(bytes(data).decode("utf-8-sig", "replace"))  # the JSON may be damaged
        return any(self.hides_text(str(json_value(text))) for text in quoted)

    def denials(
        self,
        table: pa.Table,
        roots: Sequence[str] | None = None,
    ) -> dict[int, Denial]:
        """Return what is said against rows, by their numbers.

        A whole sample is denied on any of its rows; what is said of it holds for all of them.

        Args:
            table: rows of whole samples, in the columns of the data model.
            roots: where the bytes of images that only a locator names may be fetched from.
        """
        found: dict[int, Denial] = {}
        if self._of_kind(SAMPLE_ID):
            ids = table.column("sample_id").to_pylist()
            of_ids = {sample_id: self.denial_of(sample_id) for sample_id in set(ids)}
            found = {row: denial for row, id_ in enumerate(ids) if (denial := of_ids[id_]) is not None}
        if urls := self._of_kind(URL):
            is_metadata = pc.equal(table.column("modality"), "metadata").to_pylist()
            for row, text in _texts(table):
                if row not in found and (denial := urls.get(text_digest(text))) is not None:
                    found[row] = denial._replace(is_of_sample=is_metadata[row])
        if self.needs_bytes:
            for row, denial in self._denied_images(table, roots):
                found.setdefault(row, denial)
        return found

    def step(self, policy: str, roots: Sequence[str] | None = None) -> DenyStep:
        """Return the step that takes out what is denied. It goes before all others.

        Args:
            policy: with ``drop_sample``, a denied image takes its sample with it.
            roots: see `denials`.
        """
        return DenyStep(self, policy == "drop_sample", None if roots is None else tuple(roots))

    def scrubbed(self, losses: Iterable[Loss], aliases: Iterable[str] = ()) -> list[Loss]:
        """Return losses that tell nothing of erased samples.

        Args:
            losses: of any kind, such as those of a reader.
            aliases: of further samples that are erased, for what is on their rows.
        """
        hidden = set(aliases)
        return [self._scrubbed(loss, hidden) for loss in losses]

    def _scrubbed(self, loss: Loss, hidden: set[str]) -> Loss:
        if loss.sample_id is None or loss.kind == ERASED:
            return loss
        denial = self.denial_of(loss.sample_id)
        alias = alias_of(loss.sample_id)
        if denial is None and alias not in hidden:
            return loss
        reason = "erased on request" if denial is None else denial.reason
        return Loss.quarantined(alias, loss.position, loss.modality, ERASED, reason, is_cause=loss.is_cause)

    @cached_property
    def _by_kind(self) -> dict[str, dict[str, Denial]]:
        found: dict[str, dict[str, Denial]] = {kind: {} for kind in KINDS}
        for entry, denial in self.entries.items():
            found[entry.kind].setdefault(entry.value, denial)
        return found

    def _of_kind(self, kind: str) -> dict[str, Denial]:
        return self._by_kind[kind]

    @cached_property
    def _pictures(self) -> list[tuple[KnownHashes, list[Denial]]]:
        """PDQ hashes, with the denial of each, or one for all."""
        entries = [entry for entry in self.entries if entry.kind == PDQ]
        known = KnownHashes([entry.value for entry in entries], [entry.radius for entry in entries])
        denials = [self.entries[entry] for entry in entries]
        listed = [(each.pictures, [_listed(each)]) for each in self.lists if PDQ in each.columns]
        return [(hashes, of) for hashes, of in [(known, denials), *listed] if len(hashes)]

    def _of_bytes(self, data: bytes | memoryview) -> Denial | None:
        """Return what is said against the bytes of an image; None if nothing is."""
        for kind, hashed in ((SHA256, hashlib.sha256), (MD5, hashlib.md5)):
            denials = self._of_kind(kind)
            lists = [each for each in self.lists if kind in each.columns]
            if not denials and not lists:
                continue
            digits = hashed(data, usedforsecurity=False).hexdigest()
            if (found := denials.get(digits)) is not None:
                return found
            for each in lists:
                if each.has(kind, digits):
                    return _listed(each)
        return None

    def _denied_images(self, table: pa.Table, roots: Sequence[str] | None) -> Iterator[tuple[int, Denial]]:
        """Yield row and denial of images; those without bytes are fetched, a few at a time."""
        first = 0
        for part in materialize_parts(table, _FETCHED_BYTES, roots):
            views = [view for chunk in part.column("binary_content").chunks for view in binary_views(chunk)]
            is_image = pc.equal(part.column("modality"), "image").to_pylist()
            rows = [row for row, view in enumerate(views) if is_image[row] and view]
            denied = {row: self._of_bytes(views[row] or b"") for row in rows}
            if self._pictures:
                others = [row for row, denial in denied.items() if denial is None]
                hashes = picture_hashes(part, others)
                denied |= {row: self._of_picture(hash_) for row, hash_ in hashes.items()}
            yield from ((first + row, denial) for row, denial in denied.items() if denial is not None)
            first += part.num_rows

    def _of_picture(self, hash_: str) -> Denial | None:
        """Return what is said against a picture; None if nothing is."""
        for known, denials in self._pictures:
            if (found := known.nearest(hash_)) is not None:
                return denials[found[0] if len(denials) > 1 else 0]
        return None


def _listed(each: HashList) -> Denial:
    return Denial(LISTED_HASH, f"matches the hash list {each.name}")


_read_before: dict[str, tuple[Mapping[str, str], DenyList]] = {}


def _texts(table: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield row and text of each text in a table, also in lists and objects, JSON and locators."""
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_primitive(column.type) or name == "binary_content":
            continue
        is_coded = is_json(table.schema.field(name)) or name == "source_ref"
        for row, value in enumerate(column.to_pylist()):
            decoded = json_value(value) if is_coded and value is not None else value
            yield from ((row, text) for text in strings_in(decoded) if len(text) <= LONGEST_TEXT)


@dataclass(frozen=True)
class DenyStep:
    """Step that takes out what a deny list names, and hides erased samples in all that the stream tells.

    Args:
        deny: the list.
        drops_samples: whether a denied image takes its sample with it.
        roots: where locators may point.
    """

    deny: DenyList
    drops_samples: bool
    roots: tuple[str, ...] | None = None

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        denials = self.deny.denials(table, self.roots)
        if not denials:
            return StepResult(batch)
        ids = table.column("sample_id").to_pylist()
        causes: dict[str, int] = {}  # the row for which a sample goes as a whole
        for row in sorted(denials, key=lambda row: (not denials[row].is_of_sample, row)):
            if denials[row].is_of_sample or self.drops_samples:
                causes.setdefault(ids[row], row)
        rows = [row for row, sample_id in enumerate(ids) if row in denials or sample_id in causes]
        removed = take_rows(table, rows)
        named: set[str] = set()
        losses: list[Loss] = []
        places = [removed.column(name).to_pylist() for name in ("position", "modality")]
        for row, position, modality in zip(rows, *places, strict=True):
            cause = causes.get(ids[row], row)
            denial = denials[cause]
            if denial.is_of_sample:
                item = alias_of(ids[row]), position, modality
                is_first = ids[row] not in named
                losses.append(Loss.quarantined(*item, denial.kind, denial.reason, is_cause=is_first))
            elif (own := denials.get(row)) is not None:
                losses.append(Loss.quarantined(ids[row], position, modality, own.kind, own.reason))
            else:
                of = table.column("position")[cause].as_py()
                reason = f"its sample has an error at position {of}: {denial.reason}"
                item = ids[row], position, modality
                losses.append(Loss.quarantined(*item, INCOMPLETE_SAMPLE, reason, is_cause=False))
            named.add(ids[row])
        kept = np.setdiff1d(np.arange(table.num_rows), rows)
        return StepResult(batch.with_data(take_rows(table, kept)), tuple(losses), removed)

    def at_end(self, stream: BatchStream) -> None:
        """Hide erased samples in the losses and notes of a stream that has been read."""
        aliases = aliases_in(stream.losses)
        stream.losses[:] = self.deny.scrubbed(stream.losses, aliases)
        for file, notes in stream.notes.items():
            names = self.deny.names_hidden_in(stream.partition, [file])
            for kind in ("unreferenced_members", "unreferenced_frames", "skipped_members", LEFT_OUT_MEMBERS):
                if kind in notes:
                    notes[kind] = names(notes[kind])
            if CONTENT in notes:
                notes[CONTENT] = {key: tuple(names(lines)) for key, lines in notes[CONTENT].items()}
            for number, loss in enumerate(notes.get("unreferenced_losses", ())):
                if names([parse_source_ref(loss.source_ref)["member"] or ""]) == [ERASED]:
                    hidden = replace(loss, kind=ERASED, reason="erased on request", source_ref=None)
                    notes["unreferenced_losses"][number] = hidden


def aliases_in(losses: Iterable[Loss]) -> set[str]:
    """Return the names of the samples that are erased as a whole, as losses tell."""
    names = {loss.sample_id for loss in losses if loss.kind == ERASED}
    return {name for name in names if name is not None and is_alias(name)}
