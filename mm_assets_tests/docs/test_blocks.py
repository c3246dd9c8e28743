"""Every code block of the README and the documentation, as a reader would paste it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets_tests.docs.pages import README, ROOT, RUNNABLE, blocks, pages, runnable
from mm_assets_tests.docs.project import copy_project, run_block


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def visible(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


def run_page(page: Path, demo: Path, folder: Path, *, clients: bool) -> None:
    """Run the blocks of a page in their order, each in a process of its own, in a project of its own."""
    project = copy_project(demo, folder / "project")
    before = visible(ROOT)
    for block in runnable(page):
        if clients or not block.with_clients:
            printed = run_block(block, project)
            if block.language == "sql" and page != README:
                assert "0 rows" not in printed.splitlines(), f"{block}: a query without an answer"
    assert visible(ROOT) <= before, f"{page} leaves files in the checkout"


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(not block.with_clients for block in runnable(page))], ids=name
)
def test_the_blocks_of_a_page_run(page: Path, demo: Path, tmp_path: Path) -> None:
    run_page(page, demo, tmp_path, clients=False)


@pytest.mark.clients
@pytest.mark.parametrize(
    "page", [page for page in pages() if any(block.with_clients for block in runnable(page))], ids=name
)
def test_the_blocks_of_a_page_run_with_the_clients(page: Path, demo: Path, tmp_path: Path) -> None:
    run_page(page, demo, tmp_path, clients=True)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {*RUNNABLE, "text", "json", "toml", "yaml"}, (
            f"{block}: which language is it?"
        )


def test_what_is_not_run_has_a_test_that_stands_for_it() -> None:
    left_out = [block for page in pages() for block in blocks(page) if block.not_run is not None]
    assert [str(block) for block in left_out if not (ROOT / block.not_run).is_file()] == []  # type: ignore[operator]
    assert len(left_out) <= 9
