"""Outputs at another place: a folder, a bucket, or a data set of the Hugging Face Hub, proven equal to here.

* `Publication` copies outputs: data first, then the files by which readers find them, then cards. What is
  there already is not copied again. At the end the target is listed, and every file of it compared.
* `PublishedRecord` keeps what is where, with digests: ``ledger/published/<digest of the target>.json``. It is
  written while files are copied, too: by it the next call knows them again.

Only outputs whose proofs hold are published, and none that changes meanwhile.
"""

from __future__ import annotations

import hashlib
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, Final

import xxhash

from mm_assets import __version__
from mm_assets.accounting import (
    CURATED,
    DERIVED_FOLDERS,
    FILTERED,
    LANCE,
    LEDGER_FOLDER,
    REFERRED,
    TRAINING,
    TRAINING_FOLDER,
    TRAINING_NOTE,
    Output,
    ShardRecord,
    present_stats,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.erasures import FOLDER as ERASURES
from mm_assets.accounting.proof import Evidence, ProofStore
from mm_assets.model.errors import first_and_more, nearest
from mm_assets.storage import without_secrets
from mm_assets.storage.files import (
    exists,
    filesystem,
    is_within,
    join,
    open_binary,
    publish_bytes,
    read_bytes,
)
from mm_assets.storage.small_files import seal, unseal
from mm_assets.storage.stamps import mark_of
from mm_assets.training_set.build import TrainingSet
from mm_assets.training_set.proof import problem_of, training_state
from mm_assets.versions.targets import (
    BLOCK,
    BY_FOLDER,
    CARD,
    LocalFile,
    PublishError,
    RemoteFile,
    Target,
    index_files,
    listed_below,
)

FOLDER: Final = f"{LEDGER_FOLDER}/published"
DEFAULT_OUTPUTS: Final = ("filtered", "webdataset")

_BESIDE: Final = (*DERIVED_FOLDERS.values(), LEDGER_FOLDER, "proof", "report")  # of which there are no proofs
_FORMAT: Final = 1
_LAST: Final = (1 << 64) - 1
_SECONDS_BETWEEN_RECORDS: Final = 30.0


@dataclass(frozen=True)
class PublishedFile:
    """A file that is at the target, in a `PublishedRecord`.

    Args:
        digests: in hex, by algorithm; always ``xxh3_128``.
        stamp: that of the file here; empty for one that was made for the target.
        mark: that of the file there.
    """

    path: str
    bytes: int
    digests: Mapping[str, str]
    stamp: str = ""
    mark: str = ""


@dataclass
class PublishedRecord:
    """What was published to one target.

    Attributes:
        target: its URL, without secrets.
        outputs: folders below the storage root.
        state: ``copying``, or ``proven``: everything was there, and equal, at ``proven_at``.
        began_at: time of the last call (UTC, ISO 8601).
    """

    target: str
    outputs: tuple[str, ...] = ()
    state: str = "copying"
    began_at: str = ""
    proven_at: str = ""
    files: dict[str, PublishedFile] = field(default_factory=dict)

    @classmethod
    def read(cls, root: str, target: str) -> PublishedRecord:
        """Return the record of a target; an empty one if there is none that can be read."""
        shown = without_secrets(target)
        data = read_bytes(_record_uri(root, shown))
        try:
            fields = unseal(data or b"")
            if fields.pop("format") != _FORMAT or fields.pop("mm_assets") is None:
                return cls(shown)
            files = [PublishedFile(**entry) for entry in fields.pop("files")]
            return cls(**fields, files={file.path: file for file in files})
        except (ValueError, TypeError, LookupError):
            return cls(shown)

    def write(self, root: str) -> None:
        """Keep the record in the ledger."""
        files = [asdict(self.files[path]) for path in sorted(self.files)]
        fields = {**vars(self), "files": files, "format": _FORMAT, "mm_assets": __version__}
        publish_bytes(_record_uri(root, self.target), seal(fields, indent=1))


def _record_uri(root: str, target: str) -> str:
    return join(root, FOLDER, f"{xxhash.xxh3_128_hexdigest(target.encode())}.json")


@dataclass(frozen=True)
class Published:
    """What a `Publication` did.

    Args:
        files: all that are there now; ``copied`` of them were not before.
        removed: paths that are not there any more.
        read_back: files that were read to be compared, as the target told no digest.
        warnings: lines on what was published though it is not new.
    """

    files: int
    nbytes: int
    copied: int
    removed: Sequence[str]
    read_back: int
    warnings: Sequence[str] = ()


Cards = Callable[[Sequence[str]], Mapping[str, bytes]]
"""The cards for some outputs, given as assets, by path."""


class Publication:
    """Outputs on their way to a target.

    Args:
        root: storage root, a folder or URL.
        target: where to.
        outputs: folders below the storage root.
        cards: makes the cards.
        deletes: whether files go that are below the same folders there, and not here.

    Raises:
        PublishError: an output is unknown, or the target is the storage root, inside it or around it.
    """

    def __init__(
        self, root: str, target: Target, outputs: Sequence[str], cards: Cards, deletes: bool = False
    ) -> None:
        known = [*BY_FOLDER, TRAINING_FOLDER, *_BESIDE]
        for name in outputs:
            if name not in known:
                raise PublishError(f"{name}: no output; {nearest(name, known)}")
        self._root, self._target, self._cards, self._deletes = root, target, cards, deletes
        self._folders = tuple(dict.fromkeys(outputs))
        # An output may be a link itself.
        for here, there in (
            (root, target.url),
            *((join(root, name), join(target.url, name)) for name in self._folders),
        ):
            if is_within(here, there) or is_within(there, here):
                raise PublishError(
                    f"{target.url}: lies in the storage {root}, or around it: name another place"
                )
        self._outputs = [BY_FOLDER[name] for name in self._folders if name in BY_FOLDER]
        self._record = PublishedRecord.read(root, target.url)
        self._written_at = time.monotonic()

    def run(self, progress: Callable[[int, int], None] = lambda done, of: None) -> Published:
        """Copy what is not there yet, and prove that all of it is.

        Args:
            progress: called with the bytes that are known to be there, and all bytes.

        Raises:
            PublishError: an output is not proven, or changes meanwhile; the target has files that are not
                here, and nothing was said of removing them; or a file there is not as it is here.
        """
        self._refuse_unproven()
        files = self._files()
        present = self._target.files(self._folders)
        surplus = self._surplus(files, present)
        if surplus and not self._deletes:
            raise PublishError(
                f"{self._target.url}: {first_and_more(surplus)}: there, and not among what is published; "
                "--delete removes such files"
            )
        self._begin()
        copied = self._copy(files, present, progress)
        if surplus:
            self._target.remove(surplus)
            for path in surplus:
                self._record.files.pop(path, None)
        self._refuse_changed(files)
        read_back = self._prove(files)
        self._record.state, self._record.proven_at = "proven", _now()
        self._record.write(self._root)
        state = training_state(self._root) if TRAINING_FOLDER in self._folders else ""
        advice = f"{TRAINING_FOLDER}: {state}; mm-assets run --assets {TRAINING} makes it of those"
        warnings = [advice] if state.startswith("stale") else []
        nbytes = sum(file.size for file in files)
        return Published(len(files), nbytes, copied, surplus, read_back, warnings)

    def _refuse_unproven(self) -> None:
        if TRAINING_FOLDER in self._folders:
            data = read_bytes(join(self._root, TRAINING_NOTE))
            made = TrainingSet(join(self._root, TRAINING_FOLDER))
            try:
                note = unseal(data or b"")
                problem = problem_of(made, note["plan_digest"], note["files"])
            except (ValueError, LookupError):
                problem = "not proven"
            if problem:
                raise PublishError(f"{made.folder}: {problem}; mm-assets run --assets {TRAINING} makes it")
        ledger, evidence, proofs = Ledger(self._root), Evidence(self._root), ProofStore(self._root)
        for output in self._outputs:
            records = ledger.records(output.asset, ledger.named(output.asset))
            if not records:
                raise PublishError(
                    f"{self._root}: nothing of {output.asset} is recorded here; mm-assets run makes it"
                )
            self._refuse_apart(output, records, ledger)
            stats = present_stats(output.asset, records)
            known = proofs.read(output.asset, records)
            missing = [
                key
                for key, record in records.items()
                if key not in known or not known[key].holds(record, stats.get(key))
            ]
            missing += [key for key in evidence.of(output.asset) if key not in records]
            unknown = evidence.unknown_files(output.asset, records)
            if missing or unknown:
                what = first_and_more(unknown or [f"shard {key!r}" for key in missing])
                why = "belongs to no shard" if unknown else "not proven as it is now"
                raise PublishError(f"{output.asset}: {what}: {why}; mm-assets prove says more")

    def _refuse_apart(self, output: Output, records: Mapping[str, ShardRecord], ledger: Ledger) -> None:
        """Refuse to publish rows without the images that they refer to, or these without the rows there."""
        if {CURATED, FILTERED} <= {*self._outputs}:
            return
        which = self._folders
        if output == CURATED and any(path.startswith(f"{FILTERED.folder}/") for path in self._record.files):
            records = ledger.records(FILTERED.asset, ledger.named(FILTERED.asset))
            why, which = f"{FILTERED.asset} there has its images in it", (*which, FILTERED.folder)
        else:
            why, which = f"its images lie in {CURATED.folder}", (CURATED.folder, *which)
        if any(record.metadata.get(REFERRED) for record in records.values()):
            advice = f"publish that, too (--outputs {','.join(which)})"
            raise PublishError(f"{output.asset}: {why} (MM_FILTERED=reference): {advice}")

    def _files(self) -> list[LocalFile]:
        """Return the files in the order in which they are put there."""
        found = {}
        for folder in self._folders:
            for path, info in listed_below(self._root, folder):
                found[path] = LocalFile(path, int(info["size"]), f"{info['size']}:{mark_of(info)}")
        unread = self._unread(found)
        found = {path: file for path, file in found.items() if path not in unread and not _stays_here(path)}
        for path, content in self._cards([output.asset for output in self._outputs]).items():
            if path == CARD and not self._target.has_card:
                continue
            found[path] = LocalFile(path, len(content), "", content)
        indexes = {join(folder, name) for folder in self._folders for name in index_files(folder)}
        return sorted(found.values(), key=lambda file: (_rank(file.path, indexes), file.path))

    def _unread(self, found: Iterable[str]) -> set[str]:
        """Return the files of earlier versions of the table, which may hold what is no more in it."""
        table = f"{LANCE.folder}/"
        of_table = [path for path in found if path.startswith(table)]
        if LANCE not in self._outputs or not of_table:
            return set()
        from mm_assets.formats.lance.reader_writer import lance_options
        from mm_assets.formats.lance.table import PinnedTable

        uri = join(self._root, LANCE.folder)
        pinned = PinnedTable(uri, lance_options(uri, None))
        # By one scheme of names or the other: in the newer one the last version is listed first.
        manifests = (f"_versions/{number}.manifest" for number in (pinned.version, _LAST - pinned.version))
        wanted = {table + path for path in (*pinned.data_files(), *manifests)}
        below = (f"{table}data/", f"{table}_versions/")
        return {p for p in of_table if p.startswith(below) and p not in wanted and not p.endswith(".json")}

    def _surplus(self, files: Sequence[LocalFile], present: Mapping[str, RemoteFile]) -> list[str]:
        wanted = {file.path for file in files}
        return sorted(path for path in present if path not in wanted and path != CARD)

    def _begin(self) -> None:
        record = self._record
        record.outputs = tuple(dict.fromkeys((*record.outputs, *self._folders)))
        record.state, record.began_at = "copying", _now()
        record.write(self._root)

    def _copy(
        self,
        files: Sequence[LocalFile],
        present: Mapping[str, RemoteFile],
        progress: Callable[[int, int], None],
    ) -> int:
        """Put those files there that are not, and return their number."""
        copied, done, of = 0, 0, sum(file.size for file in files)
        indexes = {join(folder, name) for folder in self._folders for name in index_files(folder)}
        batch: list[LocalFile] = []
        for number, file in enumerate(files):
            digests = self._digests(file)
            if not self._is_there(file, digests, present.get(file.path)):
                batch.append(file)
            self._record.files[file.path] = PublishedFile(file.path, file.size, digests, file.stamp)
            is_last = number + 1 == len(files)
            # A reader that sees an index must find all data that it names.
            ends_rank = is_last or _rank(file.path, indexes) != _rank(files[number + 1].path, indexes)
            if batch and (ends_rank or len(batch) >= self._target.batch):
                self._target.put(self._root, batch)
                copied += len(batch)
                batch = []
                self._write_now_and_then()
            done += file.size
            progress(done, of)
        return copied

    def _digests(self, file: LocalFile) -> Mapping[str, str]:
        """Return the digests of a file here; of one that is known they are not made again."""
        wanted = ("xxh3_128", *self._target.digests)
        known = self._record.files.get(file.path)
        if (
            known is not None
            and file.stamp
            and known.stamp == file.stamp
            and set(wanted) <= set(known.digests)
        ):
            return known.digests
        if file.content is not None:
            return _digests_of([file.content], wanted, file.size)
        with open_binary(join(self._root, file.path)) as stream:
            return _digests_of(_blocks(stream), wanted, file.size)

    def _is_there(self, file: LocalFile, digests: Mapping[str, str], remote: RemoteFile | None) -> bool:
        if remote is None or remote.size != file.size:
            return False
        if remote.digest is not None and digests.get(remote.digest[0]) == remote.digest[1]:
            return True
        known = self._record.files.get(file.path)
        if known is not None and known.digests == digests and known.mark and known.mark == remote.mark:
            return True
        return self._is_equal(file.path, digests)

    def _is_equal(self, path: str, digests: Mapping[str, str]) -> bool:
        """Read a file at the target, and compare it."""
        with self._target.open(path) as stream:
            found = _digests_of(_blocks(stream), ("xxh3_128",), 0)
        return found["xxh3_128"] == digests["xxh3_128"]

    def _refuse_changed(self, files: Sequence[LocalFile]) -> None:
        stamps = {file.path: file.stamp for file in files if file.content is None}
        now = {file.path: file.stamp for file in self._files() if file.content is None}
        if changed := sorted(
            path for path in stamps.keys() | now.keys() if stamps.get(path) != now.get(path)
        ):
            raise PublishError(
                f"{self._root}: {first_and_more(changed)} changed while it was copied: publish again"
            )

    def _prove(self, files: Sequence[LocalFile]) -> int:
        """Compare every file at the target, and return how many were read for it.

        Raises:
            PublishError: one is missing, or differs.
        """
        present, read_back = self._target.files(self._folders), 0
        if surplus := self._surplus(files, present):
            raise PublishError(
                f"{self._target.url}: {first_and_more(surplus)}: put there by others meanwhile"
            )
        for file in files:
            published, remote = self._record.files[file.path], present.get(file.path)
            is_equal = remote is not None and remote.size == file.size
            if is_equal and remote is not None and not self._tells_equal(published, remote):
                read_back += 1
                is_equal = self._is_equal(file.path, published.digests)
            if remote is None or not is_equal:
                self._record.files.pop(file.path)
                self._record.write(self._root)
                what = "missing" if remote is None else "not as it is here"
                raise PublishError(f"{join(self._target.url, file.path)}: {what}; publish again")
            self._record.files[file.path] = PublishedFile(
                file.path, file.size, published.digests, file.stamp, remote.mark
            )
        return read_back

    def _tells_equal(self, published: PublishedFile, remote: RemoteFile) -> bool:
        return remote.digest is not None and published.digests.get(remote.digest[0]) == remote.digest[1]

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written_at > _SECONDS_BETWEEN_RECORDS:
            self._record.write(self._root)
            self._written_at = time.monotonic()


def _stays_here(path: str) -> bool:
    """Return whether a file of the ledger is about publishing itself, or about what was erased."""
    return path.startswith((f"{FOLDER}/", f"{ERASURES}/"))


def _rank(path: str, indexes: Iterable[str]) -> int:
    """Return when a file is put there: data, index files, versions of a table, cards, the card of all."""
    if path == CARD:
        return 4
    if posixpath.basename(path) == CARD:
        return 3
    if "/_versions/" in path:
        return 2
    return int(path in indexes or posixpath.basename(path) == "_metadata.json")


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _digests_of(blocks: Iterable[bytes], names: Sequence[str], size: int) -> dict[str, str]:
    """Return digests of bytes, in hex; ``git`` is that of a blob of ``size`` bytes."""
    made: dict[str, Any] = {}
    for name in names:
        made[name] = (
            xxhash.xxh3_128()
            if name == "xxh3_128"
            else hashlib.new("sha1" if name == "git" else name, usedforsecurity=False)
        )
    if "git" in made:
        made["git"].update(f"blob {size}\0".encode())
    for block in blocks:
        for digest in made.values():
            digest.update(block)
    return {name: digest.hexdigest() for name, digest in made.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def published_to(root: str) -> list[str]:
    """Return the targets that outputs were published to."""
    folder = join(root, FOLDER)
    if not exists(folder):
        return []
    fs, path = filesystem(folder)
    targets = []
    for name in sorted(str(name) for name in fs.ls(path, detail=False)):
        with suppress(ValueError, LookupError):
            targets.append(str(unseal(read_bytes(join(folder, posixpath.basename(name))) or b"")["target"]))
    return targets
