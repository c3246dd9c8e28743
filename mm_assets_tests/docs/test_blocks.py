"""Every code block of the README and the documentation, as a reader would paste it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from mm_assets_tests.docs.pages import README, ROOT, RUNNABLE, Block, blocks, pages, runnable
from mm_assets_tests.docs.project import copy_project, run_block

CLIENTS = ROOT / ".venv-clients"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def visible(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def run_all(chosen: Iterable[Block], project: Path, programs: Path) -> None:
    """Run blocks in their order, each in a process of its own."""
    before = visible(ROOT)
    for block in chosen:
        printed = run_block(block, project, programs)
        if block.language == "sql" and block.page != README:
            assert "0 rows" not in printed.splitlines(), f"{block}: a query without an answer"
    assert visible(ROOT) <= before, "the blocks leave files in the checkout"


@pytest.fixture(scope="module")
def tried(demo: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The project of a page, in which its blocks have run; of both tests of the page.

    Those with clients run at their place, if the clients are installed.
    """

    @cache
    def project_of(page: Path) -> Path:
        project = copy_project(demo, tmp_path_factory.mktemp("page") / "project")
        first = {block for block in runnable(page)[:1] if page == README}  # the demo itself
        chosen = [b for b in runnable(page) if b not in first and (CLIENTS.exists() or not b.with_clients)]
        run_all(chosen, project, programs)
        return project

    return project_of


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(not block.with_clients for block in runnable(page))], ids=name
)
def test_the_blocks_of_a_page_run(page: Path, tried: Callable[[Path], Path]) -> None:
    project = tried(page)
    if not any(block.with_clients for block in runnable(page)):
        shutil.rmtree(project)  # it would lie in memory until all pages have been tried


@pytest.mark.clients
@pytest.mark.parametrize(
    "page", [page for page in pages() if any(block.with_clients for block in runnable(page))], ids=name
)
def test_the_blocks_of_a_page_run_with_the_clients(page: Path, tried: Callable[[Path], Path]) -> None:
    assert CLIENTS.exists(), "run clients/install"
    tried(page)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {*RUNNABLE, "text", "json", "toml", "yaml"}, (
            f"{block}: which language is it?"
        )


def test_what_is_not_run_has_a_test_that_stands_for_it() -> None:
    left_out = [block for page in pages() for block in blocks(page) if block.not_run is not None]
    assert [str(block) for block in left_out if not (ROOT / block.not_run).is_file()] == []  # type: ignore[operator]
    assert len(left_out) <= 10
