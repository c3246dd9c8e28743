"""Store of the proofs of zero loss: what a canonical reader finds in each output, against what was written.

proof/<asset>/<partition>.json   one shard of one output, as last examined
proof/proof.json                 summary of all: counts, digests, versions, configuration; derived, so it
                                 can always be rebuilt
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from mm_assets import __version__
from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import (
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    join,
    local_bytes,
    local_path,
    open_binary,
    replace_file,
    staged,
)

FORMAT = 3
SUMMARY = "proof.json"
_COUNTS = ("rows", "samples", "images", "texts", "lost_rows")
_DIGESTS = ("digest", "lost_digest")
_SUMMED = (*_COUNTS, *_DIGESTS)
_NAMED = ("reader", "config")
_MODULUS = 1 << 128
_PACKAGES = ("pyarrow", "webdataset", "pylance", "xxhash")
_THREADS = 16


@dataclass(frozen=True)
class ShardProof:
    """Proof of one shard of one output.

    Attributes:
        asset: the asset.
        partition: the shard.
        reader: the canonical reader used.
        written: rows, samples, images, texts and digest as the writer reported them.
        derived: the same as the canonical reader finds them.
        lost: number and digest of the rows taken out.
        config: identifies code and options.
        stat: tells whether the output is still the one that was examined.
        problems: one line for each difference.
        beside: those problems that concern only index files, ledger, scores and quarantine beside the output;
            the next run repairs these by itself.
        examined_at: time of the examination (UTC, ISO 8601).
    """

    asset: str
    partition: str
    reader: str
    written: Mapping[str, Any]
    derived: Mapping[str, Any]
    lost: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    stat: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    examined_at: str = ""

    @property
    def is_equal(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def is_damaged(self) -> bool:
        """True if the output itself differs from what was written."""
        return not set(self.problems) <= set(self.beside)


class ProofStore:
    """Proofs below a storage root (folder or URL)."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._folder = join(root, "proof")
        self._options = options
        self._fs, self._path = filesystem(self._folder, options)

    def read(self, asset: str, partition: str) -> ShardProof | None:
        """Return the last proof of a shard; None without one, or with an unreadable one."""
        uri = self.uri(asset, partition)
        if not exists(uri, self._options):
            return None
        with open_binary(uri, self._options) as file:
            proof = _parsed(file.read())
        return proof if proof is not None and (proof.asset, proof.partition) == (asset, partition) else None

    def write(self, proof: ShardProof) -> None:
        """Publish one shard's proof; an unchanged one is not rewritten."""
        self._publish(self.uri(proof.asset, proof.partition), {"format": FORMAT, **vars(proof)})

    def uri(self, asset: str, partition: str) -> str:
        """Return the location of a shard's proof."""
        return join(self._folder, partition_filename(asset), f"{partition_filename(partition)}.json")

    def drop(self, partitions: Collection[str]) -> None:
        """Take partitions out of ``proof.json``; the proofs themselves must be gone by then."""
        previous = self._rolled_up()
        if not previous:
            return
        shards = {name: entries for name, entries in previous["shards"].items() if name not in partitions}
        unmade = {
            asset: [name for name in names if name not in partitions]
            for asset, names in previous["unmade"].items()
        }
        self._publish(join(self._folder, SUMMARY), summarize(shards, unmade, previous["unknown_files"]))

    def roll_up(
        self,
        examined: Sequence[ShardProof],
        unmade: Mapping[str, Sequence[str]] | None = None,
        unknown: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, Any]:
        """Update ``proof.json`` with these proofs, publish it, and return its content.

        Entries of other shards are taken from the previous file. If it does not cover every shard with a
        proof, it is rebuilt from all proofs.

        Args:
            examined: proofs made now.
            unmade: by asset, shards that its source has but the asset lacks.
            unknown: by asset, files that belong to no shard. For both, assets that are not named keep their
                previous entries, without the shards examined now.
        """
        paths = self._paths()
        previous = self._rolled_up()
        shards = {partition: dict(entries) for partition, entries in previous.get("shards", {}).items()}
        for proof in examined:
            shards.setdefault(proof.partition, {})[proof.asset] = _entry(proof)
        if sum(map(len, shards.values())) != len(paths):
            with ThreadPoolExecutor(_THREADS) as threads:
                found = [_parsed(data) for data in threads.map(self._fs.cat_file, paths)]
            shards = {}
            for proof_read in found:
                if proof_read is not None:
                    shards.setdefault(proof_read.partition, {})[proof_read.asset] = _entry(proof_read)
        examined_keys = {(proof.asset, proof.partition) for proof in examined}
        still_unmade = {
            asset: [key for key in keys if (asset, key) not in examined_keys]
            for asset, keys in previous.get("unmade", {}).items()
        }
        summary = summarize(
            shards, still_unmade | dict(unmade or {}), previous.get("unknown_files", {}) | dict(unknown or {})
        )
        if summary != previous:
            self._publish(join(self._folder, SUMMARY), summary)
        return summary

    def _rolled_up(self) -> dict[str, Any]:
        uri = join(self._folder, SUMMARY)
        if not exists(uri, self._options):
            return {}
        with open_binary(uri, self._options) as file:
            try:
                summary = unseal(file.read())
            except ValueError:  # torn or changed: rebuilt from the proofs
                return {}
        return summary if summary.get("format") == FORMAT else {}

    def _paths(self) -> list[str]:
        """Return the paths of all shards' proofs: one folder deep; hidden files are temporary."""
        self._fs.invalidate_cache()
        names = [path[len(self._path) :].strip("/") for path in self._fs.find(self._path, maxdepth=2)]
        return sorted(
            f"{self._path}/{name}"
            for name in names
            if name.count("/") == 1 and name.endswith(".json") and "/." not in name
        )

    def _publish(self, uri: str, content: Mapping[str, Any]) -> None:
        data = seal(content, indent=1)
        if not is_remote(uri):
            if local_bytes(local_path(uri)) != data:
                # Not synced to disk: an empty proof counts as none, and the shard is examined again.
                replace_file(local_path(uri), data)
            return
        with staged(uri, self._options) as file:
            with open(file.path, "wb") as stream:
                stream.write(data)
            file.publish()


