"""Expansion of shard groups into samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeVar, get_args

from webdataset.handlers import reraise_exception

from mm_assets.formats.paired.join import JoinedTars, Sample
from mm_assets.formats.paired.report import GroupReport, Names
from mm_assets.formats.paired.shard_files import open_shards
from mm_assets.formats.paired.shard_list import ShardGroup
from mm_assets.formats.paired.tar_index import RenameFiles, SelectFiles, index_samples

__all__ = ["PairedTarExpander"]

log = logging.getLogger(__name__)

MissingKeyPolicy = Literal["skip", "partial", "error"]
Handler = Callable[[Exception], bool]
F = TypeVar("F", bound=Callable[[str], object])
# One function for all modalities, or one per named modality.
Select = SelectFiles | Mapping[str, SelectFiles]
Rename = RenameFiles | Mapping[str, RenameFiles]

_MAX_KEPT = 100_000  # names in the reports of a pass


class PairedTarExpander:
    """A pipeline stage that opens the tars of each shard group and yields samples joined by key.

    An error ends its shard group; so does a tar that is cut or corrupt, before anything of it is yielded.
    Everything left out is in ``reports`` and in the log.

    Args:
        handler: Called with the error of a shard group; decides whether the next group is read, as in
            webdataset.
        select_files: Predicate on names of members, after renaming. A mapping from modality to function gives
            each modality its own.
        rename_files: Function from names of members to new names, or such a mapping.
        missing_key_policy: What to do with a key that some modalities lack. ``skip`` leaves it out,
            ``partial`` yields what there is, ``error`` raises `DataError` before the first sample of the
            group.
    """

    def __init__(
        self,
        handler: Handler = reraise_exception,
        select_files: Select | None = None,
        rename_files: Rename | None = None,
        missing_key_policy: MissingKeyPolicy = "skip",
    ) -> None:
        if missing_key_policy not in get_args(MissingKeyPolicy):
            raise ValueError(
                f"missing_key_policy is 'skip', 'partial' or 'error', not {missing_key_policy!r}"
            )
        self.handler = handler
        self.select_files = select_files
        self.rename_files = rename_files
        self.missing_key_policy = missing_key_policy
        self.reports: list[GroupReport] = []
        self._logged: set[tuple[str, ...]] = set()

    def __call__(self, src: Iterable[ShardGroup]) -> Iterator[Sample]:
        """Yield the samples of each group.

        ``reports`` has this process's groups of the latest pass, as far as it has got.
        """
        reports = self.reports = []
        room = _MAX_KEPT
        for group in src:
            report = GroupReport(dict(group["urls"]))
            reports.append(report)
            try:
                with self._joined(report) as joined:
                    keys = self._keys_to_yield(joined)
                    if report.missing or report.unkeyed or report.left_out:
                        self._log(report)
                    for sample in joined.read(keys):
                        report.samples += 1
                        yield sample
            except Exception as error:  # noqa: BLE001 (the handler raises it or decides whether to go on)
                report.error = repr(error)
                error.add_note(f"shard group: {report.urls}")
                resumes = self.handler(error)
                self._log(report)  # an error that is not raised
                if not resumes:
                    break
            finally:
                room -= report.keep(room)

    def survey(self, src: Iterable[ShardGroup]) -> Iterator[GroupReport]:
        """Yield what would be left out of each group, from headers alone.

        ``samples`` counts what the policy would yield.
        """
        for group in src:
            report = GroupReport(dict(group["urls"]))
            try:
                with self._joined(report) as joined:
                    report.samples = len(self._keys_to_yield(joined))
            except Exception as error:  # noqa: BLE001 (any error that would end the group)
                report.error = repr(error)
            yield report

    def _log(self, report: GroupReport) -> None:
        content = (*report.urls.values(), report.error or "")
        # Later passes leave out the same content again: one warning is enough.
        log.log(logging.INFO if content in self._logged else logging.WARNING, "%s", report)
        self._logged.add(content)

    @contextmanager
    def _joined(self, report: GroupReport) -> Iterator[JoinedTars]:
        selects = _per_modality(self.select_files, report.urls)
        renames = _per_modality(self.rename_files, report.urls)
        with open_shards(list(report.urls.values())) as descriptors:
            tars = {
                name: index_samples(fd, url, selects[name], renames[name])
                for (name, url), fd in zip(report.urls.items(), descriptors, strict=True)
            }
            joined = JoinedTars(tars)
            report.keys = len(joined.keys)
            report.incomplete = len(joined.keys) - len(joined.common_keys)
            report.missing = {name: Names(len(keys), keys) for name, keys in joined.missing.items() if keys}
            report.unkeyed = {
                name: Names(len(tar.unkeyed), tar.unkeyed) for name, tar in tars.items() if tar.unkeyed
            }
            report.left_out = {
                name: Names(len(tar.left_out), tar.left_out) for name, tar in tars.items() if tar.left_out
            }
            yield joined

    def _keys_to_yield(self, joined: JoinedTars) -> list[str]:
        """Return the keys to yield.

        Raises:
            DataError: The policy refuses a missing key, or extensions collide.
        """
        if self.missing_key_policy == "error":
            joined.check_alignment()
        keys = joined.keys if self.missing_key_policy == "partial" else joined.common_keys
        joined.check_extensions(keys)
        return keys


def _per_modality(given: F | Mapping[str, F] | None, modalities: Iterable[str]) -> dict[str, F | None]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(modalities, given)
    if unknown := given.keys() - set(modalities):
        raise ValueError(
            f"functions for {sorted(unknown)}, which are none of the modalities {list(modalities)}"
        )
    return {name: given.get(name) for name in modalities}
