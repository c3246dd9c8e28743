"""Survey of a raw tar without reading images: its samples, faults and field types."""

from __future__ import annotations

from contextlib import closing

from mm_assets.formats.file_survey import FileSurvey, SurveyedSample
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.tiff_count import count_frames
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.storage import StorageOptions
from mm_assets.formats.tar.scan import Member
from mm_assets.formats.webdataset.blobs import surplus_reference
from mm_assets.formats.webdataset.layout import RawLayout
from mm_assets.formats.webdataset.rows import Sample, SchemaTally
from mm_assets.formats.webdataset.tar_samples import TarSamples
from mm_assets.interleaved.faults import Fault, lost_frame


def survey_tar(
    uri: str,
    layout: RawLayout,
    ref_path: str,
    *,
    max_member_bytes: int,
    options: StorageOptions | None = None,
    id_prefix: str = "",
) -> FileSurvey:
    """Survey one tar, local or remote, compressed or not.

    Nothing in the tar raises: content that cannot be used is among the ``losses``, as with
    ``quarantine_errors`` of the reader. ``ref_path`` is the tar's path in messages and locators.

    Raises:
        OSError: The file cannot be opened.
    """
    with closing(TarSamples(uri, ref_path, layout, max_member_bytes, SampleIds(), options, id_prefix)) as tar:
        tally = SchemaTally()
        frames = _Frames(tar.descriptor)
        samples: list[SurveyedSample] = []
        unresolved: list[tuple[str, int, str]] = []
        for member, sample in tar.sound():
            tally.observe(sample)
            images = [row for row in sample.rows if row.modality == "image"]
            samples.append(
                SurveyedSample(
                    sample.sample_id, member.name, member.offset, member.size, len(sample.rows), len(images)
                )
            )
            faults = {row.position: row.error for row in images if row.error is not None} | frames.errors(
                sample
            )
            unresolved += [
                (sample.sample_id, position, faults[position].message) for position in sorted(faults)
            ]
        return FileSurvey(
            samples=tuple(samples),
            losses=tuple(tar.losses),
            unresolved=tuple(unresolved),
            frame_counts=tuple(frames.differences),
            unreferenced=tuple(tar.unreferenced_names()),
            skipped=tuple(member.name for member in tar.skipped()),
            left_out=tuple(tar.left_out()),
            tallies=tally.tallies,
            declared=tuple(tally.declared),
            declared_ints=tally.declared_ints,
            content=tar.content(tally),
            members=len(tar.index.members) + len(tar.index.skipped) + len(tar.index.left_out),
            nbytes=tar.nbytes,
        )


class _Frames:
    """Frame counts of TIFFs whose frames are shared out among references."""

    def __init__(self, descriptor: int) -> None:
        self.differences: list[tuple[str, int, int]] = []
        self._descriptor = descriptor
        self._counted: dict[Member, tuple[int, ImageError | None]] = {}

    def errors(self, sample: Sample) -> dict[int, Fault]:
        """Return by position the faults of references that have no frame.

        There are too few frames, or the chain of frames is damaged before it.
        """
        errors: dict[int, Fault] = {}
        seen: set[Member] = set()
        for row in sample.rows:
            if row.content is None or row.content.frame is None:
                continue
            member, frame, references = row.content.member, row.content.frame, row.content.frames
            if member not in self._counted:
                self._counted[member] = count_frames(self._descriptor, member.offset, member.size)
            frames, damage = self._counted[member]
            if frame >= frames:
                errors[row.position] = (
                    lost_frame(member.name, frame, damage)
                    if damage is not None
                    else surplus_reference(member.name, frame, frames, references)
                )
            if member not in seen and frames != references:
                self.differences.append((member.name, frames, references))
            seen.add(member)
        return errors
