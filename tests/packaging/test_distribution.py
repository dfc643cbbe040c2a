"""What users install: a pure wheel that works anywhere with what it requires, and one with the C parts for nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hatch_build
from tests.client.scripted_coordinator import ScriptedCoordinator
from tests.packaging.distributions import Clean
from tests.packaging.layout import REPOSITORY, leaf_packages, modules, protos

STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
ANYWHERE = ("client", "common", "proto")
"""Roots of the base install."""
WITH_AN_EXTRA = {"aliquot.common.certificates"}
"""Imported only where certificates are made, by parts whose extras bring what that takes."""
# What other systems lack and the base install must do without. Done after the libraries are imported, which know how.
ELSEWHERE = f"""
import asyncio, grpc.aio, importlib, multiprocessing, os, rich.console, rich.progress, selectors, signal, socket
import subprocess, sys, tempfile, time, yaml, google.rpc.error_details_pb2, grpc_status.rpc_status
for name in ("fcntl", "grp", "pwd", "pty", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for module, names in (
    (os, "fork forkpty getpgid getpgrp getuid geteuid killpg pidfd_open setsid tcgetpgrp tcsetpgrp uname waitid"),
    (signal, "SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 pidfd_send_signal"),
    (socket, "AF_UNIX SOCK_CLOEXEC"),
    (time, "clock_gettime clock_gettime_ns"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in {[name for name in modules(*ANYWHERE) if name not in WITH_AN_EXTRA]!r}:
    importlib.import_module(name)
from aliquot.cli.main import main
codes = []
for command in sys.argv[1:]:
    try:
        codes.append(main(command.split()))
    except SystemExit as helped:
        codes.append(helped.code)
print(codes)
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def coordinator() -> Iterator[str]:
    server = ScriptedCoordinator()
    server.start()
    yield server.address
    server.stop()


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_base_wheel_is_for_any_system_and_whole(pure: Path) -> None:
    names = names_in(pure)
    assert pure.name.endswith("-py3-none-any.whl")
    assert [name for name in names if name.endswith((".c", ".h", ".o", "Makefile")) or ".so" in name] == []
    stubs = {proto.removesuffix(".proto") + suffix for proto in protos() for suffix in STUB_SUFFIXES}
    assert stubs
    assert stubs - names == set()
    assert {"aliquot/client/_sync/pool.py", "aliquot/client/_sync/seam.py"} - names == set()
    assert {f"aliquot/{leaf.name}/py.typed" for leaf in leaf_packages()} - names == set()
    assert "aliquot/__init__.py" not in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"aliquot"}


def test_units_come_along(pure: Path) -> None:
    written = {each.name for each in (REPOSITORY / "deploy" / "systemd").iterdir()}
    assert {f"aliquot/common/systemd/{name}" for name in written} - names_in(pure) == set()


def test_the_page_comes_along(pure: Path, sdist: Path) -> None:
    if not (REPOSITORY / hatch_build.PAGE / "index.html").is_file():
        pytest.skip("needs the built page: make page")
    static = {name for name in names_in(pure) if name.startswith("aliquot/console/static/")}
    assert {name.rpartition(".")[2] for name in static} == {"css", "html", "js", "svg"}
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert [name for name in names if name.endswith("console/static/index.html")]
    assert [name for name in names if name.endswith("console/page/package-lock.json")]
    assert [name for name in names if "node_modules" in name] == []


def test_without_npm_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / hatch_build.PAGE_SOURCES).mkdir(parents=True)
    assert not hatch_build.build_page(tmp_path)


def test_the_source_distribution_holds_sources_only(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert [name for name in names if name.endswith(".c")]
    assert [name for name in names if name.endswith((".o", ".pyc", "_pb2.py")) or ".so" in Path(name).name] == []
    assert {Path(name).name for name in names if "/_sync/" in name} == hatch_build.TWINS_BY_HAND


def test_it_works_with_what_it_requires(laptop: Clean, coordinator: str) -> None:
    said = laptop.run("aliquot", "--help")
    assert said.returncode == 0, said.stderr
    assert said.stderr == "", "commands of extras are listed, not complained about"
    assert "(needs aliquot[coordinator])" in said.stdout
    planned = laptop.run("aliquot", "plan", "--nodes", "x")
    assert planned.returncode == 2
    assert "pip install 'aliquot[coordinator]'" in planned.stderr
    asked = laptop.run("aliquot", "--coordinator", coordinator, "alloc", "0.5", "--json")
    assert asked.returncode == 0, asked.stderr
    listed = laptop.run("aliquot", "--coordinator", coordinator, "ls")
    assert listed.returncode == 0, listed.stderr
    assert "0.5" in listed.stdout


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("aliquot-agent", "agent"),
        ("aliquot-coordinator", "coordinator"),
        ("aliquot-console", "console"),
        ("aliquot-kube", "kubernetes"),
        ("aliquot-kube-node", "kubernetes"),
        ("aliquot up", "pool"),
        ("aliquot demo", "pool"),
        ("aliquot doctor", "agent"),
    ],
)
def test_a_program_whose_extra_is_not_installed_names_it(laptop: Clean, program: str, extra: str) -> None:
    said = laptop.run(*program.split())
    assert said.returncode == 2, said.stderr
    assert f"pip install 'aliquot[{extra}]'" in said.stderr
    assert "Traceback" not in said.stderr


