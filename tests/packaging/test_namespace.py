"""Five source roots make one namespace package, and the base install stays light."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

from tests.packaging.layout import REPOSITORY, leaf_packages, modules, python_folders, source_roots

# Top-level modules that only extras bring; the base install must do without them.
EXTRAS = (
    "grpc_health",
    "grpc_reflection",
    "kubernetes",
    "matplotlib",
    "numpy",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pynvml",
    "scipy",
)


def test_no_root_claims_the_namespace() -> None:
    # An aliquot/__init__.py in one root would hide the packages of all others.
    assert [root for root in source_roots() if (root / "aliquot" / "__init__.py").exists()] == []


def test_every_leaf_package_ships_its_types() -> None:
    assert [leaf for leaf in leaf_packages() if not (leaf / "py.typed").is_file()] == []


def test_no_stub_is_left_of_a_message_file_that_is_gone() -> None:
    stubs = [path for root in source_roots() for path in root.rglob("*_pb2.py")]
    assert stubs
    assert [path for path in stubs if not path.with_name(f"{path.name.removesuffix('_pb2.py')}.proto").exists()] == []


def test_every_package_says_why_it_exists() -> None:
    # A folder without __init__.py would also be left out of the layers.
    inits = [folder / "__init__.py" for folder in python_folders()]
    silent = [path for path in inits if not path.is_file() or not ast.get_docstring(ast.parse(path.read_text()))]
    assert [str(path.relative_to(REPOSITORY)) for path in silent] == []


def test_every_module_imports() -> None:
    errors: dict[str, str] = {}
    for name in modules():
        try:
            importlib.import_module(name)
        except ImportError as error:
            if error.name != "torch":  # which may be left out: make test TORCH=no
                errors[name] = str(error)
    assert errors == {}


def test_client_imports_without_the_extras() -> None:
    program = "\n".join(
        [
            "import importlib, sys",
            # None in sys.modules makes an import fail as if the distribution weren't installed.
            f"sys.modules.update(dict.fromkeys({EXTRAS!r}))",
            f"for name in {modules('client', 'common', 'proto')!r}:",
            "    importlib.import_module(name)",
        ]
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
