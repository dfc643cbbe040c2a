"""The build hook: Python stubs of the contract, the SDK's twin for threads, the C parts, and the console's page.

None is committed. Hatchling runs the hook for wheels and for editable installs; `make proto` writes stubs and twin
by itself (`python hatch_build.py`). Both write beside their sources, where editable installs look.

The C parts are for nodes, and for NVML where a GPU is elsewhere; a wheel without them is pure Python (`py3-none-any`).
`ALIQUOT_NATIVE` says which:

    yes    compile, or fail: for the wheel of nodes
    no     leave them out: for the wheel of everybody else
    unset  compile on Linux where that works (docs/decisions/0023)

The page is built by npm where it is not there yet, for source distributions, too, which carry it: wheels made from them
need no npm. Without npm the console serves REST alone, and says so. Editable installs leave it to `make page`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google.rpc
import grpc_tools
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_ROOT = Path("proto")
OTHER_PROTO_ROOTS = (Path("kube"),)
"""Roots with interfaces of others, as far as we use them."""
# Folders with a Makefile, each of which builds into a folder `lib` of its package's `native`.
NATIVE_DIRS = (
    Path("agent/aliquot/agent/native/preload"),
    Path("remote/aliquot/remote/native"),
    Path("simgpu/aliquot/simgpu/native"),
)
NATIVE_LIBS = tuple(f"{root}/aliquot/{root}/native/lib" for root in ("agent", "remote", "simgpu"))
SDK = Path("client/aliquot/client")
TWINS_BY_HAND = frozenset({"__init__.py", "seam.py", "leasing.py"})
"""Where tasks and threads truly differ: modules of the same names on both sides."""
TWIN_HEADER = "# Written by the build from {source} (docs/decisions/0019). Change that, then `make sync`.\n"
TWIN_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\ban `async with`", "a `with`"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b(_?)Async([A-Z]\w*)", r"\1\2"),
        (r"\b_async\b", "_sync"),
        (r"__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\bgrpc\.aio\b", "grpc"),
        (r"\bAioRpcError\b", "RpcError"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"`aclose`", "`close`"),
        (r"\bfor one event loop\b", "for any number of threads"),
    )
)
_GLIBC_VERSION = re.compile(rb"GLIBC_2\.(\d+)(?:\.\d+)?\0")
"""As a library's table of strings names the version that a symbol came with."""
_GLIBC_MIN = 17
"""The oldest that has a tag for each of these processors."""
_MACHINES = {62: "x86_64", 183: "aarch64"}
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
NATIVE_VARIABLE = "ALIQUOT_NATIVE"
PAGE_SOURCES = Path("console/page")
PAGE = Path("console/aliquot/console/static")
PAGE_ARTIFACTS = "/console/aliquot/console/static/**"


class BuildError(RuntimeError):
    """The build can't go on; the message says what to install or set."""


class AliquotBuildHook(BuildHookInterface[Any]):
    """Generates and compiles before hatchling collects files, and gives a wheel with C parts this platform's tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run for wheels (standard and editable), and for source distributions, which carry sources and the page."""
        root = Path(self.root)
        if version != "editable" and build_page(root):
            build_data["artifacts"] += [PAGE_ARTIFACTS]
        if self.target_name != "wheel":
            return
        generate_stubs(root)
        generate_twin(root)
        build_data["artifacts"] += [
            "/client/aliquot/client/_sync/*.py",
            "/proto/aliquot/v1/*_pb2.py",
            "/proto/aliquot/v1/*_pb2.pyi",
            "/proto/aliquot/v1/*_pb2_grpc.py",
            "/proto/aliquot/v1/*_pb2_grpc.pyi",
            "/kube/aliquot/kube/node/protos/*_pb2*.py",
            "/kube/aliquot/kube/node/protos/*_pb2*.pyi",
        ]
        if not compile_native(root):
            return
        build_data["artifacts"] += [f"/{folder}/**/*.so*" for folder in NATIVE_LIBS]
        # The C parts are plain shared libraries: any Python will do, this platform only.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(native_libraries(root))}"


def generate_stubs(root: Path) -> list[Path]:
    """Generate messages, services and their types beside each `.proto` of every root; return the files that changed.

    Files are put in place one by one and only when they differ, so that a process importing them meanwhile
    never reads half a file and nothing is rebuilt for nothing.

    Raises:
        BuildError: a plugin is missing, or protoc refused a file.
    """
    return [path for each in (PROTO_ROOT, *OTHER_PROTO_ROOTS) for path in _generate(root / each)]


def generate_twin(root: Path) -> list[Path]:
    """Write the SDK for threads from the SDK for asyncio: `_sync` from `_async`; return the files that changed.

    What is left of a module when `async`, `await` and the prefix `Async` are gone works with threads.
    """
    target = root / SDK / "_sync"
    with tempfile.TemporaryDirectory(prefix="aliquot-twin-") as scratch:
        for source in sorted((root / SDK / "_async").glob("*.py")):
            if source.name not in TWINS_BY_HAND:
                header = TWIN_HEADER.format(source=source.relative_to(root))
                (Path(scratch) / source.name).write_text(header + for_threads(source.read_text("utf-8")), "utf-8")
        # What no module stands for any more would be imported, and packed, all the same.
        for path in target.glob("*.py"):
            if path.name not in TWINS_BY_HAND and not (Path(scratch) / path.name).exists():
                path.unlink()
        return _move_changed(Path(scratch), target)


def for_threads(text: str) -> str:
    """A module of `_async` as it is for threads."""
    for pattern, replacement in TWIN_RULES:
        text = pattern.sub(replacement, text)
    return text


