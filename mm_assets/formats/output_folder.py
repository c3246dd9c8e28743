"""Check that an output folder can be written, made before any work is done for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mm_assets.formats.error_places import located
from mm_assets.formats.storage import filesystem, is_remote, local_path
from mm_assets.formats.store_errors import is_access_denied


def refuse_unwritable(folder: str) -> None:
    """Raise the error that writing into a folder or URL prefix would end in; the folder need not exist.

    On S3, an upload is begun and given up: nothing appears. Of other stores it only shows that they refuse to
    list.

    Raises:
        OSError: the folder cannot be written. Errors of object store clients pass through.
    """
    if not is_remote(folder):
        _refuse_unwritable_path(os.path.abspath(local_path(folder)))
        return
    fs, path = filesystem(folder)
    with located(folder):
        try:
            fs.ls(path, detail=False)
        except FileNotFoundError:
            pass
        except PermissionError as error:  # who may write need not be allowed to list
            if not is_access_denied(error):
                raise
        begin_upload = getattr(fs, "refuse_unwritable", None)
        if begin_upload is not None:
            begin_upload(path)


@contextmanager
def no_empty_folders(folder: str) -> Iterator[None]:
    """Remove, in the end, a folder that was made in the block, and those above it, if nothing is in it."""
    made = [] if is_remote(folder) else [os.path.abspath(local_path(folder))]
    while made and not os.path.lexists(above := os.path.dirname(made[-1])):
        made.append(above)
    made = [path for path in made if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # it holds something, or was never made
                os.rmdir(path)


def _refuse_unwritable_path(path: str) -> None:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if not os.access(path, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), path)
