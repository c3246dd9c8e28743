"""The measures that there are, and those that something asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mm_assets.filters.filter_settings import FilterSettingError
from mm_assets.filters.image_score import HEADER_SCORES
from mm_assets.filters.image_scores import SCORES_SCHEMA
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.measuring import DECODE_ERROR
from mm_assets.filters.measures.registry import MEASURES as IMAGE_MEASURES
from mm_assets.filters.sample_measures.registry import MEASURES as SAMPLE_MEASURES
from mm_assets.filters.sample_measures.sample_measure import SampleMeasure
from mm_assets.filters.sample_scores import SAMPLE_SCORES_SCHEMA, TEXT_SCORES
from mm_assets.interleaved.extras import require
from mm_assets.plugins import load_plugins, plugin_fault

_TAKEN = {*HEADER_SCORES, *TEXT_SCORES, *SCORES_SCHEMA.names, *SAMPLE_SCORES_SCHEMA.names, DECODE_ERROR}


@dataclass(frozen=True)
class MeasureSelection:
    """Measures of images and of samples, in a fixed order."""

    images: tuple[ImageMeasure, ...] = ()
    samples: tuple[SampleMeasure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return (*names_of(self.images), *names_of(self.samples))


def known_measures() -> MeasureSelection:
    """Return all measures: those of this project, then those in the lists ``MEASURES`` of plugins.

    Raises:
        PluginError: in one line that names the module, for what is no measure, or has the name of another.
    """
    images, samples = list(IMAGE_MEASURES), list(SAMPLE_MEASURES)
    for module in load_plugins():
        for added in getattr(module, "MEASURES", ()):
            if not isinstance(added, ImageMeasure | SampleMeasure):
                hint = "derive it from ImageMeasure or SampleMeasure"
                raise plugin_fault(module, f"{added!r} in MEASURES is no measure: {hint}")
            taken = {*_TAKEN, *names_of(images), *names_of(samples)}
            if added.name in taken:
                raise plugin_fault(module, f"measure {added.name!r}: the name is taken")
            if isinstance(added, ImageMeasure):
                images.append(added)
            else:
                samples.append(added)
    return MeasureSelection(tuple(images), tuple(samples))


def selected_measures(names: Iterable[str]) -> MeasureSelection:
    """Return the measures of these names, with the settings that they depend on.

    Raises:
        FilterSettingError: no measure has one of the names.
        MissingExtra: a library that one needs is not installed.
        ValueError: in one line, for a measure that the settings do not allow.
    """
    known, wanted = known_measures(), set(names)
    for name in sorted(wanted.difference(known.names)):
        near = get_close_matches(name, known.names, n=1)
        hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(known.names)}"
        if name in _TAKEN:
            hint = "it is there in any case: leave it out"
        raise FilterSettingError("scores", f"there is no score {name!r} to be measured; {hint}")
    selected = MeasureSelection(
        tuple(measure.configured() for measure in known.images if measure.name in wanted),
        tuple(measure for measure in known.samples if measure.name in wanted),
    )
    libraries = [measure.library for measure in selected.images]
    libraries += [measure.library for measure in selected.samples]
    require(*filter(None, libraries))
    return selected


def names_of(measures: Iterable[Any]) -> Collection[str]:
    """Return the names of some measures."""
    return [measure.name for measure in measures]