def damaged_shards(
    root: str, asset: str, partitions: Iterable[str], options: StorageOptions | None = None
) -> set[str]:
    """Return the partitions of an asset whose last proof found an output other than was written."""
    proofs = ProofStore(root, options)
    partitions = list(partitions)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda partition: proofs.read(asset, partition), partitions)
        return {
            partition
            for partition, proof in zip(partitions, found, strict=True)
            if proof is not None and proof.is_damaged
        }


def summarize(
    shards: Mapping[str, Mapping[str, Mapping[str, Any]]],
    unmade: Mapping[str, Sequence[str]],
    unknown: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the content of ``proof.json``: all entries, and their sums per asset.

    Args:
        shards: partition -> asset -> entry.
        unmade: see `ProofStore.roll_up`.
        unknown: see `ProofStore.roll_up`.
    """
    assets: dict[str, dict[str, Any]] = {}
    for entries in shards.values():
        for asset, entry in entries.items():
            total = assets.setdefault(
                asset,
                {
                    "shards": 0,
                    "is_equal": True,
                    **dict.fromkeys(_SUMMED, 0),
                    "reader": set(),
                    "config": set(),
                },
            )
            total["shards"] += 1
            total["is_equal"] &= entry["is_equal"]
            for name in _COUNTS:
                total[name] += entry[name]
            for name in _DIGESTS:
                total[name] += int(entry[name] or "0", 16)
            for name in _NAMED:
                total[name].add(entry[name])
    for total in assets.values():
        total.update({name: f"{total[name] % _MODULUS:032x}" for name in _DIGESTS})
        total.update({name: sorted(total[name]) for name in _NAMED})
    return {
        "format": FORMAT,
        "mm_assets": __version__,
        "packages": {name: version(name) for name in _PACKAGES},
        "digest": (
            "sum modulo 2^128 of one xxh3-128 per item over the name, type and value of each of its columns"
        ),
        "is_equal": all(total["is_equal"] for total in assets.values()) and not any(unknown.values()),
        "unmade": {asset: list(keys) for asset, keys in unmade.items() if keys},
        "unknown_files": {asset: list(files) for asset, files in unknown.items() if files},
        "assets": assets,
        "shards": shards,
    }


def _entry(proof: ShardProof) -> dict[str, Any]:
    return {
        **{name: proof.derived[name] for name in ("rows", "samples", "images", "texts", "digest")},
        **{f"lost_{name}": proof.lost.get(name) for name in ("rows", "digest")},
        "reader": proof.reader,
        "config": proof.config,
        "is_equal": proof.is_equal,
        "examined_at": proof.examined_at,
        **({"problems": list(proof.problems)} if proof.problems else {}),
    }


def _parsed(data: bytes) -> ShardProof | None:
    """Return a shard's proof; None if the file is torn or of another format, so that it is examined again."""
    try:
        fields = unseal(data)
        if fields.pop("format") != FORMAT:
            return None
        return ShardProof(
            **{**fields, "problems": tuple(fields["problems"]), "beside": tuple(fields.get("beside", ()))}
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
