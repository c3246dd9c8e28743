"""Without the library of an extra: one line that says which to install, and all else works."""

import subprocess
import sys
from pathlib import Path

import pytest

from mm_assets.demo.shards import make_shards
from mm_assets.extras import MissingExtra, explained

LANCE = "Lance needs pylance: pip install 'mm-assets[lance]'"
S3 = "S3 needs s3fs: pip install 'mm-assets[s3]'"
GCS = "Google Cloud Storage needs gcsfs: pip install 'mm-assets[gcs]'"
GRAPH = "The graph needs dagster: pip install 'mm-assets[dagster]'"
# None in sys.modules: the import fails as that of a library that is not installed.
BASE_ONLY = "import sys; sys.modules.update(dict.fromkeys(('dagster', 'lance', 's3fs', 'gcsfs', 'torch')));"
COMMAND = f"{BASE_ONLY} from mm_assets.cli import main; sys.exit(main(sys.argv[1:]))"


def _run(code: str, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("convert", "raw", "out", "--to", "lance"), LANCE),
        (("convert", "items.lance", "out", "--to", "parquet"), LANCE),
        (("inspect", "items.lance"), LANCE),
        (("verify", "items.lance", "items.lance"), LANCE),
        (("inspect", "s3://bucket/raw/a.tar"), f"s3://bucket/raw/a.tar: {S3}"),
        (("convert", "raw", "s3://bucket/out", "--to", "parquet"), f"s3://bucket/out: {S3}"),
        (("inspect", "gs://bucket/raw/a.tar"), f"gs://bucket/raw/a.tar: {GCS}"),
    ],
)
def test_commands_name_the_extra(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    (tmp_path / "items.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "items.lance" / "_versions" / "1.manifest").touch()
    before = sorted(tmp_path.rglob("*"))
    done = _run(COMMAND, *arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"mm-assets: {line}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_demo_names_the_extra_and_makes_nothing(tmp_path: Path) -> None:
    done = _run(
        f"{BASE_ONLY} from mm_assets.demo.__main__ import main; sys.exit(main())",
        folder=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"mm-assets: {GRAPH}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_code_location_names_the_extra(tmp_path: Path) -> None:
    done = _run(f"{BASE_ONLY} import mm_assets.definitions", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"mm_assets.extras.MissingExtra: {GRAPH}"
    assert "ModuleNotFoundError" not in done.stderr


def test_every_public_name_but_those_of_lance(tmp_path: Path) -> None:
    code = f"""{BASE_ONLY}
import mm_assets
for name in mm_assets.__all__:
    try:
        getattr(mm_assets, name)
    except mm_assets.MissingExtra as error:
        print(name, error.name, error)
"""
    lines = _run(code, folder=tmp_path).stdout.splitlines()
    assert lines == [f"{name} lance {LANCE}" for name in ("InterleavedLanceReader", "InterleavedLanceWriter")]


def test_an_error_of_another_kind_stays_what_it_is() -> None:
    other = ModuleNotFoundError("No module named 'spam'", name="spam")
    assert explained(other) is other
    named_alike = ImportError("cannot import name 'dataset' from 'lance'", name="lance")
    assert (
        explained(named_alike) is named_alike
    )  # it is there, but broken: to install it would change nothing
    told = MissingExtra("s3://bucket: S3 needs s3fs")
    told.__cause__ = ModuleNotFoundError(name="s3fs")
    assert explained(told) is told
