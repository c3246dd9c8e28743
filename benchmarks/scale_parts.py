"""Parts of the control path, each beside all shards that are known: for `benchmarks.scale`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measuring import Work

_ASSET = "curated_parquet"
Part = Callable[[], Any]


def prepare_part(name: str, keys: Sequence[str]) -> Work:
    """One part for the shards of one run, ``keys``; the storage is that of the environment."""
    part = PARTS[name](os.environ["MM_STORAGE"], keys)
    return lambda: {"says": str(part())}


def _listing(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.formats.raw_shards import RawLocations

    return lambda: len(RawLocations(os.environ["MM_RAW_SHARDS"], excluded=root).shards())


def _named(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.accounts import Ledger

    return lambda: len(Ledger(root).named(_ASSET))


def _records(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.accounts import Ledger

    return lambda: len(Ledger(root).records(_ASSET, keys))


def _all_records(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.accounts import Ledger

    return lambda: len(Ledger(root).partitions(_ASSET))


def _published(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.survey_store import SurveyIndex

    store, landed = _landed(root)
    return lambda: len(SurveyIndex(store).published(landed))


def _columns(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.survey_store import SurveyIndex

    store, landed = _landed(root)
    return lambda: len(SurveyIndex(store).columns(landed))


def _contract(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.contract import SchemaContract
    from mm_assets.accounting.survey_store import SurveyIndex

    store, landed = _landed(root)
    index = SurveyIndex(store)
    columns, published = index.columns(landed), index.published(landed)
    surveys = {key: survey for key in keys if (survey := store.read(key)) is not None}

    def decide() -> int:
        contract = SchemaContract.derive(columns, published)
        return sum(len(contract.admit(key, survey.columns).refused) for key, survey in surveys.items())

    return decide


def _duplicates(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.survey_store import duplicates

    store, landed = _landed(root)
    sample_ids = dict(store.sample_ids(keys))
    return lambda: sum(map(len, duplicates(store, sample_ids, landed, landed).values()))


def _tars(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting import TARS, index_folder
    from mm_assets.formats.webdataset.writer import TarFolder

    return TarFolder(f"{root}/{TARS.folder}", index=index_folder(root, "tars")).finish


def _proofs(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.proof import ProofStore

    store = ProofStore(root)
    proofs = list(store.read(_ASSET, keys).values())
    return lambda: len(store.roll_up({_ASSET: proofs})["assets"])


def _evidence(root: str, keys: Sequence[str]) -> Part:
    from mm_assets.accounting.proof import Evidence

    return lambda: len(Evidence(root).of(_ASSET))


def _partitions(root: str, keys: Sequence[str]) -> Part:
    table = _table(root)
    return lambda: len(table.partitions(keys))


def _all_partitions(root: str, keys: Sequence[str]) -> Part:
    table = _table(root)
    return lambda: len(table.partitions())


def _orphan_rows(root: str, keys: Sequence[str]) -> Part:
    table = _table(root)
    return lambda: len(table.orphan_rows())


def _commit(root: str, keys: Sequence[str]) -> Part:
    table, sets = _table(root), _fragment_sets(root, "committed", len(keys))
    return lambda: table.commit(sets)


def _indexes(root: str, keys: Sequence[str]) -> Part:
    table = _table(root)
    table.commit(_fragment_sets(root, "indexed", len(keys)))
    return table.ensure_indexes


def _landed(root: str) -> tuple[Any, list[str]]:
    from mm_assets.accounting.accounts import Ledger
    from mm_assets.accounting.survey_store import SurveyStore

    return SurveyStore(root), Ledger(root).named(_ASSET)


def _table(root: str) -> Any:
    from mm_assets.accounting import LANCE
    from mm_assets.formats.lance.table import LanceTable

    return LanceTable(LANCE.place(root, ""))


def _fragment_sets(root: str, name: str, count: int) -> list[Any]:
    """Write the rows of one fragment as so many partitions, with other sample ids."""
    import pyarrow as pa

    from mm_assets.formats.lance.fragments import write_fragments

    table = _table(root)
    rows = table.dataset().get_fragments()[0].to_table()
    schema = table.schema()
    at = rows.schema.get_field_index("sample_id")
    sets = []
    for number in range(count):
        ids = [f"{name}-{number}-{sample_id}" for sample_id in rows.column(at).to_pylist()]
        other = rows.set_column(at, rows.schema.field(at), pa.array(ids, rows.schema.field(at).type))
        sets.append(write_fragments(table.uri, f"{name}-{number:05}", other.cast(schema)))
    return sets


PARTS: dict[str, Callable[[str, Sequence[str]], Part]] = {
    "raw shards: list": _listing,
    "records: names of all": _named,
    "records: those of 100": _records,
    "records: keys of all (proof)": _all_records,
    "gate: published schemas": _published,
    "gate: columns of all surveys": _columns,
    "gate: schema contract": _contract,
    "gate: duplicate sample ids": _duplicates,
    "proof: sums with 100 proofs": _proofs,
    "proof: evidence of all": _evidence,
    "tars: index files": _tars,
    "Lance: 100 partitions": _partitions,
    "Lance: all partitions": _all_partitions,
    "Lance: orphan rows": _orphan_rows,
    "Lance: commit of 100": _commit,
    "Lance: indexes of 100 more": _indexes,
}
