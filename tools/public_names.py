"""Write the table in ``mm_assets/__init__.py``: public names, and the module of each.

    python -m tools.public_names

A name is public when the module that defines it lists it in ``__all__``. Names that a module only imports are
passed over, and so are the rooms that users of the library do not import from.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "mm_assets" / "__init__.py"
SOURCES = ("model", "storage", "formats", "filters", "dataset.py")  # below mm_assets/

_BEGIN, _END = "# Written by `make public-names`:\n", "# Written by hand:\n"
_TEMPLATE = """
if TYPE_CHECKING:
{imports}

MODULES = {modules}
"""


def public_names() -> dict[str, str]:
    """The module of each public name, sorted by module and name.

    Raises:
        ValueError: Two modules define a public name.
    """
    found: dict[str, str] = {}
    for path in _modules():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in sorted(_declared(ast.parse(path.read_text()))):
            if name in found:
                raise ValueError(f"{name} is public in {found[name]} and in {module}")
            found[name] = module
    return found


def render() -> str:
    """The text of the module with the table of the names as they are now."""
    names = public_names()
    members: dict[str, list[str]] = defaultdict(list)
    for name, module in names.items():
        members[module].append(name)
    # "as": that is how a type checker tells what is passed on from what is only used.
    imports = "\n".join(
        f"    from {module} import {name} as {name}" for module in members for name in members[module]
    )
    table = _TEMPLATE.format(imports=imports, modules=dict(sorted(names.items())))
    before, _, rest = TARGET.read_text().partition(_BEGIN)
    return _formatted(f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}")


def main() -> None:
    """Write the table anew."""
    TARGET.write_text(render())


def _modules() -> Iterator[Path]:
    for source in SOURCES:
        path = ROOT / "mm_assets" / source
        found = [path] if path.suffix else path.rglob("*.py")
        yield from sorted(found)


def _declared(tree: ast.Module) -> set[str]:
    """The names in ``__all__`` that the module itself defines."""
    listed: set[str] = set()
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if "__all__" in names and isinstance(node.value, ast.List):  # else it passes on those of others
                listed.update(ast.literal_eval(node.value))
            defined |= names
    return listed & defined


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    main()
