"""A pool of steps on Postgres keeps to its limit, whoever comes at the same moment."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mm_assets_tests.event_log.databases import OURS, open_instance
from mm_assets_tests.postgres_server import PostgresServer

RUNS = 6


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been slept."""
    pauses: list[float] = []
    monkeypatch.setattr("mm_assets.event_log.postgres.time", SimpleNamespace(sleep=pauses.append))
    return pauses


def test_of_many_that_claim_at_once_one_gets_the_slot(
    tmp_path: Path, postgres: PostgresServer, pauses: list[float]
) -> None:
    """The stock class let in up to five of six, in two rounds of three."""
    with postgres.database("pools") as url, open_instance(tmp_path, OURS, url) as instance:
        log = instance.event_log_storage
        log.set_concurrency_slots("pool", 1)
        for attempt in range(10):
            runs = [f"{attempt}-{number}" for number in range(RUNS)]
            start = threading.Barrier(RUNS)
            claimed: list[str] = []

            def claim(run_id: str, start: threading.Barrier = start, claimed: list[str] = claimed) -> None:
                start.wait()
                if log.claim_concurrency_slot("pool", run_id, "step").is_claimed:
                    claimed.append(run_id)

            threads = [threading.Thread(target=claim, args=(run_id,)) for run_id in runs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(claimed) == 1
            for run_id in runs:
                log.free_concurrency_slots_for_run(run_id)


def test_who_waits_for_a_slot_gets_it_when_it_is_free_and_does_not_spin(
    tmp_path: Path, postgres: PostgresServer, pauses: list[float]
) -> None:
    with postgres.database("pools") as url, open_instance(tmp_path, OURS, url) as instance:
        log = instance.event_log_storage
        log.set_concurrency_slots("pool", 1)
        assert log.claim_concurrency_slot("pool", "first", "step").is_claimed
        waiting = log.claim_concurrency_slot("pool", "second", "step")
        assert not waiting.is_claimed and waiting.sleep_interval == 0
        assert pauses == [1.0]
        log.free_concurrency_slots_for_run("first")
        assert log.claim_concurrency_slot("pool", "second", "step").is_claimed
