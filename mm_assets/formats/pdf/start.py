"""Script that a process for PDFs runs: it imports the very copy of this package that the script lies in.

The folder in which a user works is not searched for modules. What the parent has in its path is searched
last.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

_PACKAGE = "mm_assets"


def _import_package() -> None:
    folder = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    sys.modules[_PACKAGE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _main(descriptor: str, settings: str) -> None:
    options = json.loads(settings)
    sys.path += [folder for folder in options["path"] if folder not in sys.path]
    _import_package()
    from mm_assets.formats.pdf import Limits
    from mm_assets.formats.pdf.child import serve

    serve(int(descriptor), Limits(**options["limits"]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
