"""Resources of the code location, built from the settings."""

from importlib import import_module
from typing import Any

from mm_assets.accounting.outputs import OUTPUTS
from mm_assets.formats.storage import absolute, lasting
from mm_assets.formats.stores import use_stores
from mm_assets.io_managers.parquet import IngestIOManager
from mm_assets.io_managers.proof_resource import Prover
from mm_assets.io_managers.quarantine import QuarantineIOManager
from mm_assets.io_managers.raw import RawShardIOManager
from mm_assets.io_managers.raw_gate import RawGate
from mm_assets.io_managers.sample_scores import SampleScoresIOManager
from mm_assets.io_managers.scores import ScoresIOManager
from mm_assets.io_managers.workers import Workers
from mm_assets.resources.filter_thresholds import filter_thresholds
from mm_assets.resources.image_validation import ImageValidation
from mm_assets.resources.maintained_storage import MaintainedStorage
from mm_assets.resources.raw_shards import RawShards
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings


def resources_from_environment() -> dict[str, Any]:
    """Return the resources by key, from the variables of `mm_assets.settings`.

    Called when the code location loads.

    Raises:
        ValueError: for a variable with an invalid value.
    """
    settings = Settings.load()
    use_stores(given_settings().stores)
    root = _storage_root(settings.storage)
    policy = settings.on_materialize_error
    raw = RawShards(
        locations=settings.raw_shards,
        excluded=root,
        missing_keys=settings.missing_keys,
        files_per_partition=settings.shards_per_partition,
    )
    workers = Workers(
        processes=settings.workers,
        shard_timeout=settings.shard_timeout,
        engine=settings.engine,
        ray_address=settings.ray_address,
        raw_shards=settings.raw_shards,
        storage=root,
    )
    layout: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.raw_layout().items()
    }
    layout["max_member_bytes"] = settings.max_member_bytes
    gate = RawGate(
        raw=raw,
        workers=workers,
        root=root,
        schema_changes=settings.schema_changes,
        max_loss=settings.max_loss,
        **layout,
    )
    return {
        "raw": raw,
        "workers": workers,
        "bounds": filter_thresholds(
            settings.filters, settings.filter_values(), settings.filter_actions, settings.scores
        ),
        "looks": ImageValidation(
            decode_fraction=settings.decode_fraction, max_pixels=settings.max_image_pixels
        ),
        "gate": gate,
        "prover": Prover(root=root, workers=workers),
        "maintained": MaintainedStorage(root=root),
        "raw_io_manager": RawShardIOManager(raw=raw),
        "ingest_io_manager": IngestIOManager(
            raw=raw, gate=gate, workers=workers, root=root, on_materialize_error=policy
        ),
        "quarantine_io_manager": QuarantineIOManager(raw=raw, workers=workers, root=root),
        "scores_io_manager": ScoresIOManager(workers=workers, root=root),
        "sample_scores_io_manager": SampleScoresIOManager(workers=workers, root=root),
        **{
            f"{kind}_io_manager": _io_manager(kind)(workers=workers, root=root, on_materialize_error=policy)
            for kind in {output.kind for output in OUTPUTS}
        },
    }


def _io_manager(kind: str) -> Any:
    """Return the IO manager class that makes outputs of a format from Parquet."""
    return import_module(f"mm_assets.io_managers.{kind}").IO_MANAGER


def _storage_root(location: str) -> str:
    """Return a URL as it is, a folder as absolute path.

    Daemon, runs and workers need not share a working directory.
    """
    return absolute(lasting(location)).rstrip("/") or "/"