def _generate(source_root: Path) -> list[Path]:
    protos = sorted(path.relative_to(source_root) for path in source_root.rglob("*.proto"))
    if not protos:
        return []
    with tempfile.TemporaryDirectory(prefix="aliquot-protoc-") as scratch:
        command = [sys.executable, "-m", "grpc_tools.protoc"]
        command += [f"-I{directory}" for directory in [source_root, *_library_includes()]]
        command += [f"--plugin={name}={_find_script(name)}" for name in PLUGINS]
        command += [f"--{kind}_out={scratch}" for kind in ("python", "grpc_python")]
        command += [f"--{kind}_out=quiet:{scratch}" for kind in ("mypy", "mypy_grpc")]
        result = subprocess.run(
            [*command, *map(str, protos)], check=False, capture_output=True, text=True, cwd=source_root
        )
        if result.returncode != 0:
            raise BuildError(f"protoc refused what is in {source_root}:\n{result.stderr}")
        # As of the twin: a file that no message file stands for any more says the same messages a second time.
        for path in source_root.rglob("*_pb2*.py*"):
            if path.suffix in {".py", ".pyi"} and not (Path(scratch) / path.relative_to(source_root)).exists():
                path.unlink()
        return _move_changed(Path(scratch), source_root)


def compile_native(root: Path) -> bool:
    """Build the C parts by their own Makefiles; False where they are left out.

    Raises:
        BuildError: no compiler or make where they were demanded, the compilation failed, or the variable is no word.
    """
    wanted = os.environ.get(NATIVE_VARIABLE, "")
    if wanted not in {"", "yes", "no"}:
        raise BuildError(f"{NATIVE_VARIABLE}={wanted}: write yes or no")
    if wanted == "no" or (not wanted and not sys.platform.startswith("linux")):
        return False
    missing = [tool for tool in (os.environ.get("CC", "cc"), "make") if shutil.which(tool.split()[0]) is None]
    if missing and not wanted:
        print(f"without the C parts, which need {' and '.join(missing)}", file=sys.stderr)
        return False
    if missing:
        raise BuildError(f"the C parts need {' and '.join(missing)}: `apt-get install gcc libc6-dev make`")
    for directory in NATIVE_DIRS:
        result = subprocess.run(["make", "-C", str(root / directory)], check=False, capture_output=True, text=True)
        if result.returncode != 0:
            said = f"the C parts in {directory} don't compile:\n{result.stdout}{result.stderr}"
            if wanted:
                raise BuildError(said)
            # Most likely a machine without the C library's headers, whose user may need no node's parts.
            print(f"without the C parts: {said}", file=sys.stderr)
            return False
    return True


def native_libraries(root: Path) -> list[Path]:
    """What the C parts were built into."""
    return sorted(path for folder in NATIVE_LIBS for path in (root / folder).rglob("*.so*") if path.is_file())


def platform_of(libraries: Iterable[Path]) -> str:
    """The platform tag that holds for all of these libraries: `manylinux_2_34_x86_64` where the newest symbol that one
    of them wants came with glibc 2.34. What pip reads of a tag is a promise, so it is read from the libraries.

    Raises:
        BuildError: they are for different processors, or for one that has no name here.
    """
    newest, machines = _GLIBC_MIN, set()
    glibc = False
    for library in libraries:
        content = library.read_bytes()
        machines.add(int.from_bytes(content[18:20], "little"))
        wanted = [int(minor) for minor in _GLIBC_VERSION.findall(content)]
        glibc |= bool(wanted)
        newest = max(newest, *wanted) if wanted else newest
    if len(machines) != 1 or not machines <= _MACHINES.keys():
        raise BuildError(f"the C parts are for the processors {sorted(machines)}, by ELF's numbers: run `make clean`")
    machine = _MACHINES[machines.pop()]
    return f"manylinux_2_{newest}_{machine}" if glibc else f"linux_{machine}"


def build_page(root: Path) -> bool:
    """Have npm build the page where it is not there; False where it can't be had: the console then serves REST alone.

    Raises:
        BuildError: npm is there, and failed.
    """
    if (root / PAGE / "index.html").is_file():
        return True
    npm = shutil.which("npm")
    if npm is None or not (root / PAGE_SOURCES).is_dir():
        print("without the page, which needs node and npm: the console serves REST alone", file=sys.stderr)
        return False
    for command in ([npm, "ci"], [npm, "run", "bundle"]):
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root / PAGE_SOURCES)
        if result.returncode != 0:
            raise BuildError(f"`{' '.join(command[1:])}` failed in {PAGE_SOURCES}:\n{result.stdout}{result.stderr}")
    return True


def _library_includes() -> list[Path]:
    """Folders of the .proto files that libraries bring: protobuf's own and google/rpc."""
    well_known = Path(grpc_tools.__path__[0]) / "_proto"
    return [well_known, *(Path(path).parent.parent for path in google.rpc.__path__)]


def _find_script(name: str) -> str:
    """Find a protoc plugin beside this interpreter (a venv not activated) or on PATH (an isolated build)."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise BuildError(f"{name} is missing: `pip install mypy-protobuf`")
    return found


def _move_changed(source: Path, target: Path) -> list[Path]:
    changed = []
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        destination = target / path.relative_to(source)
        if destination.is_file() and destination.read_bytes() == path.read_bytes():
            continue
        # Same folder as the destination, because a rename is atomic only within one file system.
        staging = destination.with_name(f".{destination.name}.{os.getpid()}")
        shutil.copyfile(path, staging)
        staging.replace(destination)
        changed.append(destination)
    return changed


if __name__ == "__main__":
    try:
        here = Path(__file__).resolve().parent
        for made in generate_stubs(here) + generate_twin(here):
            print(f"generated {made.relative_to(here)}")
    except BuildError as error:
        sys.exit(f"error: {error}")
