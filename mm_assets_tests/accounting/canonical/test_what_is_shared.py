"""What canonical readers share with the writers whose outputs they prove: this list, and nothing else."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

from mm_assets.accounting import canonical

# Of each module what it is needed for. None of them reads or writes rows of our outputs.
SHARED = {
    "mm_assets.formats.error_lines": "an error as one line",
    "mm_assets.formats.reader": "the class ShardError",
    "mm_assets.formats.storage": "opening local and remote files",
    "mm_assets.formats.listing": "the files of a location",
    "mm_assets.formats.partitions": "the name of a file's partition",
    "mm_assets.formats.registry": "the format of a location; files of others, which have no other reader",
    "mm_assets.formats.format_table": "the names and suffixes of formats",
    "mm_assets.accounting.accounted_format": "which canonical reader a format has",
    "mm_assets.formats.document_parquet.layout": "telling Parquet of others",
    "mm_assets.formats.parquet_file": "refusing footers over which pyarrow ends the process",
    "mm_assets.formats.parquet_types": "the Arrow types that a Parquet file states",
    "mm_assets.formats.lance.storage_types": "the Arrow types and names that a Lance table states",
    "mm_assets.formats.lance.location": "where a Lance table lies",
    "mm_assets.formats.lance.reader": "the storage options of a Lance table",
    "mm_assets.formats.lance.partitions": "the records that say which rows are a partition's",
    "mm_assets.formats.lance.snapshot": "the record that holds for a version of the table",
    "mm_assets.formats.arrow_cache.metadata": "what the metadata of a cache promise of its files",
    "mm_assets.formats.arrow_cache.shards": "the digest of a shard file, and its columns",
}
DATA_MODEL = "mm_assets.interleaved"


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere, also within its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "mm_assets"}


def test_canonical_readers_share_what_is_listed() -> None:
    (folder,) = canonical.__path__
    modules = [Path(folder, f"{module.name}.py") for module in pkgutil.iter_modules([folder])]
    assert len(modules) > 10
    imported = set().union(*map(imports_of, [*modules, Path(folder, "__init__.py")]))
    foreign = {
        name
        for name in imported
        if name != DATA_MODEL and not name.startswith((f"{DATA_MODEL}.", canonical.__name__))
    }
    assert foreign == set(SHARED)
