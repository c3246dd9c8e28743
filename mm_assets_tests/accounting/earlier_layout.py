"""Storages as releases before 0.9 left them: record, lost items, balance and notes of a shard apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting import (
    CURATED,
    FILES,
    PUBLISHED,
    ShardRecord,
    digest_files,
    lost_items,
    publish_losses,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import publish_table
from mm_assets.storage.small_files import seal


def make_earlier(storage: str) -> None:
    """Take the accounts of a storage apart."""
    ledger = Ledger(storage)
    for folder in sorted(Path(storage, "ledger", "accounts").iterdir()):
        for record in ledger.records(folder.name, ledger.partitions(folder.name)).values():
            rows = ledger.rows(folder.name, record.key)
            assert rows is not None
            _write(storage, record, rows)
    for folder in ("accounts", "index"):
        shutil.rmtree(Path(storage, "ledger", folder), ignore_errors=True)


def _write(storage: str, record: ShardRecord, rows: pa.Table) -> None:
    name, root = partition_filename(record.key), f"{storage}/ledger"
    below = f"{record.asset}/{name}.parquet"
    uris = []
    if rows.num_rows:
        uris += [f"{root}/items/{below}", f"{root}/balance/{below}"]
        publish_losses(uris[0], lost_items(rows))
        publish_table(uris[1], _balance(rows))
    if record.asset == CURATED.asset:
        published = {"format": 1, "partition": record.key, **json.loads(record.account[PUBLISHED])}
        uris += [f"{root}/raw_shards/{name}.published.json", f"{root}/sample_ids/{name}.parquet"]
        Path(uris[2]).write_bytes(seal({"content": json.dumps(published)}))
        ids = pq.read_table(record.uri, columns=["sample_id"]).group_by("sample_id").aggregate([])
        publish_table(uris[3], ids)
    account = {key: value for key, value in record.account.items() if key != PUBLISHED}
    account[FILES] = {**account.get(FILES, {}), **digest_files(storage, uris)}
    fields: dict[str, Any] = {**vars(record), "account": account, "uri": Ledger(storage).relative(record.uri)}
    del fields["rows_digest"], fields["lost_rows"]
    path = Path(root, record.asset, f"{name}.json")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(seal({"format": 4, **fields}))


def _balance(rows: pa.Table) -> pa.Table:
    """Items in and out, and sums by kind of those that were lost."""
    entries: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in rows.to_pylist():
        if row["outcome"] in ("flagged", "unreferenced"):
            continue
        named = {"asset": row["asset"], "partition": row["partition"], "entry": row["outcome"]}
        numbers = {"kind": row["kind"], "items": 0, "samples": row["samples"], "digest": row["digest"]}
        entry = entries.setdefault((row["outcome"], row["kind"]), named | numbers)
        entry["items"] = None if row["items"] is None else entry["items"] + row["items"]
    types = [
        ("asset", pa.string()),
        ("partition", pa.string()),
        ("entry", pa.string()),
        ("kind", pa.string()),
    ]
    types += [("items", pa.int64()), ("samples", pa.int64()), ("digest", pa.string())]
    return pa.Table.from_pylist(list(entries.values()), schema=pa.schema(types))
