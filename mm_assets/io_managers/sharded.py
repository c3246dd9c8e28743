"""`@sharded`: an asset with one partition per shard, whose body returns a `Plan` for its IO manager."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import dagster as dg

from mm_assets.interleaved.counted import counted
from mm_assets.io_managers import events
from mm_assets.io_managers.base import LANDED, LENIENT, SHARDED_TAG, STRICT, ShardIOManager
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.reports import version_with_settings
from mm_assets.io_managers.seen_code_versions import LIMIT_TAG, UNREAD
from mm_assets.io_managers.shards import Plan, ShardCheck, ShardSet
from mm_assets.partitions import CHUNK_SHARDS, SHARDS

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


def with_settings(asset: dg.AssetsDefinition, resources: Mapping[str, Any]) -> dg.AssetsDefinition:
    """Return a sharded asset whose code version names its settings, too.

    So the UI shows partitions as outdated when a setting has changed that their bytes depend on.

    Args:
        resources: those of the code location, by key.
    """
    body, checks = _BODIES[asset.key]
    arguments = {
        name: resources[name] if name in resources else ShardSet(name)
        for name in inspect.signature(body).parameters
    }
    manager: ShardIOManager = resources[asset.get_io_manager_key_for_asset_key(asset.key)]
    base = asset.code_versions_by_key[asset.key] or ""
    plan = replace(body(**arguments), checks=checks)
    made_by = manager.made_by(asset.key.to_user_string(), base, plan)
    unread = {UNREAD: sorted(shards.asset for shards in plan.unread)} if plan.unread else {}
    limits = {LIMIT_TAG: manager.limit()} if manager.limit() else {}
    return asset.map_asset_specs(
        lambda spec: spec.replace_attributes(
            code_version=version_with_settings(base, made_by),
            tags={**spec.tags, **limits},
            metadata={**spec.metadata, **unread},
        )
    )


def landed_checks(assets: Iterable[Any]) -> list[dg.AssetChecksDefinition]:
    """Return the check `landed` of each sharded asset among `assets`; other objects are ignored.

    It runs as a step of its own after the asset's. When shards of the run did not land, it fails and names
    them, and with it the run; the good shards still reach the next assets. Launched alone it covers all
    shards of the asset, whichever run they failed in.
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
        yield dg.Output(replace(plan, checks=checks), metadata={events.MARK: True})

    # The generator's own type, not that of the body: Dagster would take `-> Plan` for the type of its
    # outputs.
    outputs.__signature__ = inspect.signature(body).replace(return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]
    outputs.__annotations__ = {name: kind for name, kind in body.__annotations__.items() if name != "return"}
    return outputs


def _landed_check(asset: dg.AssetKey, policy: str) -> dg.AssetChecksDefinition:
    # A generator, so that the result is stored before the failure is raised; Dagster takes one, its
    # annotation does not say so.
    @dg.asset_check(asset=asset, name=LANDED, description="Every shard of the run has been published.")  # type: ignore[arg-type]
    def landed(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        partitions_def = context.job_def.asset_layer.get(asset).partitions_def
        assert partitions_def is not None, "a sharded asset has partitions"
        runs = events.family(context.instance, context.run)
        keys = {key for run in runs for key in events.keys_of_run(run, partitions_def, context.instance)}
        if keys:
            bad = events.failed_attempts(context.instance, asset, keys, [run.run_id for run in runs])
        else:  # launched on its own: all shards of the asset
            keys = set(partitions_def.get_partition_keys(dynamic_partitions_store=context.instance))
            bad = events.failed_attempts(context.instance, asset, keys)
        metadata = metadata_values({"shards": {"json": bad}, "failed": len(bad), "of": len(keys)})
        severity = dg.AssetCheckSeverity.ERROR if policy == STRICT else dg.AssetCheckSeverity.WARN
        yield dg.AssetCheckResult(passed=not bad, severity=severity, metadata=metadata)
        if bad:
            text = (
                f"{len(bad)} of {counted(len(keys), 'shard')} of {asset.to_user_string()} did not land: "
                f"{', '.join(bad)}"
            )
            if policy == STRICT:
                # Their errors are in the log of the asset's step. A retry of this step alone changes nothing.
                raise dg.Failure(text, metadata=metadata, allow_retries=False)
            context.log.warning(text)

    return landed


def _prefix(key_prefix: str | Sequence[str] | None) -> list[str]:
    return [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
