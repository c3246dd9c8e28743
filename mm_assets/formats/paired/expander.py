"""From shard groups to samples."""

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
# One function for all modalities, or one for each of those named.
Select = SelectFiles | Mapping[str, SelectFiles]
Rename = RenameFiles | Mapping[str, RenameFiles]

_MAX_KEPT = 100_000  # names in the reports of a pass


class PairedTarExpander:
    """A pipeline stage that opens the tars of each shard group and yields samples joined by key.

    ``missing_key_policy`` is about keys that not all modalities have: ``skip`` leaves them out, ``partial``
    yields what there is, ``error`` raises ``ValueError`` before the first sample of the group.
    ``select_files`` and ``rename_files`` get names of members, the new names first; a mapping from modality
    to function gives modalities their own.

    An error ends its shard group, also a tar that is cut or corrupt, before anything of it is yielded;
    ``handler`` decides whether the next group is read, as in webdataset. What is left out is in ``reports``
    and in the log.
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
        self._told: set[tuple[str, ...]] = set()

    def __call__(self, src: Iterable[ShardGroup]) -> Iterator[Sample]:
        """The samples of each group.

        ``reports`` has this process' groups of the pass that began last, up to where it has come.
        """
        reports = self.reports = []
        room = _MAX_KEPT
        for group in src:
            report = GroupReport(dict(group["urls"]))
            reports.append(report)
            try:
                with self._joined(report) as joined:
                    wanted = self._wanted(joined)
                    if report.missing or report.unkeyed:
                        self._log(report)
                    for sample in joined.read(wanted):
                        report.samples += 1
                        yield sample
            except Exception as error:  # noqa: BLE001 (the handler raises it, or says whether to go on)
                report.error = repr(error)
                error.add_note(f"shard group: {report.urls}")
                goes_on = self.handler(error)
                self._log(report)  # an error that is not raised
                if not goes_on:
                    break
            finally:
                room -= report.keep(room)

    def survey(self, src: Iterable[ShardGroup]) -> Iterator[GroupReport]:
        """What would be left out of each group, from the headers alone; ``samples`` counts what the policy
        would yield.
        """
        for group in src:
            report = GroupReport(dict(group["urls"]))
            try:
                with self._joined(report) as joined:
                    report.samples = len(self._wanted(joined))
            except Exception as error:  # noqa: BLE001 (whatever ends the group when it is read)
                report.error = repr(error)
            yield report

    def _log(self, report: GroupReport) -> None:
        what = (*report.urls.values(), report.error or "")
        log.log(
            logging.INFO if what in self._told else logging.WARNING, "%s", report
        )  # later passes leave out the same again
        self._told.add(what)

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
            yield joined

    def _wanted(self, joined: JoinedTars) -> list[str]:
        """The keys to yield.

        Raises ``ValueError`` for what the policy refuses and for extensions that collide.
        """
        if self.missing_key_policy == "error":
            joined.check_alignment()
        wanted = joined.keys if self.missing_key_policy == "partial" else joined.common_keys
        joined.check_extensions(wanted)
        return wanted


def _per_modality(given: F | Mapping[str, F] | None, modalities: Iterable[str]) -> dict[str, F | None]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(modalities, given)
    if unknown := given.keys() - set(modalities):
        raise ValueError(
            f"functions for {sorted(unknown)}, which are none of the modalities {list(modalities)}"
        )
    return {name: given.get(name) for name in modalities}
