"""Base classes of the exceptions that this package defines."""

from __future__ import annotations

from typing import Any

__all__ = ["DataError", "MmAssetsError", "ShardError"]


class MmAssetsError(Exception):
    """Base class of all exceptions of this package.

    Each of them has a standard base as well (``ValueError`` for data, ``OSError`` for storage), so that code
    which catches those goes on working. Wrong arguments are plain ``ValueError`` or ``TypeError``.

    All of them pickle, whatever their constructors take: they cross from worker processes to the parent.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        args = super().__reduce__()[1]  # arguments of ``__new__``; an OSError keeps some of them elsewhere
        return _restored, (type(self), args, self.__dict__)


class DataError(MmAssetsError, ValueError):
    """Data is not as required; the message says where and why.

    Raised where no narrower class fits: for rows that are no items of samples, and for tars and caches whose
    parts do not fit together.
    """


class ShardError(MmAssetsError, ValueError):
    """A file cannot be read as interleaved data; the message names file, sample and field."""


def _restored(kind: type[MmAssetsError], args: tuple[Any, ...], state: dict[str, Any]) -> MmAssetsError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
