"""Hypothesis without deadlines: how long an example takes is a matter of the machine, not of the code under test."""

from hypothesis import settings

settings.register_profile("untimed")
settings.load_profile("untimed")
