"""Where the source roots are and what they hold, read from the tree itself so that no list can go stale."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def source_roots() -> list[Path]:
    """The roots of the namespace, as pyproject.toml names them."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return [REPOSITORY / name for name in project["tool"]["hatch"]["build"]["dev-mode-dirs"]]


def leaf_packages() -> list[Path]:
    """Folders directly below the namespace: aliquot.v1, aliquot.common and so on."""
    return sorted(
        path
        for root in source_roots()
        for path in (root / "aliquot").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    )


def python_folders() -> list[Path]:
    """Every folder below a leaf, the leaf included, that holds Python modules."""
    return sorted({path.parent for leaf in leaf_packages() for path in leaf.rglob("*.py")})


def modules(*root_names: str) -> list[str]:
    """Dotted names of every module below these roots (all when none is named), `__main__` left out."""
    roots = [root for root in source_roots() if not root_names or root.name in root_names]
    return sorted(
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for root in roots
        for path in (root / "aliquot").rglob("*.py")
        if path.name != "__main__.py"
    )


def protos() -> list[str]:
    """Paths of the contract's files below their root, such as `aliquot/v1/leases.proto`."""
    root = REPOSITORY / "proto"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
