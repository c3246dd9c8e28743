"""Workers that make shards: processes of this machine, or a Ray cluster.

`WORKER_ENVIRONMENT` has variables for the libraries of workers, which read them when they are loaded.
Commands set them for themselves, before they import numpy: a process with threads cannot fork its workers.
Spawned workers get them at their start. What the user has set stays.
"""

WORKER_ENVIRONMENT = {
    # By default numpy starts a spinning thread per core, and no worker multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # OpenCV, which measures pictures, likewise: there is a worker for each core already.
    "OPENCV_FOR_THREADS_NUM": "1",
    # Milliseconds after which Arrow's allocator returns freed memory to the system, which clears it again for
    # the next batch: with 10, its default, up to a third of the CPU. With a second nearly all of that is
    # gone, for 20 to 60 MiB at the peak. Workers return memory after a job, too (`FreeMemory`), which a
    # negative value would forbid.
    "MIMALLOC_PURGE_DELAY": "1000",
}
