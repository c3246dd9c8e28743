"""Variables for the libraries of workers, which read them when they are loaded.

Commands set them for themselves, as they fork their workers; the server of other processes gets them at its
start. What the user has set stays.
"""

WORKER_ENVIRONMENT = {
    # By default numpy starts a spinning thread per core, and no worker multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # Milliseconds after which Arrow's allocator returns freed memory to the system, which clears it again for
    # the next batch. With 10, its default, that is up to a third of the CPU. With 200 nine in ten of these page
    # faults are gone, for 30 MiB at the peak; with a second nearly all, for 60 to 100. Workers return memory
    # after a job, too (`FreeMemory`), which a negative value would forbid.
    "MIMALLOC_PURGE_DELAY": "200",
}
