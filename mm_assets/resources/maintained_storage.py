"""Output root that the job `maintenance` works on, as a Dagster resource."""

import dagster as dg
from pydantic import Field


class MaintainedStorage(dg.ConfigurableResource[None]):
    """The output root that maintenance works on."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
