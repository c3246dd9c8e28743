"""What is published: the wheel, built from the sdist, in an empty environment with what it says it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import partial
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mm_assets import __version__
from mm_assets_tests.test_extras import GCS, GRAPH, LANCE, S3
from tools.demo import make_shards

ROOT = Path(__file__).resolve().parents[1]
BASE = {
    "braceexpand",
    "fsspec",
    "numpy",
    "pillow",
    "pyarrow",
    "pydantic-core",
    "pyyaml",
    "typing-extensions",
    "webdataset",
    "xxhash",
}

# As the tests of clients: they, too, need an environment of their own, filled from the package registry.
pytestmark = pytest.mark.clients


def run(*command: str | Path, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A program that must end with this exit code; it sees nothing of the environment of the tests."""
    outside = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV", "MM_", "DAGSTER_", "AWS_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def new_environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment, without pip: to install that takes longer than most."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str | Path, folder: Path) -> str:
    """The output of our pip on another environment."""
    return run(sys.executable, "-m", "pip", "--python", python, *arguments, folder=folder).stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy of the project: a build leaves its folders beside the sources."""
    root = tmp_path_factory.mktemp("sdist")
    project = root / "project"
    project.mkdir()
    made_here = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    for path in ROOT.iterdir():
        if path.name not in made_here(str(ROOT), os.listdir(ROOT)) | {"build", "demo", "out"}:
            copy = shutil.copyfile if path.is_file() else partial(shutil.copytree, ignore=made_here)
            copy(path, project / path.name)
    python = new_environment(root / "builder")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pip(python, "install", "--quiet", *requires, folder=root)
    build = "import setuptools.build_meta as backend; backend.build_sdist('../dist')"
    run(python, "-c", build, folder=project)
    pip(
        python,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "dist",
        *(root / "dist").glob("*.tar.gz"),
        folder=root,
    )
    (found,) = (root / "dist").glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    (found,) = sdist.parent.glob("*.whl")
    return found


def installed(wheel: Path, root: Path) -> Path:
    """An environment with the wheel and what it asks for, in the versions of the lock file."""
    locked = re.findall(r"^([\w.-]+==\S+) \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (root / "constraints.txt").write_text("\n".join(locked))
    found = new_environment(root / "environment")
    pip(
        found,
        "install",
        "--quiet",
        "--no-compile",  # most modules are never imported here
        "--constraint",
        "constraints.txt",
        wheel,
        folder=root,
    )
    pip(found, "check", folder=root)
    return found


def linked(wheel: Path, root: Path, extra: str) -> Path:
    """An environment with the wheel and links to what it asks for, and no more, among the packages here."""
    python = new_environment(root / "environment")
    pip(python, "install", "--quiet", "--no-deps", wheel, folder=root)
    (site,) = python.parents[1].glob("lib/*/site-packages")
    (metadata,) = site.glob("mm_assets-*.dist-info")
    todo, done = [(Distribution.at(metadata), frozenset({extra}))], set()
    while todo:
        distribution, extras = todo.pop()
        for wanted in map(Requirement, distribution.requires or ()):
            asked = any(wanted.marker is None or wanted.marker.evaluate({"extra": e}) for e in (*extras, ""))
            name, its_extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
            if not asked or (name, its_extras) in done:
                continue
            done.add((name, its_extras))
            found = Distribution.from_name(name)
            todo.append((found, its_extras))
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(str(found.locate_file(top)))
    return python


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def python_of_graph(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked(wheel, tmp_path_factory.mktemp("linked"), "dagster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With raw shards of both layouts, and an empty Lance table."""
    root = tmp_path_factory.mktemp("data")
    make_shards(root / "raw", members=2, pdf=1, samples=4)
    (root / "items.lance" / "_versions").mkdir(parents=True)
    (root / "items.lance" / "_versions" / "1.manifest").touch()
    return root


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, sdist: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "mm_assets").rglob("*.py")}
    metadata = {name for name in names if name.startswith(f"mm_assets-{__version__}.dist-info/")}
    examples = {f"mm_assets/{path.relative_to(ROOT)}" for path in _examples()}
    data = {"mm_assets/py.typed", "mm_assets/headless/dagster.yaml", *examples}
    assert names - metadata == sources | data
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert sources | {"mm_assets/py.typed", "README.md", "LICENSE", "pyproject.toml"} <= packed


def _examples() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb"))


def test_the_examples_are_in_it(python: Path, folder: Path) -> None:
    told = run(python.with_name("mm-assets"), "examples", "copied", folder=folder).stdout.splitlines()
    assert told == [f"copied/{path.name}" for path in _examples()]
    for path in _examples():
        assert (folder / "copied" / path.name).read_bytes() == path.read_bytes()


