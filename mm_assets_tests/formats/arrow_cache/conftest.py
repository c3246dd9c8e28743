"""The disk is not waited for: a hundred small caches would take minutes on a busy one."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def wait_for_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
