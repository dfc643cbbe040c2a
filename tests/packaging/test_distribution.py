"""What users install: a wheel made from the source distribution holds the stubs and the C parts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.layout import REPOSITORY, leaf_packages, protos

NATIVE = Path("aliquot/agent/native")
STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from an sdist, with this environment's own build tools: no network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Paths of everything in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_holds_the_stubs_of_every_proto(names: set[str]) -> None:
    expected = {proto.removesuffix(".proto") + suffix for proto in protos() for suffix in STUB_SUFFIXES}
    assert expected
    assert expected - names == set()


def test_holds_every_leaf_package_and_nothing_beside_the_namespace(names: set[str]) -> None:
    assert {f"aliquot/{leaf.name}/py.typed" for leaf in leaf_packages()} - names == set()
    assert "aliquot/__init__.py" not in names
    top_level = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top_level == {"aliquot"}


def test_holds_the_c_parts_for_this_platform(wheel: Path, names: set[str]) -> None:
    assert wheel.stem.split("-")[-3:-1] == ["py3", "none"]
    assert not wheel.stem.endswith("-any")
    source = REPOSITORY / "agent" / NATIVE
    if not (source / "Makefile").is_file():
        pytest.skip("this tree has no C parts")
    libraries = {name for name in names if name.startswith(str(NATIVE)) and ".so" in Path(name).name}
    built_here = {str(NATIVE / path.relative_to(source)) for path in source.rglob("*.so*")}
    assert libraries
    assert built_here - libraries == set()
    assert not any(name.endswith((".c", ".o")) for name in names)


def test_installs_and_imports_its_own_stubs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True, text=True)
    for proto in protos():
        module = proto.removesuffix(".proto").replace("/", ".") + "_pb2_grpc"
        # The checkout's roots are on this interpreter's path too; the wheel's come first.
        program = f"import sys; sys.path.insert(0, {str(site)!r}); import {module} as stub; print(stub.__file__)"
        result = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
        assert result.stdout.startswith(str(site))
