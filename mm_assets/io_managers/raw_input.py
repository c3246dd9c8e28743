"""What IO managers need that read raw shards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.shards import Job


class RawInput(ShardIOManager):
    """Tells workers where the raw root is, so that locators are stored relative to it.

    The root is no part of the fingerprint: the same shards in another place give the same output.
    """

    raw: dg.ResourceDependency[Any]

    def prepare_chunk(self, jobs: Sequence[Job]) -> Sequence[Job]:
        root = self.raw.root()
        return [replace(job, options={**job.options, "raw_root": root}) for job in jobs]
