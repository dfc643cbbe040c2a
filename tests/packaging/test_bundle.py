"""The folder for machines without a network: what it holds, and that a machine needs nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import hatch_build
from tests.packaging.layout import REPOSITORY
from tools.bundling.__main__ import FILES, HARDWARE, write_sums
from tools.bundling.required import Target, closure, requirements

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TARGET = Target.of("3.12", "manylinux_2_28_x86_64")


def put_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> None:
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\n")


def test_what_another_python_needs_is_told_by_its_own_markers(tmp_path: Path) -> None:
    put_wheel(
        tmp_path,
        "a",
        "1.0",
        [
            'b>=2; python_version >= "3.12"',
            'c; python_version < "3.12"',
            'd; extra == "more"',
            'e; sys_platform == "x"',
        ],
    )
    put_wheel(tmp_path, "b", "1.0")
    put_wheel(tmp_path, "c", "1.0")
    assert closure(["a"], TARGET, tmp_path) == ({"a"}, {"b>=2"})
    assert closure(["a"], Target.of("3.11", TARGET.platform), tmp_path) == ({"a", "c"}, set())
    put_wheel(tmp_path, "d", "1.0")
    assert closure(["a[more]"], Target.of("3.11", TARGET.platform), tmp_path) == ({"a", "c", "d"}, set())


def test_only_what_was_left_out_is_missing() -> None:
    whole = requirements(REPOSITORY / "pyproject.toml", ["agent", "remote-server"], [])
    lean = requirements(REPOSITORY / "pyproject.toml", ["agent", "remote-server"], ["torch"])
    assert [line for line in whole if line not in lean] == ["torch>=2.10"]
    assert requirements(REPOSITORY / "pyproject.toml", ["pool"], [])[1:] != []


@pytest.mark.parametrize(("python", "platform"), [("3.12", "linux"), ("python3", "manylinux_2_28_x86_64")])
def test_a_target_that_names_nothing_is_refused(python: str, platform: str) -> None:
    with pytest.raises(SystemExit, match="write, say"):
        Target.of(python, platform)


def library(path: Path, *versions: str, machine: int = 62) -> Path:
    header = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    path.write_bytes(header + b"".join(f"\0{version}\0".encode() for version in versions))
    return path


def test_the_tag_is_that_of_the_newest_symbol(tmp_path: Path) -> None:
    old = library(tmp_path / "a.so", "GLIBC_2.2.5", "GLIBC_2.3.2")
    new = library(tmp_path / "b.so", "GLIBC_2.2.5", "GLIBC_2.34")
    other = library(tmp_path / "c.so", "GLIBC_2.17", machine=183)
    assert hatch_build.platform_of([old]) == "manylinux_2_17_x86_64"
    assert hatch_build.platform_of([old, new]) == "manylinux_2_34_x86_64"
    assert hatch_build.platform_of([other]) == "manylinux_2_17_aarch64"
    assert hatch_build.platform_of([library(tmp_path / "d.so")]) == "linux_x86_64", "of another C library"
    with pytest.raises(hatch_build.BuildError, match="processors"):
        hatch_build.platform_of([old, other])


def test_the_tag_agrees_with_what_the_linker_reads() -> None:
    libraries = hatch_build.native_libraries(REPOSITORY)
    if shutil.which("readelf") is None or not libraries:
        pytest.skip("needs readelf, and the C parts")
    said = subprocess.run(["readelf", "--version-info", "-W", *libraries], capture_output=True, text=True, check=True)
    wanted = [word.split(".") for word in said.stdout.split() if word.startswith("GLIBC_2.")]
    newest = max(17, *(int(parts[1]) for parts in wanted))
    assert hatch_build.platform_of(libraries).startswith(f"manylinux_2_{newest}_")


def small_bundle(folder: Path, python: str) -> Path:
    """With nothing to install."""
    folder.mkdir()
    for path in FILES.iterdir():
        shutil.copy2(path, folder)
    (folder / "target").write_text(f"python={python}\nplatform={TARGET.platform}\n")
    (folder / "requirements.txt").write_text("aliquot\n")
    write_sums(folder)
    return folder


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(folder / "install.sh")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHON": sys.executable},
    )


def test_another_python_and_a_damaged_folder_are_refused(tmp_path: Path) -> None:
    other = install(small_bundle(tmp_path / "other", "3.9"))
    assert other.returncode == 1
    assert f"make bundle PYTHON={PYTHON}" in other.stderr
    damaged = small_bundle(tmp_path / "damaged", PYTHON)
    (damaged / "requirements.txt").write_text("something else\n")
    said = install(damaged)
    assert said.returncode == 1
    assert "copy it again" in said.stderr
    assert not (damaged / "env").exists()


def test_what_the_stages_import_comes_along(tmp_path: Path) -> None:
    copied = {path for pattern in HARDWARE for path in REPOSITORY.glob(pattern)}
    for path in copied:
        target = tmp_path / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    done = subprocess.run(
        [sys.executable, "-m", "bench.stages", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "checkpoint" in done.stdout


@pytest.mark.slow
@pytest.mark.root("to have a network of its own")
@pytest.mark.timeout(1500)
def test_a_machine_without_a_network_needs_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    made = subprocess.run(
        ["make", "bundle", f"PYTHON={PYTHON}", f"ARGS=--out {folder}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if "pip can't download" in made.stderr or "No matching distribution" in made.stderr:
        pytest.skip("needs PyPI")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout.splitlines()[-1])["size_mib"] <= 60
    # The interpreter below the test's own environment, which has nothing installed that would help.
    script = f"""
        ip route | grep . && exit 3
        export TMPDIR=$(mktemp -d /tmp/aq-XXXX) PYTHON={os.path.realpath(sys.executable)}
        sh {folder}/install.sh
        {folder}/env/bin/python -m aliquot.simgpu create $TMPDIR/gpus --models H100-80 >&2
        eval "$({folder}/env/bin/python -m aliquot.simgpu env $TMPDIR/gpus)"
        sh {folder}/run-hardware.sh --rehearse
        code=$?; rm -rf $TMPDIR; exit $code
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "ALIQUOT_", "COV"))}
    command = ["unshare", "--net", "sh", "-c", f"ip link set lo up; {script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["stage"]: line["status"] for line in lines}
    assert done.returncode == 0, (lines, done.stderr[-3000:])
    assert {name for name, status in found.items() if status == "ok"} >= {"doctor", "hardware", "demo", "poll", "cuda"}
    assert all("why" in line for line in lines if line["status"] == "not run")
