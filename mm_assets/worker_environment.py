"""Variables for the libraries of workers, which read them when they are loaded.

Commands set them for themselves, as they fork their workers; the server of other processes gets them at its
start. What the user has set stays.
"""

WORKER_ENVIRONMENT = {
    # By default numpy starts a spinning thread per core, and no worker multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # Milliseconds after which Arrow's allocator returns freed memory to the system, which clears it again for
    # the next batch: a third of the CPU where Parquet is read. Workers return it after a job (`FreeMemory`);
    # a negative value would forbid that.
    "MIMALLOC_PURGE_DELAY": "600000",
}
