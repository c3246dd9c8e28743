"""Each test file is in one tier, and the lists of tiers name nothing that is not there."""

import re

from mm_assets_tests.tiers import CLIENTS, ROOT, SLOW, is_fast

FILES = sorted(ROOT.rglob("test_*.py"))
# What a whole file needs that would take seconds to import, or is not installed with the rest.
NEEDS = re.compile(r"^(import|from) dagster|^pytestmark = pytest.mark.(clients|live)", re.MULTILINE)


def test_each_file_is_in_one_tier() -> None:
    listed = {
        name: [file for file in FILES if file.is_relative_to(ROOT / name)] for name in (*SLOW, *CLIENTS)
    }
    assert [name for name, files in listed.items() if not files] == []
    files = [file for found in listed.values() for file in found]
    assert len(files) == len(set(files)), "a file is listed twice"
    assert sorted(set(FILES) - set(files)) == [file for file in FILES if is_fast(file)] != []


def test_fast_files_need_no_dagster_and_no_client() -> None:
    fast = [file for file in FILES if is_fast(file)]
    assert [str(file.relative_to(ROOT)) for file in fast if NEEDS.search(file.read_text())] == []
