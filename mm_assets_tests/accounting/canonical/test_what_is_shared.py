"""What canonical readers share with the writers whose outputs they prove: this list, and nothing else."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path
from types import ModuleType

from mm_assets.accounting import canonical, formats

# Of each module what it is needed for. None of them reads or writes rows of our outputs.
SHARED = {
    "mm_assets.storage.errors": "an error as one line",
    "mm_assets.storage.files": "opening local and remote files",
    "mm_assets.storage.listing": "the files of a location",
    "mm_assets.formats.partitions": "the name of a file's partition",
    "mm_assets.formats.registry": "the format of a location; files of others, which have no other reader",
    "mm_assets.formats.names": "the names and suffixes of formats",
    "mm_assets.formats.parquet.document_layout": "telling Parquet of others",
    "mm_assets.formats.parquet.document_file": "limits of what a file may unpack to",
    "mm_assets.formats.parquet": (
        "opening a file: footers that end the process, the unit of INT96; "
        "the Arrow types that a Parquet file states"
    ),
    "mm_assets.formats.lance.snapshot": (
        "which text it is that Lance refuses; the record that holds for a version of the table"
    ),
    "mm_assets.formats.lance": (
        "where a Lance table lies; requests that a store did not answer, again; "
        "the Arrow types and names that a table states"
    ),
    "mm_assets.formats.lance.reader_writer": "the storage options of a Lance table",
    "mm_assets.formats.lance.records": "the records that say which rows are a partition's",
    "mm_assets.formats.arrow_cache": (
        "what the metadata of a cache promise of its files; the digest of a shard file, and its columns"
    ),
}
# The same of the modules that declare the formats. No reader of ours may be among them.
DECLARED = {
    "mm_assets.formats.names": "the suffixes of files",
    "mm_assets.formats.lance.reader_writer": "the partitions of a table, and rows that are none's",
    "mm_assets.formats.parquet.reader_writer": "telling Parquet of others",
    "mm_assets.storage.files": "options of a file system",
    "mm_assets.formats.webdataset": "telling raw shards that are made when they are opened",
}
DATA_MODEL = "mm_assets.model"


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere, also within its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "mm_assets"}


def imported_by(package: ModuleType) -> set[str]:
    """The modules outside accounting and the data model that a module, or those of a package, import."""
    assert package.__file__ is not None
    files = [Path(package.__file__)]
    for folder in getattr(package, "__path__", ()):
        files += [Path(folder, f"{module.name}.py") for module in pkgutil.iter_modules([folder])]
        assert len(files) > 3
    imported = set().union(*map(imports_of, files))
    ours = (f"{DATA_MODEL}.", "mm_assets.accounting.")
    return {name for name in imported if name != DATA_MODEL and not name.startswith(ours)}


def test_canonical_readers_share_what_is_listed() -> None:
    assert imported_by(canonical) == set(SHARED)


def test_declarations_of_formats_take_no_reader_of_ours() -> None:
    assert imported_by(formats) == set(DECLARED)
