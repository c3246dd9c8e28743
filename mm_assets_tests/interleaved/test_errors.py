"""One base for all exceptions of the package; all of them cross from a worker process to its parent."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest

import mm_assets
from mm_assets.formats.materialize import FetchError
from mm_assets.formats.reports import PartitionsRefused
from mm_assets.formats.tar import TarDamage
from mm_assets.formats.webdataset import SampleError
from mm_assets.interleaved import MaterializeError, MmAssetsError, SchemaMismatch
from mm_assets.model.errors import DecompressionBomb, ImageError, LosslessSplitError, ShardError
from mm_assets.storage.errors import StoreError


def exceptions_of_the_package() -> set[type[BaseException]]:
    """All exception classes that modules of the package define, but for those with a leading underscore."""
    found: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(mm_assets.__path__, "mm_assets."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            is_ours = isinstance(value, type) and value.__module__ == module.name
            if is_ours and issubclass(value, BaseException) and not name.startswith("_"):
                found.add(value)
    return found


def test_all_derive_from_one_base() -> None:
    found = exceptions_of_the_package()
    assert {ShardError, StoreError, TarDamage, ImageError, FetchError, SchemaMismatch} < found
    assert [kind.__name__ for kind in found if not issubclass(kind, MmAssetsError)] == []


def test_each_keeps_a_standard_base() -> None:
    bases = (ValueError, TypeError, OSError)
    assert [
        kind.__name__ for kind in exceptions_of_the_package() - {MmAssetsError} if not issubclass(kind, bases)
    ] == []


ERRORS = [
    SampleError("bad_json", "a.tar: x.json: not JSON"),
    TarDamage("a.tar: byte 7: cut", 7, is_cut=True),
    FetchError("ambiguous: 2 members", "dangling_reference"),
    MaterializeError("a.tar: sample 's'", "missing_member"),
    PartitionsRefused({"a": "why", "b": "why", "c": "other"}),
    LosslessSplitError("its frames share data"),
    DecompressionBomb("10 x 10 pixels"),
    ShardError("a.tar: not interleaved data"),
    SchemaMismatch("column 'a'"),
    StoreError("s3://b/k: access denied"),
    StoreError(13, "Permission denied", "s3://b/k"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pickling_keeps_message_and_kind(error: MmAssetsError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)
    assert getattr(again, "kind", None) == getattr(error, "kind", None)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


def test_a_place_within_a_sample_is_kept() -> None:
    error = SampleError("bad_json", "a.tar: x.json: not JSON")
    error.sample_id, error.source_ref = "x", "here"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.kind, again.sample_id, again.source_ref) == ("bad_json", "x", "here")


def test_a_sample_error_has_a_class_that_is_listed() -> None:
    with pytest.raises(ValueError, match="no class of faults: 'bad json'"):
        SampleError("bad json", "a.tar")


def test_the_kind_of_damage() -> None:
    assert TarDamage("cut", is_cut=True).kind == "truncated_tar"
    assert TarDamage("corrupt").kind == "damaged_tar"
