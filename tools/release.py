"""Makes a release as far as it goes without publishing anything: the distributions, twice, and what is said of them.

    python -m tools.release --out build/release

Builds the source distribution and both wheels two times and compares their hashes, and writes SHA256SUMS and a bill of
materials. `--final` also demands that the changelog has a dated section for the version. Nothing is tagged, signed or
uploaded. Licences of what it requires are checked by `make bundle`, which has their wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.distributions import ROOT, build_sdist, build_wheel, commit_time_s
from tools.sbom import sbom

GLIBC = "2.17"


def build(out: Path) -> dict[str, str]:
    """The three distributions, and the SHA-256 of each."""
    sdist = build_sdist(out)
    made = [sdist, build_wheel(sdist, out, native=False), build_wheel(sdist, out, native=True, glibc=GLIBC)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


def version() -> str:
    """What pyproject.toml says, which is the one place of it."""
    said: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return said


def dated(changelog: str, of: str) -> bool:
    """Whether the changelog has a section of this version with its day."""
    return re.search(rf"^## \[{re.escape(of)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE) is not None


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--final", action="store_true", help="demand a dated section of the changelog")
    options = parser.parse_args()
    if options.final and not dated((ROOT / "CHANGELOG.md").read_text("utf-8"), version()):
        raise SystemExit(f"error: CHANGELOG.md has no section `## [{version()}] - YYYY-MM-DD`")
    os.environ["SOURCE_DATE_EPOCH"] = commit_time_s()  # of both, also if somebody commits meanwhile
    first = build(options.out)
    with tempfile.TemporaryDirectory(prefix="aliquot-again-") as again:
        second = build(Path(again))
    if differing := sorted(name for name in first | second if first.get(name) != second.get(name)):
        raise SystemExit(f"error: a second build gave other bytes: {', '.join(differing)}")
    wheels = [options.out / name for name in first if name.endswith(".whl")]
    (options.out / "SHA256SUMS").write_text("".join(f"{one}  {name}\n" for name, one in first.items()), "utf-8")
    (options.out / "sbom.cdx.json").write_bytes(sbom(wheels[:1], f"aliquot {version()}") + b"\n")
    sys.stdout.write(json.dumps({"version": version(), "reproducible": True, "sha256": first}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
