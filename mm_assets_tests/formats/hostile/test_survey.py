"""The survey of a hostile shard, which reads no image, tells the same as its ingest."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.formats.webdataset.samples import survey_tar
from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets.model.errors import DANGLING_REFERENCE, MISSING_MEMBER, OVERSIZED_MEMBER, fault_of
from mm_assets_tests.formats.hostile.cases import CASES
from mm_assets_tests.formats.hostile.judge import Judge
from mm_assets_tests.formats.hostile.outcomes import Case, Lost, Rejected, Sample

ELSEWHERE = "id-of-another-shard"  # ids of other shards are no part of a survey
TOLD_BY_HEADERS = {MISSING_MEMBER, DANGLING_REFERENCE, OVERSIZED_MEMBER}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if case.name != ELSEWHERE]
)
def test_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    shard = tmp_path / case.file_name
    shard.write_bytes(case.shard(case.entries))
    for name, value in case.settings.items():
        monkeypatch.setattr(name, value)
    reader = InterleavedWebdatasetReader(str(shard), **case.options)
    found = survey_tar(str(shard), reader.layout, shard.name, max_member_bytes=reader.max_member_bytes)

    samples = [outcome for outcome in case.all_outcomes if isinstance(outcome, Sample)]
    judge = Judge(case, shard)
    judge.losses(found.losses, [])
    assert [(s.sample_id, s.items, s.images) for s in found.samples] == [
        (s.sample_id, len(s.places), len(s.images)) for s in samples
    ]
    for facts in found.samples:
        assert (
            judge.plain[facts.byte_offset : facts.byte_offset + facts.byte_size] in judge.put_in[facts.member]
        )
    lost = sum(
        len(outcome.places) if isinstance(outcome, Rejected) else isinstance(outcome, Lost)
        for outcome in case.outcomes
    )
    assert sum(loss.is_item for loss in found.losses) == lost

    # Locators that a json states itself are followed when the rows are written, not before.
    expected = {(s.sample_id, at): words for s in samples if s.refs is None for at, words in s.faults.items()}
    unresolved = {(sample_id, at): message for sample_id, at, message in found.unresolved}
    assert all(unresolved[place].startswith(expected[place]) for place in unresolved)
    assert {
        place for place, words in expected.items() if fault_of(words) in TOLD_BY_HEADERS
    } <= unresolved.keys()
    assert list(found.unreferenced) == case.notes.get("unreferenced_members", [])
    assert list(found.skipped) == case.notes.get("skipped_members", [])
