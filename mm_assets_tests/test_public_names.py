"""Everything public is imported from ``mm_assets``, and from where it could be imported before."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import mm_assets
import mm_assets.formats
import mm_assets.interleaved
from mm_assets import MODULES
from tools import public_names

PACKAGES = (mm_assets, mm_assets.interleaved, mm_assets.formats)


def test_the_map_is_not_stale() -> None:
    assert public_names.TARGET.read_text() == public_names.render(), "run `make public-names`"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_is_the_object_of_its_module(package: ModuleType) -> None:
    for name, module in MODULES.items():
        defined = importlib.import_module(module)
        expected = defined if module == f"{package.__name__}.{name}" else getattr(defined, name)
        assert getattr(package, name) is expected, name


def test_a_star_brings_what_it_may() -> None:
    """Not `Image`, which Pillow has, too, and in ``mm_assets.formats`` not the name of a module."""
    assert set(mm_assets.__all__) == set(MODULES)
    assert set(mm_assets.formats.__all__) == set(MODULES) - {"materialize"}
    left_out = set(MODULES) - set(mm_assets.interleaved.__all__)
    assert {"Image", "Value", "Sequence", "Video"} <= left_out
    assert not {name for name in left_out if name.endswith(("Parquet", "Lance"))}


def test_names_of_the_library_contract() -> None:
    contract = """INTERLEAVED_SCHEMA RESERVED_COLUMNS InterleavedBatch build_source_ref parse_source_ref
        reconcile_schema align_table resolve_schema materialize InterleavedParquetReader
        InterleavedWebdatasetReader InterleavedLanceReader InterleavedParquetWriter
        InterleavedWebdatasetWriter InterleavedLanceWriter"""
    assert set(contract.split()) <= set(mm_assets.interleaved.__all__) <= set(MODULES)


def test_no_submodule_hides_a_name() -> None:
    """Only ``mm_assets.formats.materialize``, which has always been the module."""
    hidden = []
    for package in PACKAGES:
        submodules = {path.stem for path in Path(str(package.__path__[0])).iterdir()}
        hidden += [f"{package.__name__}.{name}" for name in submodules & set(MODULES)]
    assert hidden == ["mm_assets.formats.materialize"]


def test_another_name_is_an_attribute_error() -> None:
    for package in PACKAGES:
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Spam'"):
            _ = package.Spam


def test_completion_lists_them() -> None:
    assert set(MODULES) <= set(dir(mm_assets))
