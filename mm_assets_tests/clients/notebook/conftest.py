"""What the three-format notebook opens: parquet/, webdataset/, lance/ of one shard, by hand and by our
command.
"""

from pathlib import Path

import pytest

from mm_assets_tests.clients.environment import convert_to_all
from mm_assets_tests.clients.notebook.ten_samples import PER_IMAGE, PER_TEXT, make_ten_samples
from mm_assets_tests.clients.reference import write_reference


@pytest.fixture(scope="package", params=["by_hand", "ours"])
def three_formats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(f"three_formats_{request.param}")
    raw = make_ten_samples(root / "raw")
    (write_reference if request.param == "by_hand" else convert_to_all)(raw, root, PER_IMAGE, PER_TEXT)
    return root
