"""Assets of the graph: raw shards, curation, outputs for training and search, the report.

* The bodies: `raw_shards` is observed; `curated_parquet` to `filtered_parquet` are the curation;
  `final_tars`, `lance_table` and `arrow_cache` are made from filtered Parquet for training and search;
  `report` shows in figures and pictures what is in the data set.
* `sharded`: the decorator of an asset with one partition per shard, whose body returns a `Plan` for its IO
  manager. `with_settings` puts a digest of its settings into its code version, `landed_checks` makes its
  check `landed`.
* `with_plugins`: the checks of an asset, built-in ones and those of plugins.
* What the UI shows of an asset: its columns with their meaning and the columns that they are made from
  (`row_columns`, `score_columns`); its owners, and where its output and its ledger are (`described`).
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import dagster as dg
import pyarrow as pa

from mm_assets.accounting import BY_ASSET, DERIVED_FOLDERS, OUTPUTS
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters.chain import SAMPLE_SCORES, SCORES
from mm_assets.filters.duplicates import ASSET as VERDICTS_ASSET
from mm_assets.filters.measure import ImageMeasure, SampleMeasure, column_of, with_columns
from mm_assets.filters.measures import IMAGE_MEASURES as IMAGE_MEASURES
from mm_assets.filters.measures import SAMPLE_MEASURES as SAMPLE_MEASURES
from mm_assets.filters.readable import ReadableImages
from mm_assets.filters.scores import SAMPLE_SCORES_SCHEMA, SCORES_SCHEMA
from mm_assets.graph import (
    INGEST_CHECKS,
    QUARANTINE_CHECKS,
    ROW_CHECKS,
    SCORE_CHECKS,
    Plan,
    ShardCheck,
    ShardSet,
    dagster_internals,
)
from mm_assets.graph.dagster_internals import (
    CHUNK_SHARDS,
    LANCE_POOL,
    LIMIT_TAG,
    SETTINGS,
    SHARDS,
    UNREAD,
)
from mm_assets.graph.io_manager import FAILED_HERE, LANDED, LENIENT, SHARDED_TAG, STRICT, ShardIOManager
from mm_assets.graph.planned_jobs import metadata_values, version_with_settings
from mm_assets.graph.proof import ZERO_LOSS
from mm_assets.graph.raw import RAW_SHARDS, RawShards, observe_changes
from mm_assets.graph.resources import FilterThresholds, ImageValidation
from mm_assets.graph.shard_jobs import RAW
from mm_assets.model.errors import counted
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets.settings_file import load_plugins, plugin_fault
from mm_assets.storage.files import join

_MEANINGS = {
    "sample_id": "id of the document; unique over all shards",
    "position": "place of the item in its document, from 0; -1: the document's metadata",
    "modality": "metadata, text or image",
    "content_type": "media type of the item, such as image/jpeg",
    "text_content": "the text, of a text item",
    "binary_content": "the bytes of the image file, of an image item",
    "source_ref": "where the item was first read: file, member, offset and size, as JSON",
    "materialize_error": "why the item could not be had, where it could not",
}
_SCORE_MEANINGS = {
    "sample_id": _MEANINGS["sample_id"],
    "position": _MEANINGS["position"],
    "width": "pixels, as displayed",
    "height": "pixels, as displayed",
    "format": "jpg, png, webp, gif, tiff or bmp, from the bytes",
    "orientation": "EXIF orientation, 1 to 8",
    "byte_size": "bytes of the image file",
    "error": "why it could not be measured, where it could not",
}
_SAMPLE_SCORE_MEANINGS = {
    "sample_id": _MEANINGS["sample_id"],
    "images": "images without an error, as curated",
    "texts": "texts",
    "words": "words of all texts, separated by white space",
    "text_digest": "of all texts: equal for samples with equal texts",
}
# Columns of curated rows that a score is made from, where they are not the one of the same name.
_MEASURED_FROM = {
    "error": ("binary_content", "materialize_error"),
    "images": ("modality", "materialize_error"),
    "texts": ("text_content",),
    "words": ("text_content",),
    "text_digest": ("text_content",),
}


def row_columns(source: str | None = None) -> dict[str, Any]:
    """Return the metadata of an asset of interleaved rows: schema, and lineage where rows are its source.

    Args:
        source: the asset whose rows it takes over.
    """
    lineage = {name: (name,) for name in INTERLEAVED_SCHEMA.names}
    return _columns(INTERLEAVED_SCHEMA, _MEANINGS, lineage, source)


def score_columns(source: str) -> dict[str, Any]:
    """Return the metadata of image scores, which are made from the rows of an asset."""
    return _score_columns(SCORES_SCHEMA, _SCORE_MEANINGS, IMAGE_MEASURES, "binary_content", source)


def sample_score_columns(source: str) -> dict[str, Any]:
    """Return the metadata of sample scores, which are made from the rows of an asset."""
    return _score_columns(
        SAMPLE_SCORES_SCHEMA, _SAMPLE_SCORE_MEANINGS, SAMPLE_MEASURES, "text_content", source
    )


def _score_columns(
    base: pa.Schema,
    meanings: Mapping[str, str],
    measures: Sequence[ImageMeasure] | Sequence[SampleMeasure],
    measured: str,
    source: str,
) -> dict[str, Any]:
    """Return the metadata of scores; the columns of measures are there where something asks for them."""
    schema = with_columns(base, map(column_of, measures))
    told = dict(meanings) | {m.name: f"{m.meaning} (if a filter or `scores` asks for it)" for m in measures}
    lineage = {
        name: _MEASURED_FROM.get(name, (name,) if name in _MEANINGS else (measured,)) for name in schema.names
    }
    return _columns(schema, told, lineage, source)


def _columns(
    schema: pa.Schema, meanings: Mapping[str, str], lineage: Mapping[str, tuple[str, ...]], source: str | None
) -> dict[str, Any]:
    columns = [dg.TableColumn(field.name, str(field.type), meanings[field.name]) for field in schema]
    metadata: dict[str, Any] = {"dagster/column_schema": dg.TableSchema(columns)}
    if source is not None:
        key = dg.AssetKey(source)
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {name: [dg.TableColumnDep(key, column) for column in made] for name, made in lineage.items()}
        )
    return metadata


Body = Callable[..., Plan]

# Body and checks of each sharded asset, by key.
_BODIES: dict[dg.AssetKey, tuple[Body, tuple[ShardCheck, ...]]] = {}


def sharded(
    *,
    code_version: str,
    checks: Sequence[ShardCheck] = (),
    on_failed_shards: Literal["fail", "skip"] = "fail",
    io_manager_key: str = "io_manager",
    chunk_shards: int = CHUNK_SHARDS,
    partitions_def: dg.PartitionsDefinition = SHARDS,
    tags: Mapping[str, str] | None = None,
    **asset_kwargs: Any,
) -> Callable[[Body], dg.AssetsDefinition]:
    """Decorate a function that returns a `Plan`.

    The function's parameters are upstream assets (`ShardSet`s), `context`, or resources. Put
    `landed_checks(assets)` beside the assets in the `Definitions`.

    Args:
        code_version: change it when the code would make other bytes, and every shard becomes stale.
        checks: checks that workers run on every shard before they publish it.
        on_failed_shards: when shards of a run fail, "fail" fails the run after all good shards have landed in
            every asset; "skip" lets it succeed with a warning.
        chunk_shards: largest number of shards in one run of a backfill.
        asset_kwargs: further arguments of `dagster.asset`.
    """

    def decorate(body: Body) -> dg.AssetsDefinition:
        name = asset_kwargs.get("name") or body.__name__
        key = asset_kwargs.get("key") or dg.AssetKey([*_prefix(asset_kwargs.get("key_prefix")), name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks: reviewed, pinned, tested
            warnings.simplefilter("ignore", dg.BetaWarning)  # BackfillPolicy
            _BODIES[key] = (body, tuple(checks))
            return dg.asset(
                code_version=code_version,
                partitions_def=partitions_def,
                backfill_policy=dg.BackfillPolicy.multi_run(chunk_shards),
                io_manager_key=io_manager_key,
                tags={**(tags or {}), SHARDED_TAG: STRICT if on_failed_shards == "fail" else LENIENT},
                check_specs=[
                    dg.AssetCheckSpec(
                        c.name,
                        asset=key,
                        description=c.description,
                        blocking=c.blocking,
                        partitions_def=partitions_def,
                    )
                    for c in checks
                ],
                **asset_kwargs,
            )(_outputs_of(body, tuple(checks)))

    return decorate


def plan_of(
    asset: dg.AssetKey, resources: Mapping[str, Any], inputs: Mapping[str, ShardSet] | None = None
) -> Plan:
    """Return the plan that the body of a sharded asset returns, outside of a run.

    Args:
        resources: those of the code location, by key.
        inputs: the shards of upstream assets, by asset; of others there are none.
    """
    body, checks = _BODIES[asset]
    given = {**(inputs or {}), **resources}
    names = inspect.signature(body).parameters
    return replace(body(**{name: given.get(name, ShardSet(name)) for name in names}), checks=checks)


def with_settings(asset: dg.AssetsDefinition, resources: Mapping[str, Any]) -> dg.AssetsDefinition:
    """Return a sharded asset whose code version names its settings, too.

    So the UI shows partitions as outdated when a setting has changed that their bytes depend on.

    Args:
        resources: those of the code location, by key.
    """
    manager: ShardIOManager = resources[asset.get_io_manager_key_for_asset_key(asset.key)]
    base = asset.code_versions_by_key[asset.key] or ""
    plan = plan_of(asset.key, resources)
    made_by = manager.made_by(asset.key.to_user_string(), base, plan)
    unread = {UNREAD: sorted(shards.asset for shards in plan.unread)} if plan.unread else {}
    settings = manager.settings(asset.key.to_user_string(), base, plan)
    limits = {LIMIT_TAG: manager.limit()} if manager.limit() else {}
    return asset.map_asset_specs(
        lambda spec: spec.replace_attributes(
            code_version=version_with_settings(base, made_by),
            tags={**spec.tags, **limits},
            metadata={**spec.metadata, **unread, SETTINGS: settings},
        )
    )


def landed_checks(assets: Iterable[Any]) -> list[dg.AssetChecksDefinition]:
    """Return the check `landed` of each sharded asset among `assets`; other objects are ignored.

    It runs as a step of its own after the asset's, and names every shard of the asset that has not landed,
    whichever run it failed in. When shards of its own run did not land, also those that another run has
    planned since, it fails that run; the good shards still reach the next assets. Launched alone it fails for
    any shard of the asset.
    """
    return [
        _landed_check(key, policy)
        for asset in assets
        if isinstance(asset, dg.AssetsDefinition)
        for key, spec in asset.specs_by_key.items()
        if (policy := spec.tags.get(SHARDED_TAG)) is not None
    ]


def _outputs_of(body: Body, checks: tuple[ShardCheck, ...]) -> Callable[..., Iterator[dg.Output[Any]]]:
    """Return the body as Dagster expects it: a generator of an output per check, then the marked plan."""

    @functools.wraps(body)
    def outputs(*args: Any, **kwargs: Any) -> Iterator[dg.Output[Any]]:
        plan = body(*args, **kwargs)
        if not isinstance(plan, Plan):
            raise TypeError(f"{body.__name__} must return a Plan, not {type(plan).__name__}")
        run = dg.AssetExecutionContext.get()
        # An empty output in the place of each check: else Dagster demands one evaluation for the whole range.
        for spec in run.assets_def.check_specs:
            if spec.key in run.selected_asset_check_keys:
                yield dg.Output(None, output_name=spec.get_python_identifier())
        yield dg.Output(replace(plan, checks=checks), metadata={dagster_internals.MARK: True})

    # The generator's own type, not that of the body: Dagster would take `-> Plan` for the type of its
    # outputs.
    outputs.__signature__ = inspect.signature(body).replace(return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]
    outputs.__annotations__ = {name: kind for name, kind in body.__annotations__.items() if name != "return"}
    return outputs


_NAMED, _LISTED = 20, 100  # shards that have not landed, in words and in all: each run lists them again


def _landed_check(asset: dg.AssetKey, policy: str) -> dg.AssetChecksDefinition:
    # A generator, so that the result is stored before the failure is raised; Dagster takes one, its
    # annotation does not say so.
    @dg.asset_check(asset=asset, name=LANDED, description="Every shard that was tried has been published.")  # type: ignore[arg-type]
    def landed(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        partitions_def = context.job_def.asset_layer.get(asset).partitions_def
        assert partitions_def is not None, "a sharded asset has partitions"
        runs = dagster_internals.family(context.instance, context.run)
        run_ids = [run.run_id for run in runs]
        of_run = {
            key
            for run in runs
            for key in dagster_internals.keys_of_run(run, partitions_def, context.instance)
        }
        every = set(partitions_def.get_partition_keys(dynamic_partitions_store=context.instance))
        missing = every.intersection(dagster_internals.not_landed(context.instance, asset, ended=run_ids))
        if of_run:
            bad = sorted(dagster_internals.attempts_without_result(context.instance, asset, of_run, run_ids))
        else:  # launched on its own: all shards of the asset
            of_run, bad = every, sorted(missing)
        listed = sorted(missing.union(bad))
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        metadata = metadata_values(
            {
                "summary": ", ".join(listed[:_NAMED]) + more,
                "shards": {"json": listed[:_LISTED]},
                "failed": len(listed),
                "of": len(every | of_run),
                FAILED_HERE: {"json": bad},
            }
        )
        severity = dg.AssetCheckSeverity.ERROR if policy == STRICT else dg.AssetCheckSeverity.WARN
        yield dg.AssetCheckResult(passed=not listed, severity=severity, metadata=metadata)
        if bad:
            text = (
                f"{len(bad)} of {counted(len(of_run), 'shard')} of {asset.to_user_string()} did not land: "
                f"{', '.join(bad)}"
            )
            if policy == STRICT:
                # Their errors are in the log of the asset's step. A retry of this step alone changes nothing.
                raise dg.Failure(text, metadata=metadata, allow_retries=False)
            context.log.warning(text)

    return landed


def _prefix(key_prefix: str | Sequence[str] | None) -> list[str]:
    return [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())


ASSETS = tuple(output.asset for output in OUTPUTS)


def with_plugins(asset: str, builtin: tuple[ShardCheck, ...]) -> tuple[ShardCheck, ...]:
    """Return the asset's built-in checks, then those under its name in ``CHECKS`` of each plugin.

    Raises:
        PluginError: in one line that names the module, for an invalid check.
    """
    checks = list(builtin)
    for module in load_plugins():
        plugin_checks = getattr(module, "CHECKS", {})
        if not isinstance(plugin_checks, Mapping):
            raise plugin_fault(module, "CHECKS must be a dict of checks by asset")
        if unknown := [name for name in plugin_checks if name not in ASSETS]:
            raise plugin_fault(module, f"{unknown[0]!r} in CHECKS is none of {', '.join(ASSETS)}")
        if not isinstance(plugin_checks.get(asset, ()), list | tuple):
            raise plugin_fault(module, f"CHECKS[{asset!r}] must be a list of checks")
        used_names = {LANDED, ZERO_LOSS, *(check.name for check in checks)}
        for check in plugin_checks.get(asset, ()):
            if not isinstance(check, ShardCheck):
                raise plugin_fault(module, f"{check!r} in CHECKS is no ShardCheck")
            if check.name in used_names:
                raise plugin_fault(module, f"{asset} has a check {check.name!r} already")
            used_names.add(check.name)
            checks.append(check)
    return tuple(checks)


def _observe(context: dg.OpExecutionContext, raw: RawShards) -> dg.DataVersionsByPartition:
    return observe_changes(context, RAW_SHARDS, raw.listing())


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)  # reviewed, pinned, tested
    raw_shards = dg.observable_source_asset(
        name="raw_shards",
        partitions_def=SHARDS,
        io_manager_key="raw_io_manager",
        group_name="ingest",
        tags={"dagster/kind/webdataset": "", "dagster/kind/parquet": ""},  # it takes no `kinds`
        description=(
            "WebDataset or Parquet shards of interleaved documents. Observing them notes new and changed "
            "ones; data versions are etags, or size, time and a digest of both ends."
        ),
    )(_observe)


@sharded(
    code_version="3",
    checks=with_plugins("curated_parquet", INGEST_CHECKS),
    io_manager_key="ingest_io_manager",
    group_name="ingest",
    kinds={"parquet"},
    metadata=row_columns(),
    description="Every item of the raw shards as one Parquet row: text, metadata, image bytes.",
)
def curated_parquet(raw_shards: ShardSet, looks: ImageValidation, bounds: FilterThresholds) -> Plan:
    chain = bounds.chain()
    steps = (ReadableImages(looks.decode_fraction, looks.max_pixels),)
    return Plan(raw_shards, steps, foreseen=() if chain is None else (chain,))


@sharded(
    code_version="1",
    checks=QUARANTINE_CHECKS,
    io_manager_key="quarantine_io_manager",
    group_name="quality",
    kinds={"parquet"},
    description=(
        "What could not be read, with its class, its place and its raw bytes. "
        "Mend the raw shard, and its records close."
    ),
)
def quarantine(curated_parquet: ShardSet, raw_shards: ShardSet) -> Plan:
    return Plan(curated_parquet, side_inputs={RAW: raw_shards})


@sharded(
    code_version="2",
    checks=SCORE_CHECKS,
    io_manager_key="scores_io_manager",
    group_name="quality",
    kinds={"parquet"},
    metadata=score_columns("curated_parquet"),
    description=(
        "Width, height, format and byte size of every image, from its header; "
        "and what filters or the setting `scores` ask for, such as sharpness."
    ),
)
def image_scores(curated_parquet: ShardSet, bounds: FilterThresholds) -> Plan:
    return Plan(curated_parquet, bounds.measures().images)


@sharded(
    code_version="1",
    io_manager_key="sample_scores_io_manager",
    group_name="quality",
    kinds={"parquet"},
    metadata=sample_score_columns("curated_parquet"),
    description=(
        "Images, texts and words of every sample; and what filters or the setting `scores` ask for, "
        "such as the language."
    ),
)
def sample_scores(curated_parquet: ShardSet, bounds: FilterThresholds) -> Plan:
    return Plan(curated_parquet, bounds.measures().samples)


@sharded(
    code_version="2",
    checks=with_plugins("filtered_parquet", ROW_CHECKS),
    io_manager_key="parquet_io_manager",
    group_name="curate",
    kinds={"parquet"},
    metadata=row_columns("curated_parquet"),
    description=(
        "Curated rows without the images and samples that the filters drop (none, where no bound is set); "
        "positions keep their gaps."
    ),
)
def filtered_parquet(
    curated_parquet: ShardSet, image_scores: ShardSet, sample_scores: ShardSet, bounds: FilterThresholds
) -> Plan:
    chain = bounds.chain()
    if chain is None or not chain.samples:
        steps = () if chain is None else (chain,)
        return Plan(curated_parquet, steps, side_inputs={SCORES: image_scores}, unread=(sample_scores,))
    scores = {SCORES: image_scores, SAMPLE_SCORES: sample_scores}
    return Plan(curated_parquet, (chain,), side_inputs=scores)


@sharded(
    code_version="2",
    checks=with_plugins("final_tars", ROW_CHECKS),
    io_manager_key="webdataset_io_manager",
    group_name="deliver",
    kinds={"webdataset"},
    metadata=row_columns("filtered_parquet"),
    description=(
        "WebDataset tars that open in webdataset, wids, Energon, Hugging Face datasets and NeMo Curator."
    ),
)
def final_tars(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)


@sharded(
    code_version="2",
    checks=with_plugins("lance_table", ROW_CHECKS),
    io_manager_key="lance_io_manager",
    pool=LANCE_POOL,
    group_name="deliver",
    kinds={"lance"},
    metadata=row_columns("filtered_parquet"),
    description="One Lance table of all shards, indexed by sample id and modality.",
)
def lance_table(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)


@sharded(
    code_version="1",
    checks=with_plugins("arrow_cache", ROW_CHECKS),
    io_manager_key="arrow_cache_io_manager",
    group_name="deliver",
    kinds={"arrow"},
    metadata=row_columns("filtered_parquet"),
    description="Memory-mapped Arrow files of whole samples: any of them at once, for training.",
)
def arrow_cache(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)


REPORT = dg.AssetKey("report")

# Not materializable: a backfill of all assets would then have a step without partitions, and one bad shard
# keeps that from running. The sensor of the same name writes it.
report = dg.AssetSpec(
    REPORT,
    deps=[filtered_parquet],
    group_name="deliver",
    kinds={"dashboard"},
    description=(
        "What is in the data set: figures and plots below, more thumbnails of kept and dropped images on the "
        "[Events page](/assets/report?view=events), all of it in `report/index.html` of the storage. "
        "The sensor `report` renews it after each backfill, and `mm-assets report` at any time."
    ),
)

FILTERED_PARQUET = filtered_parquet.key
DUPLICATES = dg.AssetKey(VERDICTS_ASSET)

# Not materializable, as the report: `mm-assets run` and the job of the same name write it.
duplicates = dg.AssetSpec(
    DUPLICATES,
    deps=[image_scores, sample_scores],
    group_name="quality",
    kinds={"parquet"},
    description=(
        "Which images and documents are copies, and of what: verdicts on each shard, which filters read. "
        "The job `duplicates` finds them anew."
    ),
)


# Chapters of the documentation, which has no address of its own.
_DOCUMENTATION = {
    "quarantine": "docs/accounting.md, docs/data_model.md",
    "final_tars": "docs/tar_layout.md, docs/training.md",
    "arrow_cache": "docs/arrow_cache.md, docs/training.md",
}


def described(asset: dg.AssetsDefinition, root: str, owners: Sequence[str]) -> dg.AssetsDefinition:
    """Return an asset with its owners and links.

    Args:
        root: storage root.
        owners: e-mail addresses and ``team:name``.
    """
    return asset.map_asset_specs(
        lambda spec: spec.merge_attributes(owners=owners, metadata=_links(spec.key.to_user_string(), root))
    )


def _links(asset: str, root: str) -> Mapping[str, Any]:
    accounts = Ledger(root).folder(asset)
    return {
        "output": dg.MetadataValue.path(_output(asset, root)),
        "ledger": _query("outcome, kind, sum(items)", accounts) + " GROUP BY ALL",
        "lost_items": _query("*", accounts) + " WHERE kind IS NOT NULL",
        "report": dg.MetadataValue.asset(REPORT),
        "documentation": _DOCUMENTATION.get(asset, "docs/data_model.md, docs/accounting.md"),
    }


def _output(asset: str, root: str) -> str:
    return join(root, BY_ASSET[asset].folder if asset in BY_ASSET else DERIVED_FOLDERS[asset])


def _query(columns: str, folder: str) -> str:
    """Return SQL over the Parquet files of a folder, for DuckDB."""
    escaped = folder.replace("'", "''")
    return f"SELECT {columns} FROM '{escaped}/*.parquet'"
