"""Base of IO managers that read raw shards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.shards import ShardJob


class RawInput(ShardIOManager):
    """Passes the raw roots to workers, so that locators of local shards are stored relative to them.

    The roots are no part of the fingerprint: the same shards in another place give the same output.
    """

    raw: dg.ResourceDependency[Any]

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        roots = self.raw.roots()
        return [replace(job, options={**job.options, "raw_roots": roots}) for job in jobs]
