"""Without the library of an extra: one line that says which to install, and all else works."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mm_assets
from mm_assets.model.errors import MissingExtra, explained
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.pdf.pdf_files import pdf
from tools.demo import make_shards

ROOT = Path(__file__).resolve().parents[1]
LANCE = "Lance needs pylance: pip install 'mm-assets[lance]'"
S3 = "S3 needs s3fs: pip install 'mm-assets[s3]'"
GCS = "Google Cloud Storage needs gcsfs: pip install 'mm-assets[gcs]'"
AZURE = "Azure Blob Storage needs adlfs: pip install 'mm-assets[azure]'"
PDF = "PDF needs pypdfium2: pip install 'mm-assets[pdf]'"
SCORE = "A score of pixels needs opencv-python-headless: pip install 'mm-assets[scores]'"
CONDITION = "A condition over scores needs duckdb: pip install 'mm-assets[scores]'"
GRAPH = "The graph needs dagster: pip install 'mm-assets[dagster]'"
# None in sys.modules: the import fails as that of a library that is not installed.
_ABSENT = ("dagster", "lance", "s3fs", "gcsfs", "adlfs", "torch", "pypdfium2", "duckdb")
BASE_ONLY = f"import sys; sys.modules.update(dict.fromkeys({_ABSENT}));"
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
        (("convert", "raw", "out", "--to", "parquet", "--keep-images", "width > 3"), CONDITION),
        (("inspect", "az://bucket/raw/a.tar"), f"az://bucket/raw/a.tar: {AZURE}"),
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


def test_scores_need_theirs_before_any_shard_is_read(tmp_path: Path) -> None:
    hidden = "import importlib.util as u; find = u.find_spec; "
    hidden += "u.find_spec = lambda name, *more: None if name == 'cv2' else find(name, *more); "
    code = f"{hidden}from mm_assets.cli import main; sys.exit(main(sys.argv[1:]))"
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    arguments = ("convert", "raw", "out", "--to", "parquet", "--min-sharpness", "3")
    done = _run(f"import sys; {code}", *arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"mm-assets: {SCORE}\n")
    assert not (tmp_path / "out").exists()


def test_pdfs_need_their_extra(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf([]))
    done = _run(COMMAND, "inspect", "a.pdf", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(f": {PDF}\n")
    assert done.stderr.count("\n") == 1


def test_explain_needs_lance_only_for_a_table(tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"), assets=("filtered_parquet", "final_tars"))
    (sample_id,) = set(pq.read_table(tmp_path / "storage" / "curated")["sample_id"].to_pylist())
    done = _run(COMMAND, "explain", sample_id, "--storage", "storage", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"sample {sample_id}")

    (tmp_path / "storage" / "lance" / "items.lance" / "_versions").mkdir(parents=True)
    done = _run(COMMAND, "explain", sample_id, "--storage", "storage", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"mm-assets: {LANCE}\n")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_others_name_their_library(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra) as told:
        getattr(mm_assets.read(str(tmp_path / "raw")), f"to_{library}")()
    assert str(told.value) == f"to_{library}() needs {library}: pip install {library}"


def test_the_demo_names_the_extra_and_makes_nothing(tmp_path: Path) -> None:
    done = _run(
        f"{BASE_ONLY} from tools.demo import main; sys.exit(main())",
        folder=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"mm-assets: {GRAPH}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_code_location_names_the_extra(tmp_path: Path) -> None:
    done = _run(f"{BASE_ONLY} import mm_assets.definitions", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"mm_assets.model.errors.MissingExtra: {GRAPH}"
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


def test_every_extra_is_documented_and_brings_what_it_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name != "dev"}
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(extras)
    for line in (LANCE, S3, GCS, AZURE, PDF, SCORE, CONDITION, GRAPH):
        package, extra = re.findall(r"needs ([\w-]+): pip install 'mm-assets\[(\w+)\]'", line)[0]
        assert any(re.match(rf"{package}[=><]", need) for need in extras[extra]), line
    assert set(re.findall(r"\w+", extras["all"][0].partition("[")[2])) == set(extras) - {"all"}


def test_the_base_install_states_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    for need in project["dependencies"]:
        name, least, below = re.fullmatch(r"([\w-]+)>=([\d.]+),<([\d.]+)", need).groups()  # type: ignore[union-attr]
        assert _release(least) <= _release(locked[name]) < _release(below), need


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
