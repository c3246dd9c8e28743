"""Keys of dynamic partitions, which are kept in memory as long as nobody has changed them."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance

SHARDS = "shards"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    with ExitStack() as databases:
        if request.param == "sqlite":
            yield None
        else:
            yield databases.enter_context(request.getfixturevalue("postgres").database("partitions"))


def test_changes_of_any_instance_are_seen_at_once(tmp_path: Path, url: str | None) -> None:
    with open_instance(tmp_path, OURS, url) as ours, open_instance(tmp_path, STOCK, url) as other:
        assert ours.get_dynamic_partitions(SHARDS) == []
        expected: list[str] = []
        for number, instance in enumerate([ours, other, other, ours]):
            instance.add_dynamic_partitions(SHARDS, [f"a{number}", f"b{number}"])
            expected += [f"a{number}", f"b{number}"]
            assert ours.has_dynamic_partition(SHARDS, f"b{number}")
            assert ours.get_dynamic_partitions(SHARDS) == expected
        for instance, key in ((other, "a1"), (ours, "b1")):
            instance.delete_dynamic_partition(SHARDS, key)
            expected.remove(key)
            assert not ours.has_dynamic_partition(SHARDS, key)
            assert ours.get_dynamic_partitions(SHARDS) == expected
        # the last row goes and another comes: SQLite gives it the same id
        other.delete_dynamic_partition(SHARDS, "b3")
        other.add_dynamic_partitions(SHARDS, ["z"])
        assert ours.get_dynamic_partitions(SHARDS) == [*expected[:-1], "z"]
        assert ours.get_dynamic_partitions("others") == []


def test_what_a_caller_does_with_the_list_is_its_own_affair(tmp_path: Path) -> None:
    with open_instance(tmp_path, OURS) as instance:
        instance.add_dynamic_partitions(SHARDS, ["a", "b"])
        list(instance.get_dynamic_partitions(SHARDS)).clear()
        found = instance.get_dynamic_partitions(SHARDS)
        assert isinstance(found, list)
        found.clear()
        assert instance.get_dynamic_partitions(SHARDS) == ["a", "b"]


def test_threads_see_each_others_changes(tmp_path: Path, url: str | None) -> None:
    """Each thread may have a connection of its own."""
    with open_instance(tmp_path, OURS, url) as instance:
        seen: list[str] = []

        def work(name: str) -> None:
            for number in range(20):
                key = f"{name}{number}"
                instance.add_dynamic_partitions(SHARDS, [key])
                if key not in instance.get_dynamic_partitions(SHARDS):
                    seen.append(key)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == []
        expected = {f"{name}{number}" for name in "abcd" for number in range(20)}
        assert set(instance.get_dynamic_partitions(SHARDS)) == expected


def test_another_process_is_seen(tmp_path: Path) -> None:
    with open_instance(tmp_path, OURS) as instance:
        instance.add_dynamic_partitions(SHARDS, ["a"])
        assert instance.get_dynamic_partitions(SHARDS) == ["a"]
        program = (
            "import sys; from pathlib import Path\n"
            "from mm_assets_tests.event_log.databases import OURS, open_instance\n"
            "with open_instance(Path(sys.argv[1]), OURS) as instance:\n"
            "    instance.delete_dynamic_partition('shards', 'a')\n"
            "    instance.add_dynamic_partitions('shards', ['b'])\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
        assert instance.get_dynamic_partitions(SHARDS) == ["b"]


def test_a_wiped_log_has_no_keys(tmp_path: Path) -> None:
    with open_instance(tmp_path, OURS) as instance:
        instance.add_dynamic_partitions(SHARDS, ["a"])
        assert instance.get_dynamic_partitions(SHARDS) == ["a"]
        instance.event_log_storage.wipe()
        assert list(dg.DagsterInstance.get_dynamic_partitions(instance, SHARDS)) == []
