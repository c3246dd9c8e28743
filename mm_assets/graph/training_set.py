"""Asset `training_set`: the tars of all shards as one set to train from, and its resource.

It has no partitions, and is made where it is asked for alone: by its job, the UI, or
`mm-assets run --assets training_set`. One sample more or less changes the order of all.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow.compute as pc
from pydantic import Field

from mm_assets.accounting import TARS, TRAINING, TRAINING_FOLDER, TRAINING_NOTE
from mm_assets.formats.names import PLAN_FILE
from mm_assets.graph.io_manager import Workers
from mm_assets.graph.planned_jobs import metadata_values
from mm_assets.model.errors import counted
from mm_assets.settings import Settings
from mm_assets.storage.files import join, publish_bytes, remove
from mm_assets.storage.small_files import seal
from mm_assets.training_set import Fields, our_tars, version_of
from mm_assets.training_set.build import MadeSet, TrainingSet
from mm_assets.training_set.plan import Recipe, totals
from mm_assets.training_set.proof import Proof, as_written, make_proven

UNION = "union"
RESHARD = "reshard"  # its job, which cannot have the name of the asset


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


@dg.asset(
    deps=[TARS.asset],
    group_name="deliver",
    kinds={"webdataset"},
    code_version="1",
    check_specs=[
        dg.AssetCheckSpec(
            UNION,
            asset=TRAINING,
            description="All splits together hold the samples of the tars that the plan does not leave out.",
        )
    ],
    description=(
        "All samples in tars of equal size, shuffled and split, with a plan that says where each is. "
        "Made where it is asked for, not with the shards."
    ),
)
def training_set(training: TrainingRecipe, workers: Workers) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster knows no other
    source = our_tars(join(training.root, TARS.folder), TARS.folder)
    if source is None:
        raise dg.Failure(f"{join(training.root, TARS.folder)}: has tars that no shard has written")
    made = TrainingSet(join(training.root, TRAINING_FOLDER))
    report, proof = make_proven(made, [source], training.recipe(), workers, overwrite=True)
    if proof is None:
        many = counted(len(report.failures), "shard")
        raise dg.Failure(f"{many} of the training set not made: {report.failures[0]}", allow_retries=False)
    told = _told(report, proof)
    if proof.differences:  # without its note nobody takes it for proven
        remove(join(training.root, TRAINING_NOTE))
    else:
        made_of = version_of({tar.name: tar.stamp for tar in source.tars})
        asked = {"made_of": made_of, "recipe": training.recipe().to_json()}
        note = {**told, **asked, "files": as_written(made, proof.stamps)}
        publish_bytes(join(training.root, TRAINING_NOTE), seal(note, indent=1))
    plain = {name: {"json": value} if isinstance(value, list) else value for name, value in told.items()}
    differences = {"differences": {"json": list(proof.differences)}, "digest": proof.digest}
    return dg.MaterializeResult(
        metadata=metadata_values({**plain, "dagster/uri": join(made.folder, PLAN_FILE)}),
        data_version=dg.DataVersion(f"{report.digest}-{proof.digest}"),
        check_results=[
            dg.AssetCheckResult(
                check_name=UNION, passed=not proof.differences, metadata=metadata_values(differences)
            )
        ],
    )


def _told(report: MadeSet, proof: Proof) -> Mapping[str, Any]:
    """Return what is noted of the set."""
    return {
        "plan": join(TRAINING_FOLDER, PLAN_FILE),
        "plan_digest": report.digest,
        "shards": len(report.shards),
        "samples": proof.samples,
        "uses": pc.sum(report.plan.column("repeats")).as_py() or 0,
        "left_out": proof.left_out,
        "content_digest": proof.digest,
        "splits": totals(report.plan, "split"),
    }


TRAINING_SET = dg.AssetSelection.assets(training_set)
TRAINING_JOB = dg.define_asset_job(RESHARD, selection=TRAINING_SET, description="Make the set to train from.")
