"""Names in the tar layout: the WebDataset key of a sample and the file name of a partition."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from mm_assets.formats.error_lines import not_utf8

MAX_KEY = 80  # leaves 20 of USTAR's 100 bytes for ".<position>.<ext>"
# Hugging Face skips names that begin with "__"; shells take "-" for an option.
_ESCAPED_FIRST = {"_": "%5F", "-": "%2D", "~": "%7E"}


def sample_key(sample_id: str) -> str:
    """Return the WebDataset key of a sample: 1 to 80 ASCII characters without dot and slash, unique per id.

    The id is percent-encoded, dots and a leading ``_ - ~`` too. Where that would be empty or too long the key
    is ``=`` and the SHA-256 of the id in hex (an encoded id has no ``=``). It depends on the id alone.

    Raises:
        ValueError: the id has lone surrogates, and so no UTF-8 form.
    """
    try:
        raw = sample_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{sample_id!r} holds lone surrogates and has no UTF-8 form") from error
    if 0 < len(raw) <= MAX_KEY:
        key = quote(raw, safe="").replace(".", "%2E")
        key = _ESCAPED_FIRST.get(key[0], key[0]) + key[1:]
        if len(key) <= MAX_KEY:
            return key
    return "=" + sha256(raw).hexdigest()


@lru_cache(maxsize=1 << 17)  # each run asks for those of all partitions several times
def partition_filename(partition: str) -> str:
    """Return the file name of a partition without its extension, by the rule of `sample_key`.

    Raises:
        ValueError: as `sample_key`.
    """
    try:
        return sample_key(partition)
    except ValueError as error:
        raise ValueError(not_utf8(partition)) from error
