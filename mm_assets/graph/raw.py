"""Raw shards of the graph: their location, the versions seen of them, and the integrity gate before compute.

* `RawShards`: the resource that lists the shards that ``MM_RAW_SHARDS`` names, with URI and version.
* `observe_changes`: raw shards change outside of the graph, so each new version is logged as an
  `AssetObservation` of its partition. Staleness of everything made from the shard is measured against the
  latest one. Only new and changed shards are logged: an event costs ~10 ms, a listing far less.
* `RawShardIOManager`: loads them as the `ShardSet` that assets read.
* `RawInput`: the base of IO managers that read raw shards. It tells workers what may not come in.
* `RawGate`: the integrity gate. It inspects raw shards, each alone and all together; workers run
  `survey_raw_shard`.
* `raw_gate_checks`: the gate as asset checks. `curated_parquet` logs them before it reads. Launched alone
  they read the shards and write no output.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import dagster as dg
import pyarrow.compute as pc
from pydantic import Field

from mm_assets.accounting import lists_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.contract import SCHEMA_CHANGES, SchemaContract, SchemaDecision
from mm_assets.accounting.erasures import ALIAS, DenyList
from mm_assets.accounting.loss_share import LossShare
from mm_assets.accounting.survey import ShardSurvey, findings
from mm_assets.accounting.survey_store import SurveyIndex, SurveyStore, duplicates
from mm_assets.filters.known_hashes import opened_hash_lists
from mm_assets.formats.materialize import portable_places
from mm_assets.formats.partitions import parse_bytes, relative_root
from mm_assets.formats.raw_shards import Listing, RawLocations
from mm_assets.formats.reports import untaken_lines
from mm_assets.formats.webdataset import (
    DEFAULT_IMAGE_EXTENSIONS,
    DEFAULT_JSON_EXTENSIONS,
    IMAGES,
    TEXTS,
    RawLayout,
    stated_fields,
)
from mm_assets.graph import NO_RAW_SHARD, Check, Shard, ShardJob, ShardSet, dagster_internals
from mm_assets.graph.io_manager import ShardIOManager, Workers
from mm_assets.graph.planned_jobs import report_shards, shards_to_check, specs_by_shard
from mm_assets.graph.shard_jobs import DENY
from mm_assets.model.errors import MmAssetsError, counted
from mm_assets.pool import WorkerFailure
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.storage.errors import error_line, readable_store_errors

RAW_SHARDS = dg.AssetKey("raw_shards")


class RawShardLike(Protocol):
    """A raw shard: its URI, and a version that changes whenever the data do."""

    @property
    def uri(self) -> str: ...

    @property
    def version(self) -> str: ...


def observe_changes(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    asset: dg.AssetKey,
    listing: Mapping[str, RawShardLike],
) -> dg.DataVersionsByPartition:
    """Log each shard of `listing` that is new or has another version than last seen.

    This is the body of the observable source asset.

    Returns:
        An empty result: Dagster would log all shards of a full one, changed or not, and without their URI.
    """
    _warn_of_unmatched(context.log, listing)
    seen = dagster_internals.latest_observations(context.instance, asset, listing)
    log_event = dagster_internals.event_logger(context)
    for key in _changed(listing, seen):
        log_event(observation(asset, key, listing[key]))
    return dg.DataVersionsByPartition({})


class RawShardIOManager(dg.ConfigurableIOManager):
    """Loads raw shards as a `ShardSet`, with their current version and the event that logged it.

    A shard that was never observed, or has changed since, is observed now (inside a run). So what is made
    from it names the version that was read, and repairing a raw shard is enough to have it processed again.
    """

    raw: dg.ResourceDependency[Any]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise dg.DagsterInvariantViolationError("raw shards are observed, never written")

    def load_input(self, context: dg.InputContext) -> ShardSet:
        asset = context.asset_key
        keys = sorted(context.asset_partition_keys)
        listing: Mapping[str, RawShardLike] = self.raw.listing()
        _warn_of_unmatched(context.log, listing)
        present = {key: listing[key] for key in keys if key in listing}
        seen = dagster_internals.latest_observations(context.instance, asset, present)
        changed = _changed(present, seen)
        if changed and (run := dagster_internals.asset_step()) is not None:
            log_event = dagster_internals.event_logger(run)
            for key in changed:
                log_event(observation(asset, key, present[key]))
            seen |= dagster_internals.latest_observations(context.instance, asset, changed)
        return ShardSet(
            asset.to_user_string(),
            tuple(
                Shard(
                    key,
                    raw.uri,
                    raw.version,
                    seen[key].pointer if key in seen and seen[key].version == raw.version else None,
                )
                for key, raw in present.items()
            ),
            {key: NO_RAW_SHARD for key in keys if key not in present},
        )


def _warn_of_unmatched(log: dg.DagsterLogManager, listing: Mapping[str, RawShardLike]) -> None:
    """Tell the warnings of a listing: of an unreachable folder, a pattern that matches nothing, and so on.

    They do not keep other shards from being processed.
    """
    for line in listing.warnings if isinstance(listing, Listing) else ():
        log.warning(line)


def _changed(listing: Mapping[str, RawShardLike], seen: Mapping[str, dagster_internals.Latest]) -> list[str]:
    return [key for key, raw in listing.items() if key not in seen or seen[key].version != raw.version]


def observation(asset: dg.AssetKey, key: str, raw: RawShardLike) -> dg.AssetObservation:
    """Return the event that notes the version of a raw shard."""
    return dg.AssetObservation(
        asset,
        partition=key,
        metadata={dagster_internals.URI: raw.uri},
        tags=dagster_internals.observed_version(raw.version),
    )


class RawShards(dg.ConfigurableResource[Any]):
    """The raw shards that ``MM_RAW_SHARDS`` names.

    Locations are paths, globs, brace lists or URLs, separated by whitespace. For paired shards they are
    ``modality=location`` items.
    """

    locations: str = Field(
        description="Paths, globs, brace lists or URLs of raw shards, separated by whitespace."
    )
    excluded: str = Field(
        default="", description="Folder or URL prefix whose files are no raw shards: the outputs."
    )
    missing_keys: str = Field(
        default="skip",
        description="Keys that not all modalities of paired shards have: skip, partial or error.",
    )
    files_per_partition: int = Field(
        default=1, ge=1, description="Raw files that make up one partition, by the numbers in their names."
    )

    def listing(self) -> Listing:
        """Return the current shards by partition key.

        Raises:
            FileNotFoundError: when nothing is found at all.
            StoreError: when a store cannot be reached. Each message is one line.
        """
        with readable_store_errors():
            locations = RawLocations(self.locations, excluded=self.excluded, missing_keys=self.missing_keys)
            try:
                return locations.shards(self.files_per_partition)
            except FileNotFoundError as error:
                if self.locations != Settings.raw_shards or "MM_RAW_SHARDS" in given_settings():
                    raise
                raise FileNotFoundError(f"{error}; MM_RAW_SHARDS is not set") from error

    def roots(self) -> list[str]:
        """Return the folder and URL prefix of all of them; local locators are relative to the folder."""
        return RawLocations(self.locations, missing_keys=self.missing_keys).roots()


class RawInput(ShardIOManager):
    """Passes to workers the raw roots, to which locators of local shards are relative, and what is denied.

    Neither is part of the fingerprint: the same shards in another place give the same output.
    """

    raw: dg.ResourceDependency[Any]
    hash_lists: list[str] = Field(
        default=[], description="Files or URLs with hashes of images that may not come in."
    )

    def options(self) -> dict[str, object]:
        return {name: value for name, value in super().options().items() if name != "hash_lists"}

    def deny_list(self) -> DenyList:
        """Return what is denied now.

        Raises:
            dagster.Failure: in one line, a list cannot be used, or no picture compared.
        """
        try:
            lists = opened_hash_lists(self.hash_lists, lists_folder(self.root))
            deny = DenyList.read(self.root, lists=lists)
            deny.refuse_missing_extra()
        except MmAssetsError as error:
            raise dg.Failure(error_line(error), allow_retries=False) from error
        return deny

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        deny = self.deny_list()
        options = {"raw_roots": self.raw.roots(), **({DENY: deny.lists} if deny else {})}
        return [replace(job, options={**job.options, **options}) for job in jobs]


INTEGRITY = "integrity"
UNIQUE_SAMPLE_IDS = "unique_sample_ids"
CONTENT_TAKEN = "content_taken"
COLUMNS = "columns"  # in its metadata: `untaken`
SCHEMA_CONTRACT = "schema_contract"
MINORITY_TYPES = "minority_types"  # in its metadata, by column
_MEND_TYPES = (
    "If the values are wrong, mend the raw shards that are named. A published column stays JSON text until "
    "all shards are made anew: remove ledger/accounts/curated_parquet, and run `mm-assets run`."
)
GATE_CHECKS = {
    INTEGRITY: "The tar is whole, its JSON parses, references and frames resolve, ids are unique in it.",
    UNIQUE_SAMPLE_IDS: "No sample id of the shard belongs to another shard.",
    SCHEMA_CONTRACT: "Types of the shard's fields fit those of all shards; no column is JSON text for a few.",
    CONTENT_TAKEN: "No column looks like text, or images, while the shard has none: docs/raw_shards.md.",
}
_LISTED = 20


@dataclass(frozen=True)
class ShardInspection:
    """The inspection of one raw shard.

    Args:
        survey: its content.
        claimed_ids: its sample ids that other shards keep, with the shard that keeps each.
        decision: the types that its columns take.
        removed_owners: those of the keeping shards whose raw shards are missing. Their outputs stay until
            someone removes them.
        refusal: why the shard may not be read, where more of it would be lost than may be.
    """

    survey: ShardSurvey
    claimed_ids: Mapping[str, str]
    decision: SchemaDecision
    removed_owners: frozenset[str] = frozenset()
    refusal: str | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        return (
            integrity(self.survey, self.refusal),
            unique_sample_ids(self.claimed_ids, self.removed_owners),
            schema_contract(self.decision),
            content_taken(self.survey),
        )


class RawGate(dg.ConfigurableResource[Any]):
    """Surveys raw shards, and resolves sample ids and column types among all of them.

    Each sample id gets one owner, each column one type. A shard is surveyed once for each of its versions.
    """

    raw: dg.ResourceDependency[Any]
    workers: dg.ResourceDependency[Workers]
    root: str = Field(description="Where outputs and their records are stored: a directory or a URL.")
    asset: str = Field(
        default="curated_parquet", description="The asset whose records say which shards have landed."
    )
    sample_id_field: str | None = Field(
        default=None, description="Json field with the sample id; None: see the reader's default."
    )
    sample_id_prefix: str | None = Field(
        default=None, description="shard: the partition's name in front of each sample id."
    )
    texts_field: str = Field(default=TEXTS, description="Json field with the list of texts.")
    images_field: str = Field(default=IMAGES, description="Json field with the list of images.")
    document_layout: str | None = Field(
        default=None, description="Layout of the documents; None: found by looking at them."
    )
    images_from: str = Field(default="", description="Folders and tars with images that documents only name.")
    declared_digests: str | None = Field(
        default=None, description="Images that are compared with their sha256 or md5: off or all."
    )
    image_member_field: str | None = Field(
        default=None, description="Json field that names the sample's image member."
    )
    image_extensions: list[str] = Field(
        default=list(DEFAULT_IMAGE_EXTENSIONS), description="Suffixes of image members."
    )
    json_extensions: list[str] = Field(
        default=list(DEFAULT_JSON_EXTENSIONS), description="Suffixes of the members that are documents."
    )
    per_image_fields: list[str] = Field(default=[], description="Json lists with one value per image.")
    per_text_fields: list[str] = Field(default=[], description="Json lists with one value per text.")
    max_member_bytes: str = Field(default="1GiB", description="A larger member of a tar is not read.")
    max_loss: float = Field(
        default=1.0, ge=0, le=1, description="Share of a shard's members and items that may be lost."
    )
    schema_changes: str = Field(default=SCHEMA_CHANGES[0], description="refuse or widen.")

    def layout(self) -> dict[str, Any]:
        """Return the arguments of the reader of raw shards."""
        stated = stated_fields({f.name: getattr(self, f.name) for f in fields(RawLayout)})
        return {**stated, "max_member_bytes": parse_bytes(self.max_member_bytes)}

    def known_layout(self) -> dict[str, Any]:
        """Return the same for records: they name no folder of this machine."""
        layout = self.layout()
        if self.images_from:
            layout["images_from"] = portable_places(self.images_from, relative_root(self.raw.roots()))
        return layout

    def inspect(
        self, shards: Sequence[Shard], deny: DenyList | None = None
    ) -> dict[str, ShardInspection | str]:
        """Return the inspection of each shard by key; one line of text for a shard that cannot be opened.

        Args:
            deny: the deny list of the storage root, where it has been read.
        """
        store = SurveyStore(self.root)
        deny = DenyList.read(self.root) if deny is None else deny
        surveys, errors = self._surveys(store, shards, bool(deny.entries))
        found: dict[str, ShardInspection | str] = dict(errors)
        if not surveys:
            return found
        ledger = Ledger(self.root)
        landed = ledger.named(self.asset)
        listed = self.raw.listing()
        known = {*listed, *landed, *surveys}
        index = SurveyIndex(store)
        published = index.published(landed)
        columns = index.columns(known)
        contract = SchemaContract.derive(columns, published, widen=self.schema_changes == "widen")
        decisions = {key: contract.admit(key, survey.columns) for key, survey in surveys.items()}
        for key in [key for key, decision in decisions.items() if decision.refused and key in published]:
            # The shard may change columns that only it has published: its output is made again.
            others = {name: made for name, made in published.items() if name != key}
            decisions[key] = SchemaContract.derive(
                columns, others, widen=self.schema_changes == "widen"
            ).admit(key, surveys[key].columns)
        too_lossy = {
            key for key, survey in surveys.items() if LossShare.of_survey(survey, {}).share > self.max_loss
        }
        unpublishable = {key for key, decision in decisions.items() if decision.refused} | too_lossy

        def faulty(key: str) -> frozenset[str]:
            survey = surveys.get(key) or store.read(key)
            if survey is None:
                return frozenset()
            if key in unpublishable:
                return frozenset(survey.sample_ids.to_pylist())
            record = ledger.records(self.asset, [key]).get(key)
            lost = frozenset() if record is None else record.lost_ids(survey.version)
            return survey.unresolved_ids | lost

        sample_ids = {key: survey.sample_ids for key, survey in surveys.items()}
        if deny:  # what is erased is in no output, so no shard keeps it
            is_hidden = {key: pc.match_substring_regex(ids, ALIAS) for key, ids in sample_ids.items()}
            sample_ids = {key: ids.filter(pc.invert(is_hidden[key])) for key, ids in sample_ids.items()}
        claimed_ids = duplicates(store, sample_ids, landed, known, faulty, unpublishable)
        removed = frozenset(known).difference(listed, surveys)
        for key, survey in surveys.items():
            refusal = LossShare.of_survey(survey, claimed_ids[key]).refusal(self.max_loss)
            found[key] = ShardInspection(
                survey,
                claimed_ids[key],
                decisions[key],
                removed.intersection(claimed_ids[key].values()),
                refusal,
            )
        return found

    def verdicts(self, keys: Sequence[str]) -> Iterator[tuple[str, Sequence[Check]]]:
        """Yield the checks of these raw shards in their current version."""
        listing = self.raw.listing()
        shards = [Shard(key, listing[key].uri, listing[key].version) for key in keys if key in listing]
        for key, inspection in self.inspect(shards).items():
            yield key, unreadable(inspection) if isinstance(inspection, str) else inspection.checks

    def _surveys(
        self, store: SurveyStore, shards: Sequence[Shard], denies: bool
    ) -> tuple[dict[str, ShardSurvey], dict[str, str]]:
        from mm_assets.graph.shard_work import SurveyJob, digest_of_layout, survey_raw_shard

        layout = self.layout()
        by = digest_of_layout(layout)
        relative_to = relative_root(self.raw.roots())
        surveys: dict[str, ShardSurvey] = {}
        errors: dict[str, str] = {}
        jobs = []
        stored = dict(store.surveys([shard.key for shard in shards]))
        for shard in shards:
            known = stored.get(shard.key)
            if known is not None and known.is_of(shard.version, by):
                surveys[shard.key] = known
            else:
                jobs.append(
                    SurveyJob(shard.key, shard.uri, shard.version, layout, relative_to, self.root, denies)
                )
        for attempts_left in (2, 1, 0):
            # Types and ids of the other shards are resolved without one that has no survey. Any shard may
            # have killed the worker, so the survey is tried again.
            died = []
            for job, answer in self.workers.map(survey_raw_shard, jobs) if jobs else ():
                if not isinstance(answer, WorkerFailure):
                    surveys[job.key] = answer
                elif answer.type == "WorkerDied" and attempts_left:
                    died.append(job)
                else:
                    errors[job.key] = str(answer)
            jobs = died
        return surveys, errors


def judged_before(instance: dg.DagsterInstance, asset: dg.AssetKey, observed: Mapping[str, int]) -> set[str]:
    """Return the raw shards that the gate judged last before their current version was observed.

    Args:
        observed: storage id of that observation, by shard.
    """
    check = dg.AssetCheckKey(asset, INTEGRITY)
    return {
        info.partition_key
        for keys in dagster_internals.batches(sorted(observed))
        for info in instance.event_log_storage.get_asset_check_partition_info([check], partition_keys=keys)
        if info.partition_key is not None
        and info.latest_check_event_storage_id < observed[info.partition_key]
    }


def integrity(survey: ShardSurvey, refusal: str | None = None) -> Check:
    """Check the tar itself: archive, JSON, references, ids.

    Covers end of archive, header checksums, sizes, JSON, references, frames, ids within the shard, and
    members that are no files. The severity is ERROR when bytes of the tar are lost, or for a ``refusal``.
    """
    found = findings(survey)
    metadata = {name: value if isinstance(value, int) else {"json": value} for name, value in found.items()}
    counted = ("damage", "unreadable", "repeated_ids", "unresolved", "frame_counts", "skipped")
    summary = ", ".join(f"{found[name]} {name}" for name in counted if found[name])
    severity = "ERROR" if found["damage"] or refusal else "WARN"
    return Check(
        INTEGRITY, survey.is_sound and not refusal, severity, {**metadata, "summary": refusal or summary}
    )


def unique_sample_ids(claimed_ids: Mapping[str, str], removed_owners: Collection[str] = ()) -> Check:
    """Check that no sample id of the shard belongs to another shard."""
    first = dict(sorted(claimed_ids.items())[:_LISTED])
    owners = sorted(set(claimed_ids.values()))
    summary = (
        f"{counted(len(claimed_ids), 'id')} that shard {owners[0]!r} "
        f"{'and others keep' if owners[1:] else 'keeps'}"
        if claimed_ids
        else ""
    )
    if removed_owners:
        gone = f"the raw shard of {sorted(removed_owners)[0]!r} is gone"
        summary += f"; {gone}: mm-assets retire removes its outputs, or bring it back"
    metadata = {
        "repeated": len(claimed_ids),
        "kept_by": {"json": first},
        "raw_shard_gone": {"json": sorted(removed_owners)},
        "summary": summary,
    }
    return Check(UNIQUE_SAMPLE_IDS, not claimed_ids, "WARN", metadata)


def schema_contract(decision: SchemaDecision) -> Check:
    """Check that the shard's columns fit the types of all shards; list what it adds, adapts or lacks.

    A shard that fits none fails. One of a few for which a column is JSON text in all is warned of.
    """
    lines = [*decision.refused.values(), *decision.minority_types.values()]
    metadata = {
        "added": {"json": list(decision.added)},
        "promoted": {"json": dict(decision.promoted)},
        "adapted": {"json": dict(decision.adapted)},
        "absent": {"json": list(decision.absent)},
        "refused": {"json": dict(decision.refused)},
        MINORITY_TYPES: {"json": dict(decision.minority_types)},
        "summary": "; ".join(lines),
        **({"what_to_do": _MEND_TYPES} if decision.minority_types else {}),
    }
    return Check(SCHEMA_CONTRACT, not lines, "ERROR" if decision.refused else "WARN", metadata)


def content_taken(survey: ShardSurvey) -> Check:
    """Check that no column looks like texts, or images, of a shard of which none was taken."""
    found = survey.untaken
    summary = "; ".join(untaken_lines([found], 0))
    columns = {modality: list(names) for modality, names in found.items()}
    return Check(CONTENT_TAKEN, not found, "WARN", {COLUMNS: {"json": columns}, "summary": summary})


def unreadable(error: str) -> tuple[Check, ...]:
    """Return the checks of a shard that cannot be opened."""
    return (Check(INTEGRITY, False, "ERROR", {"error": error, "summary": error}),)


def raw_gate_checks() -> dg.AssetChecksDefinition:
    """Return the checks of the raw shards; they run in one step, as they come from one survey."""

    @dg.multi_asset_check(
        name="raw_gate",
        can_subset=True,
        specs=specs_by_shard(RAW_SHARDS, GATE_CHECKS),
    )
    def raw_gate(context: dg.AssetCheckExecutionContext, gate: RawGate) -> Iterator[dg.Output[None]]:
        yield from report_shards(context, RAW_SHARDS, gate.verdicts(shards_to_check(context)))

    return raw_gate