def test_editors_see_types_in_the_environment_that_make_builds(sdist: Path, tmp_path: Path) -> None:
    """They follow no hook of imports, which is how setuptools installs a project that stays where it is."""
    line = re.search(r"pip install (.*--editable) \.$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    python, project = sdist.parents[1] / "builder" / "bin" / "python", sdist.parents[1] / "project"
    pip(python, "install", "--no-build-isolation", *line[1].split(), project, folder=tmp_path)
    (tmp_path / "mine.py").write_text(
        "from mm_assets import InterleavedParquetReader\n\nInterleavedParquetReader('x').file_paths.none\n"
    )
    check = (sys.executable, "-m", "mypy", "--python-executable", python, "mine.py")
    done = run(*check, folder=tmp_path, code=1)
    assert 'mine.py:3: error: "tuple[str, ...]" has no attribute "none"' in done.stdout


def test_it_needs_no_more_than_is_said(python: Path, folder: Path) -> None:
    listed = pip(python, "list", "--format", "freeze", folder=folder).lower().split()
    names = {line.partition("==")[0].replace("_", "-") for line in listed}
    assert names == BASE | {"mm-assets"}
    done = run(python, "-c", "import dagster", folder=folder, code=1)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'dagster'"


def test_it_converts_and_verifies(python: Path, folder: Path) -> None:
    command = python.with_name("mm-assets")
    assert run(command, "--version", folder=folder).stdout == f"{__version__}\n"
    for source, target, kind in (
        ("raw", "parquet", "parquet"),
        ("parquet", "tars", "webdataset"),
        ("tars", "again", "parquet"),
        ("again", "cache", "arrow_cache"),
    ):
        done = run(command, "convert", source, target, "--to", kind, folder=folder)
        assert done.stdout.startswith(f"{target}: 3 partitions, 12 samples, ")
        assert done.stderr == ""
    done = run(command, "verify", "parquet", "tars", "again", "cache", folder=folder)
    assert done.stdout.splitlines()[-1] == "equal"
    assert (
        "tars: webdataset, 3 partitions, 12 samples" in run(command, "inspect", "tars", folder=folder).stdout
    )


def test_the_example_runs(python: Path, folder: Path) -> None:
    program = ROOT / "examples" / "without_dagster.py"
    done = run(python, program, "raw/*.tar", "library", folder=folder)
    parquet, cache, document = done.stdout.splitlines()
    assert parquet.startswith("library/parquet: 12 samples, ")
    assert cache.startswith("library/arrow_cache: 12 samples, ")
    items = document.partition(": ")[2].split(", ")
    assert {"image", "text"} == {item.partition(" ")[0] for item in items}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("convert", "raw", "out", "--to", "lance"), LANCE),
        (("verify", "items.lance", "items.lance"), LANCE),
        (("inspect", "s3://bucket/a.tar"), f"s3://bucket/a.tar: {S3}"),
        (("inspect", "gs://bucket/a.tar"), f"gs://bucket/a.tar: {GCS}"),
    ],
)
def test_what_an_extra_brings_is_named(
    arguments: tuple[str, ...], line: str, python: Path, folder: Path
) -> None:
    done = run(python.with_name("mm-assets"), *arguments, folder=folder, code=1)
    assert done.stderr == f"mm-assets: {line}\n"
    assert not (folder / "out").exists()


@pytest.mark.parametrize("command", ["run", "prove", "ui"])
def test_the_graph_names_its_extra(command: str, python: Path, folder: Path) -> None:
    done = run(python.with_name("mm-assets"), command, folder=folder, code=1)
    assert done.stderr == f"mm-assets: {GRAPH}\n"


def test_the_graph_runs_in_a_folder_with_nothing_but_a_settings_file(
    python_of_graph: Path, folder: Path, tmp_path: Path
) -> None:
    command = python_of_graph.with_name("mm-assets")
    run(command, "init", folder=tmp_path)
    file = tmp_path / "mm_assets.toml"
    text = file.read_text().replace('# raw_shards = "demo/raw"', f'raw_shards = ["{folder}/raw"]')
    file.write_text(text.replace('# storage = "demo/storage"', 'storage = "out"'))
    done = run(command, "run", folder=tmp_path)
    assert "proven: every item of 3 shards is in 5 outputs as it was written" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out" / "webdataset").glob("*.tar")) == [
        *("pdf-00000.tar", "web-00000.tar", "web-00001.tar")
    ]
    (home,) = (tmp_path / ".dagster").iterdir()
    assert (home / "dagster.yaml").read_bytes() == (ROOT / "dagster.yaml").read_bytes()
