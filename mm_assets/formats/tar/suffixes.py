"""Suffixes of tar files."""

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
PACKED_TAR_SUFFIXES = (  # compressions that are not supported
    *(
        ".tar.bz2",
        ".tbz2",
        ".tbz",
        ".tar.xz",
        ".txz",
        ".tar.zst",
        ".tzst",
        ".tar.lz4",
        ".tar.lzma",
        ".tlz",
        ".tar.lz",
    ),
    *(".tar.br", ".tar.sz", ".tar.z", ".taz"),
)
