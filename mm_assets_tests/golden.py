"""What ingest and the graph make of known input, as digests: a net under changes that should change nothing.

``python -m mm_assets_tests.golden`` writes them anew, and prints which have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from mm_assets_tests.formats.hostile.cases import CASES
from mm_assets_tests.formats.hostile.test_hostile import ingest
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.graph.output_digests import digests
from mm_assets_tests.graph.published import record_in
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards

FILE = Path(__file__).with_name("golden.json")
_BOUNDS = {"MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2", "MM_WORKERS": "2"}


def golden() -> dict[str, str]:
    """Return the digests of everything by name."""
    with tempfile.TemporaryDirectory() as folder:
        return {**_hostile(Path(folder) / "hostile"), **_graph(Path(folder))}


def _hostile(folder: Path) -> dict[str, str]:
    """Rows, losses with their words, errors and notes of each hostile case, by policy."""
    found = {}
    for case in CASES:
        for policy in ("drop_sample", "warn"):
            shard = folder / case.name / policy / case.file_name
            shard.parent.mkdir(parents=True)
            shard.write_bytes(case.shard(case.entries))
            with warnings.catch_warnings(), contextlib.ExitStack() as changed:
                warnings.simplefilter("ignore")
                for name, value in case.settings.items():
                    changed.enter_context(mock.patch(name, value))
                report, table = ingest(shard, policy, **case.options)
            facts = [
                table.schema.to_string(show_schema_metadata=True),
                table.to_pylist(),
                [(loss.kind, loss.reason, loss.source_ref, loss.is_item) for loss in report.losses],
                [(error.sample_id, error.position, error.message) for error in report.errors],
                {Path(path).name: notes for path, notes in report.notes.items()},
            ]
            found[f"hostile/{case.name}/{policy}"] = _digest(facts, folder)
    return found


def _graph(folder: Path) -> dict[str, str]:
    """Bytes of outputs, ledger and quarantine; settings and checks of each record; the Lance table's rows."""
    raw, storage = folder / "raw", folder / "storage"
    make_shards(raw, members=2, pdf=1, samples=4)
    cut = raw / "web-00001.tar"
    cut.write_bytes(cut.read_bytes()[:-3000])
    with quick_instance(folder / "home") as instance:
        Deployment(str(raw), str(storage), instance, dict(_BOUNDS)).run()
    files = digests(storage).items()  # surveys have the times of the raw shards, which are new here
    found = {f"graph/{name}": digest[:16] for name, digest in files if "raw_shards" not in name}
    for path in sorted((storage / "ledger" / "accounts").glob("*/*.parquet")):
        record = record_in(path)
        account = record.get("account")
        if account and record.get("checks") is not None:
            known = [account.get("settings"), account.get("written"), record["checks"]]
            found[f"record/{path.relative_to(storage)}"] = _digest(known, folder)
    return found


def _digest(facts: Any, folder: Path) -> str:
    text = json.dumps(facts, default=repr, sort_keys=True).replace(str(folder), "FOLDER")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each name whose digest differs, or that is only in one."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            lines.append(f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}")
    return lines


if __name__ == "__main__":
    found = golden()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    print("\n".join(changes(known, found)))
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
