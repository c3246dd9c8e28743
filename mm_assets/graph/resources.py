"""Resources of the code location, built from the settings.

`resources_from_environment` returns all of them. Defined here are those that are mere settings:
`FilterThresholds` (filters and the scores they look at), `ImageValidation`, `TrainingRecipe`, and
`MaintainedStorage` (the output root that the job `maintenance` works on).
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

import dagster as dg
from dagster._config.pythonic_config import infer_schema_from_config_class, resource
from pydantic import Field, create_model

from mm_assets.accounting import OUTPUTS, statistics_folder
from mm_assets.filters import Filter, FilterSetting
from mm_assets.filters.chain import FilterChain
from mm_assets.filters.measures import MeasureSelection
from mm_assets.filters.readable import MAX_PIXELS
from mm_assets.filters.registry import chain_of, filters_of, measures_for, opened, settings_of
from mm_assets.graph.asset_io import (
    IO_MANAGERS,
    IngestIOManager,
    ParquetIOManager,
    QuarantineIOManager,
    SampleScoresIOManager,
    ScoresIOManager,
)
from mm_assets.graph.io_manager import Workers
from mm_assets.graph.proof import Prover
from mm_assets.graph.raw import RawGate, RawShardIOManager, RawShards
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.storage import use_stores
from mm_assets.storage.files import absolute, lasting
from mm_assets.training_set import Fields
from mm_assets.training_set.plan import Recipe


@lru_cache(maxsize=64)
def _schema_of(made: type[dg.Config], omitted: frozenset[str]) -> dg.Field:
    return infer_schema_from_config_class(made, fields_to_omit=set(omitted))


def _schema(made: type[dg.Config], *details: Any, **more: Any) -> dg.Field:
    if details or more.keys() != {"fields_to_omit"} or more["fields_to_omit"] is None:
        return infer_schema_from_config_class(made, *details, **more)
    return _schema_of(made, frozenset(more["fields_to_omit"]))


# Dagster copies each resource five times in a run, and infers the schema of its class for each copy.
resource.infer_schema_from_config_class = _schema  # type: ignore[attr-defined,assignment]


class MaintainedStorage(dg.ConfigurableResource[None]):
    """The output root that maintenance works on."""

    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")


class FilterThresholds(dg.ConfigurableResource[Any]):
    """The settings of the filters; unset ones keep everything.

    `filter_thresholds` creates a subclass with the fields. Changed settings are applied to stored scores: no
    image is read again.
    """

    filters: ClassVar[tuple[type[Filter[Any]], ...]] = ()

    filter_actions: list[str] = Field(
        default=[], description="What filters do with what they refuse, as sharpness=flag."
    )
    scores: list[str] = Field(
        default=[], description="Scores that are measured although no filter needs them."
    )

    root: str = Field(
        default="", description="Where the set-wide statistics are: the output root, a directory or a URL."
    )

    def active(self) -> tuple[Filter[Any], ...]:
        """Return the filters that are turned on by these settings."""
        values = {known.name: getattr(self, known.name) for known in settings_of(self.filters)}
        filters = filters_of(self.filters, values, self.filter_actions)
        return opened(filters, statistics_folder(self.root) if self.root else "")

    def chain(self) -> FilterChain | None:
        """Return the filters that are turned on as one step; None where none is."""
        return chain_of(self.active())

    def measures(self) -> MeasureSelection:
        """Return the measures that these filters look at, and those of further scores."""
        return measures_for(self.active(), self.scores)


def filter_thresholds(
    filters: tuple[type[Filter[Any]], ...],
    values: Mapping[str, Any],
    filter_actions: Sequence[str] = (),
    scores: Sequence[str] = (),
    root: str = "",
) -> FilterThresholds:
    """Return the resource with a field for each setting of the filters.

    Args:
        values: values by setting.
        filter_actions: what filters do with what they refuse, each as ``filter=action``.
        scores: further scores that are measured.
        root: the output root.
    """
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    made = _thresholds_of(filters)
    return made(filter_actions=list(filter_actions), scores=list(scores), root=root, **given)


@cache
def _thresholds_of(filters: tuple[type[Filter[Any]], ...]) -> type[FilterThresholds]:
    fields: dict[str, Any] = {known.name: _field(known) for known in settings_of(filters)}
    made = create_model(
        "FilterThresholds", __base__=FilterThresholds, __doc__=FilterThresholds.__doc__, **fields
    )
    made.filters = filters
    return made


def _field(known: FilterSetting) -> tuple[Any, Any]:
    if known.kind not in (float, int):
        return (list[str] if known.kind is tuple else str) | None, Field(None, description=known.meaning)
    least: dict[str, Any] = {"gt": 0} if known.is_upper_bound else {"ge": 0}
    return known.kind | None, Field(None, description=known.meaning, **least)


class ImageValidation(dg.ConfigurableResource[Any]):
    """Settings of the image validation.

    Header and end of every image are checked. A sample, chosen by sample id and position, is decoded in full.
    """

    decode_fraction: float = Field(
        default=0.01, ge=0, le=1, description="Share of the images that is decoded: 0 none, 1 all."
    )
    max_pixels: int = Field(
        default=MAX_PIXELS, gt=0, description="An image of more pixels counts as a decompression bomb."
    )


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
            settings.filters, settings.filter_values(), settings.filter_actions, settings.scores, root
        ),
        "looks": ImageValidation(
            decode_fraction=settings.decode_fraction, max_pixels=settings.max_image_pixels
        ),
        "gate": gate,
        "prover": Prover(root=root, workers=workers),
        "maintained": MaintainedStorage(root=root),
        "training": training_recipe(settings, root),
        "raw_io_manager": RawShardIOManager(raw=raw),
        "ingest_io_manager": IngestIOManager(
            raw=raw,
            gate=gate,
            workers=workers,
            root=root,
            on_materialize_error=policy,
            hash_lists=list(settings.hash_lists),
        ),
        "quarantine_io_manager": QuarantineIOManager(
            raw=raw, workers=workers, root=root, hash_lists=list(settings.hash_lists)
        ),
        "scores_io_manager": ScoresIOManager(workers=workers, root=root),
        "sample_scores_io_manager": SampleScoresIOManager(workers=workers, root=root),
        **{
            f"{kind}_io_manager": IO_MANAGERS[kind](workers=workers, root=root, on_materialize_error=policy)
            for kind in {output.kind for output in OUTPUTS}
        },
        "parquet_io_manager": ParquetIOManager(
            workers=workers, root=root, on_materialize_error=policy, images=settings.filtered
        ),
    }


class TrainingRecipe(dg.ConfigurableResource[Any]):
    """The settings of the training set, and the storage root that it is made in."""

    root: str = Field(description="Where outputs are stored: a directory or a URL.")
    splits: dict[str, float] = Field(default={"train": 1.0}, description="Share of each split.")
    split_by: str | None = Field(default=None, description="Column of samples that stay in one split.")
    shard_bytes: int = Field(default=512 << 20, gt=0, description="Most bytes of a tar.")
    seed: int = Field(default=0, ge=0, description="Of the order.")
    weight_by: str | None = Field(default=None, description="Column or score that weights samples.")
    tokens: str | None = Field(default=None, description="Column or score with the number of tokens.")

    def recipe(self) -> Recipe:
        """Return what the set is to be."""
        fields = Fields(self.split_by, self.weight_by, self.tokens)
        return Recipe(self.splits, self.seed, self.shard_bytes, fields=fields)


def training_recipe(settings: Settings, root: str) -> TrainingRecipe:
    """Return the resource of these settings."""
    return TrainingRecipe(
        root=root,
        splits=dict(settings.training_split),
        split_by=settings.training_split_by,
        shard_bytes=settings.training_shard_size,
        seed=settings.training_seed,
        weight_by=settings.training_weight_by,
        tokens=settings.training_tokens,
    )


def _storage_root(location: str) -> str:
    """Return a URL as it is, a folder as absolute path.

    Daemon, runs and workers need not share a working directory.
    """
    return absolute(lasting(location)).rstrip("/") or "/"
