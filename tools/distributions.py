"""Builds what is released: the source distribution, and from it the pure wheel and the wheel of nodes.

    python -m tools.distributions [--glibc 2.17] [--machine x86_64] --out dist

In the folder itself is one wheel, that of nodes, since two of one project can't be installed at once: `pip install
dist/*.whl`. The pure one, for systems that are not Linux and for images without C parts, is in `any` below it.

The wheel of nodes is for machines whose C library is no older than `--glibc`; without it, than the newest symbol that
this machine's compiler makes its libraries want. The same commit gives the same bytes: times are the commit's
(SOURCE_DATE_EPOCH), and folders have the same names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILER = ROOT / "tools" / "glibc-cc"
ANYWHERE = "any"


def build_sdist(out: Path) -> Path:
    """Put the source distribution there."""
    _build("--sdist", ROOT, out, {})
    (path,) = out.glob("aliquot-*.tar.gz")
    return path


def build_wheel(sdist: Path, out: Path, *, native: bool, glibc: str = "", machine: str = "x86_64") -> Path:
    """Put a wheel there, built from a source distribution as pip would, with the C parts or without."""
    settings = {"ALIQUOT_NATIVE": "yes" if native else "no"}
    if native and glibc:
        settings |= {"CC": str(COMPILER), "GLIBC": glibc, "MACHINE": machine, "ZIG": _zig()}
    with tempfile.TemporaryDirectory(prefix="aliquot-build-") as scratch:
        shutil.unpack_archive(sdist, scratch, filter="data")
        (tree,) = Path(scratch).iterdir()
        made = Path(scratch) / "made"
        _build("--wheel", tree, made, settings)
        (wheel,) = made.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy2(wheel, out / wheel.name)
    return out / wheel.name


def distribute(out: Path, *, glibc: str = "", machine: str = "x86_64") -> None:
    """Fill a folder with all three, laid out as the text above says."""
    sdist = build_sdist(out)
    build_wheel(sdist, out / ANYWHERE, native=False)
    build_wheel(sdist, out, native=True, glibc=glibc, machine=machine)


def _zig() -> str:
    """The compiler's program. Raises SystemExit."""
    found = find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "error: an older C library needs ziglang: `make dist GLIBC=2.17`, `make bundle` and `make release` bring it"
        )
    return str(Path(found.submodule_search_locations[0]) / "zig")


def commit_time_s() -> str:
    """When the commit was made, as SOURCE_DATE_EPOCH; what is set already holds."""
    said = os.environ.get("SOURCE_DATE_EPOCH")
    if said:
        return said
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    return shown.stdout.strip() or "1580601600"


def _build(kind: str, source: Path, out: Path, settings: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(source)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time_s()} | dict(settings)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"error: the build failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.distributions", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--glibc", default="", help="the oldest C library that the wheel of nodes is for")
    parser.add_argument("--machine", default="x86_64")
    options = parser.parse_args()
    distribute(options.out, glibc=options.glibc, machine=options.machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
