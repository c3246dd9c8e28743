"""The toy of the seam's tests with the sensor `alerts`; the environment says where data and targets are."""

import os

import dagster as dg

from mm_assets.automation.alerts.tick import alerts_sensor
from mm_assets.settings import Settings
from mm_assets_tests.graph.io_manager import toy

defs = dg.Definitions.merge(
    toy.definitions(os.environ["TOY_RAW"], os.environ["TOY_ROOT"]),
    dg.Definitions(sensors=[alerts_sensor(Settings.load())]),
)
