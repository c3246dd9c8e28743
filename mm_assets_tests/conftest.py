"""Settings of all tests."""

import os

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before numpy is imported, here and in hundreds of child processes: its threads spin

from hypothesis import settings

# Without deadlines: how long an example takes is a matter of the machine, not of the code under test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
