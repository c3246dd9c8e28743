"""Current state of all outputs below a storage root, by the records of their shards."""

from __future__ import annotations

from collections.abc import Iterator

from mm_assets.accounting.file_digests import recorded_files
from mm_assets.accounting.ledger import LEDGER_FOLDER, Ledger
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.accounting.stated_partitions import stated_partitions
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import StorageOptions, join
from mm_assets.versions.output_state import ASSETS, Group, OutputState, by_partition

_AT_ONCE = 500  # partitions whose records are in memory


class CurrentState:
    """The recorded outputs below ``root`` (a folder or URL), partition by partition in sorted order."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._keys = {
            asset: set(
                stated_partitions(join(root, LEDGER_FOLDER, partition_filename(asset)), ".json", options)
            )
            for asset in ASSETS
        }

    @property
    def partitions(self) -> list[str]:
        """All partitions of all assets, sorted."""
        return sorted(set().union(*self._keys.values()))

    def records(self) -> Iterator[list[list[ShardRecord]]]:
        """Yield the records of some partitions at a time: for each partition those of its assets.

        Raises:
            ValueError: a record cannot be read, so that nobody knows what was written.
        """
        records, partitions = ShardRecords(self._root), self.partitions
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            found = {
                asset: records.read(asset, [name for name in some if name in self._keys[asset]])
                for asset in ASSETS
            }
            for asset, by_name in found.items():
                for name in some:
                    if name in self._keys[asset] and name not in by_name:
                        raise ValueError(
                            f"{records.path(asset, name)}: unreadable, so the state of {asset} is not known: "
                            "materialize the shard again"
                        )
            yield [[found[asset][name] for asset in ASSETS if name in found[asset]] for name in some]

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield the states of each partition, without their files."""
        return by_partition(
            state_of(self._root, record) for several in self.records() for one in several for record in one
        )


def state_of(root: str, record: ShardRecord) -> OutputState:
    """Return the state that a record below a storage root tells, without its files."""
    account = record.account
    written = account.get("written", {})
    losses = recorded_files(record).get(
        Ledger(root).items_uri(record.asset, record.key).removeprefix(join(root, ""))
    )
    return OutputState(
        asset=record.asset,
        partition=record.key,
        version=record.version,
        fingerprint=record.fingerprint,
        made_by=str(account.get("made_by", "")),
        inputs=dict(account.get("inputs", {})),
        rows=written.get("rows"),
        samples=written.get("samples"),
        losses=str(losses["digest"]) if losses else "",
        settings=dict(account.get("settings", {})),
    )
