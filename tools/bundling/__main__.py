"""Fill a folder with everything that a machine without a network needs.

    python -m tools.bundling --python 3.12 --platform manylinux_2_28_x86_64 --out build/bundle

It holds the wheel of nodes, wheels of all that it requires for that Python on that platform, `install.sh`,
`run-hardware.sh` with what it runs, checksums, a bill of materials, and the licences of all of it. Left out are what
machines with cards have (PyTorch) and what only makes placement faster or better informed (numba, SciPy), unless
`--without` says otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tools.bundling.required import Target, fetch, requirements
from tools.distributions import ROOT, build_sdist, build_wheel
from tools.licences import check, listing
from tools.sbom import sbom

FILES = Path(__file__).resolve().parent / "files"
EXTRAS = ("agent", "coordinator", "remote-server")
WITHOUT = ("torch", "numba", "llvmlite", "scipy")
MOST_MIB = 60
HARDWARE = (
    "bench/hardware.py",
    "bench/stages/*.py",
    "bench/lib/hardware_*.py",
    "bench/lib/cuda_ways.py",
    "bench/lib/agent_figures.py",
)
"""What `run-hardware.sh` runs."""
NODE_GLIBC = "2.17"


def make(out: Path, target: Target, extras: list[str], without: list[str], wheel: Path | None) -> None:
    """Fill the folder, which is emptied first. `wheel`: our own, which else is built. Raises SystemExit."""
    shutil.rmtree(out, ignore_errors=True)
    wheels = out / "wheels"
    wheels.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="aliquot-bundle-") as scratch:
        if wheel is None:
            sdist = build_sdist(Path(scratch))
            wheel = build_wheel(sdist, Path(scratch), native=True, glibc=NODE_GLIBC, machine=target.machine)
        shutil.copy2(wheel, wheels)
        lines = requirements(ROOT / "pyproject.toml", extras, without)
        fetch(lines, target, wheels)
    check(sorted(wheels.glob("*.whl")))
    (out / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (out / "target").write_text(f"python={target.python}\nplatform={target.platform}\n", encoding="utf-8")
    for path in sorted(FILES.iterdir()):
        shutil.copy2(path, out)
    for pattern in HARDWARE:
        for path in sorted(ROOT.glob(pattern)):
            copy = out / "hardware" / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    found = sorted(wheels.glob("*.whl"))
    (out / "sbom.cdx.json").write_bytes(sbom(found, "aliquot bundle") + b"\n")
    (out / "licences.txt").write_text(listing(found), encoding="utf-8")
    write_sums(out)


def write_sums(folder: Path) -> None:
    """SHA256SUMS of every other file, as `sha256sum --check` reads it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tools.bundling", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", default="3.12", help="of the machine without a network (%(default)s)")
    parser.add_argument(
        "--platform",
        default=f"manylinux_2_28_{platform.machine()}",
        help="its processor, and the oldest glibc that it may have (%(default)s)",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bundle")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="parts of aliquot (%(default)s)")
    parser.add_argument("--without", default=",".join(WITHOUT), help="what that machine has or can do without")
    parser.add_argument("--wheel", type=Path, help="our own wheel, instead of building it")
    parser.add_argument("--most-mib", type=int, default=MOST_MIB, help="fail above it (%(default)s)")
    options = parser.parse_args()
    target = Target.of(options.python, options.platform)
    make(options.out, target, options.extras.split(","), options.without.split(","), options.wheel)
    size_mib = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file()) / 2**20
    wheels = len(list((options.out / "wheels").iterdir()))
    told = {"folder": str(options.out), "size_mib": round(size_mib, 1), "wheels": wheels, "platform": target.platform}
    sys.stdout.write(json.dumps(told | {"python": target.python}) + "\n")
    if size_mib > options.most_mib:
        raise SystemExit(f"error: it has {size_mib:.1f} MiB, and may have {options.most_mib}: see --without")
    return 0


if __name__ == "__main__":
    sys.exit(main())