def test_it_works_where_linux_is_not(laptop: Clean, coordinator: str) -> None:
    commands = {
        "--help": 0,
        f"--coordinator {coordinator} alloc 0.5": 0,
        f"--coordinator {coordinator} ls": 0,
        f"--coordinator {coordinator} run --gpu 0.5 -- true": 6,  # no agent can be here
        "up": 2,
        "demo": 2,
    }
    ended = laptop.run("python", "-I", "-c", ELSEWHERE, *commands)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert dict(zip(commands, json.loads(ended.stdout.splitlines()[-1]), strict=True)) == commands, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "kind"),
    [("", "native"), ("macosx_14_0_arm64", "pure"), ("win_amd64", "pure"), ("linux_riscv64", "pure")],
)
def test_pip_takes_the_one_that_fits(pure: Path, native: Path, tmp_path: Path, platform: str, kind: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-index", "--dest", str(tmp_path)]
    command += [f"--find-links={wheel.parent}" for wheel in (pure, native)]
    command += ["--only-binary=:all:", f"--platform={platform}"] if platform else []
    subprocess.run([*command, "aliquot"], check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == [{"pure": pure, "native": native}[kind].name]


def test_what_is_built_is_installed_by_a_glob(dist: Path, tmp_path: Path) -> None:
    """Two wheels of one project in a folder are refused by pip and uv alike."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "bin" / "python")]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, dist.glob("*.whl"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_programs_run_once_it_is_installed_as_people_do(dist: Path, tmp_path: Path, tool: str) -> None:
    made = subprocess.run(
        ["make", "build/tools/installed"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip("needs PyPI")
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    commands = {
        "pip": f"'{sys.executable}' -m venv . && bin/pip install --quiet {dist}/*.whl",
        "uv": f"'{REPOSITORY}/build/tools/bin/uv' tool install --python '{sys.executable}' {dist}/*.whl",
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "ALIQUOT_", "COV"))}
    done = subprocess.run(
        ["sh", "-c", commands[tool]], cwd=tmp_path, env=kept | places, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [str(tmp_path / "bin" / "aliquot"), "--help"], capture_output=True, text=True, check=False, env=kept
    )
    assert said.returncode == 0, said.stderr
    assert "(needs aliquot[coordinator])" in said.stdout


@pytest.mark.slow
def test_the_wheel_of_nodes_holds_the_c_parts_for_this_platform(native: Path, tmp_path: Path) -> None:
    assert native.stem.split("-")[-3:-1] == ["py3", "none"]
    assert not native.stem.endswith("-any")
    names = names_in(native)
    built_here = {
        str(path.relative_to(REPOSITORY / root))
        for root in ("agent", "remote", "simgpu")
        for path in (REPOSITORY / root).rglob("*.so*")
    }
    assert built_here
    assert built_here - names == set()
    assert not any(name.endswith((".c", ".h", ".o", "Makefile")) for name in names)
    node = Clean.make(tmp_path / "env", native, "agent", "coordinator")
    for program in ("aliquot-agent", "aliquot-coordinator"):
        assert node.run(program, "--help").returncode == 0
    said = node.run(
        "python", "-c", "from aliquot.agent.enforce.preload import built_library as b; print(b().is_file())"
    )
    assert said.stdout == "True\n", said.stderr


@pytest.mark.parametrize(("wanted", "tools"), [("", ""), ("no", "/usr/bin")])
def test_without_a_compiler_the_c_parts_are_left_out(
    wanted: str, tools: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALIQUOT_NATIVE", wanted)
    monkeypatch.setenv("PATH", tools)
    assert not hatch_build.compile_native(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "tools", "said"), [("yes", "", "apt-get install gcc"), ("maybe", "/usr/bin", "write yes or no")]
)
def test_c_parts_that_are_demanded_are_never_left_out(
    wanted: str, tools: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALIQUOT_NATIVE", wanted)
    monkeypatch.setenv("PATH", tools)
    with pytest.raises(hatch_build.BuildError, match=said):
        hatch_build.compile_native(tmp_path)


def test_c_parts_that_do_not_compile_are_in_the_way_of_nodes_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in hatch_build.NATIVE_DIRS:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "Makefile").write_text("all:\n\tfalse\n")
    monkeypatch.setenv("ALIQUOT_NATIVE", "")
    assert not hatch_build.compile_native(tmp_path)
    monkeypatch.setenv("ALIQUOT_NATIVE", "yes")
    with pytest.raises(hatch_build.BuildError, match="don't compile"):
        hatch_build.compile_native(tmp_path)
