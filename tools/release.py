"""Makes a release as far as it goes without publishing anything: the distributions, twice, and what is said of them.

    python -m tools.release --out build/release

Builds the source distribution and both wheels two times and compares their hashes. Fetches the newest wheels of all
that `aliquot[all]` requires, and refuses licences that are not allowed. Beside the distributions it leaves SHA256SUMS,
the bill of materials and the list of licences. `--final` also demands a clean working tree, a dated section of the
changelog for the version, and that the commit's tag, if it has one, is `v` and the version; `--tag` then makes that
tag. Nothing is signed or uploaded: `.github/workflows/release.yml` does that when the tag is pushed.

    python -m tools.release --raise 0.2.0

only writes the new version wherever it stands (pyproject.toml, the chart, the manifests made from it), and gives what
the changelog has under Unreleased that version and today.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tools import manifests
from tools.bundling.required import Target, fetch, requirements
from tools.distributions import ROOT, build_sdist, build_wheel, commit_time_s
from tools.licences import check, listing
from tools.sbom import sbom

GLIBC = "2.17"
TARGET = Target.of("3.12", "manylinux_2_28_x86_64")
"""Whose wheels of what we require are looked at."""


def build(out: Path) -> dict[str, str]:
    """The three distributions, and the SHA-256 of each."""
    sdist = build_sdist(out)
    made = [sdist, build_wheel(sdist, out, native=False), build_wheel(sdist, out, native=True, glibc=GLIBC)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


def version() -> str:
    """What pyproject.toml says, which is the one place of it."""
    said: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return said


def raise_version(root: Path, to: str, day: str) -> None:
    """Write this version, and the day of its section of the changelog. Raises SystemExit where that is done already."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", to):
        raise SystemExit(f"error: --raise {to}: write three numbers, such as 0.2.0")
    for name, pattern, said in (
        ("CHANGELOG.md", r"^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{to}] - {day}"),
        ("pyproject.toml", r'^version = ".*"$', f'version = "{to}"'),
        ("common/aliquot/common/runtime.py", r'^VERSION = ".*"$', f'VERSION = "{to}"'),
        (str(manifests.CHART.relative_to(ROOT) / "Chart.yaml"), r"^version: .*$", f"version: {to}"),
        (str(manifests.CHART.relative_to(ROOT) / "Chart.yaml"), r"^appVersion: .*$", f'appVersion: "{to}"'),
    ):
        path = root / name
        text, count = re.subn(pattern, said, path.read_text("utf-8"), flags=re.MULTILINE)
        if count != 1 or f"## [{to}] - " in path.read_text("utf-8"):
            raise SystemExit(f"error: {name} has no one place for {to}: `git diff` and `git checkout` show and undo")
        path.write_text(text, "utf-8")


def dated(changelog: str, of: str) -> bool:
    """Whether the changelog has a section of this version with its day."""
    return re.search(rf"^## \[{re.escape(of)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE) is not None


def unready(root: Path, of: str) -> str:
    """Why the commit at hand can't be released as this version; empty: it can."""
    if not dated((root / "CHANGELOG.md").read_text("utf-8"), of):
        return f"CHANGELOG.md has no section `## [{of}] - YYYY-MM-DD`"
    if changed := _git(root, "status", "--porcelain"):
        return f"commit or remove first:\n{changed}"
    tags = [tag for tag in _git(root, "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and f"v{of}" not in tags:
        return f"the commit is tagged {', '.join(tags)}, and pyproject.toml says {of}"
    if not tags and _git(root, "tag", "--list", f"v{of}"):
        return f"v{of} is another commit: raise the version in pyproject.toml"
    return ""


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603, S607


def what_it_requires(wheel: Path, out: Path) -> None:
    """Write the bill of materials and the licences of this wheel with all its extras. Raises SystemExit."""
    with tempfile.TemporaryDirectory(prefix="aliquot-required-") as scratch:
        wheels = Path(scratch)
        shutil.copy2(wheel, wheels)
        fetch(requirements(ROOT / "pyproject.toml", ["all"], []), TARGET, wheels)
        found = sorted(wheels.glob("*.whl"))
        check(found)
        (out / "licences.txt").write_text(listing(found), "utf-8")
        (out / "sbom.cdx.json").write_bytes(sbom(found, f"aliquot {version()}") + b"\n")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--final", action="store_true", help="demand what a release needs: see above")
    parser.add_argument("--tag", action="store_true", help="with --final: tag the commit, if all went well")
    parser.add_argument("--raise", dest="to", metavar="VERSION", help="write this version, and build nothing")
    options = parser.parse_args()
    if options.to:
        raise_version(ROOT, options.to, dt.datetime.now(dt.UTC).date().isoformat())
        return manifests.main()
    if options.final and (why := unready(ROOT, version())):
        raise SystemExit(f"error: {why}")
    os.environ["SOURCE_DATE_EPOCH"] = commit_time_s()  # of both, also if somebody commits meanwhile
    first = build(options.out)
    with tempfile.TemporaryDirectory(prefix="aliquot-again-") as again:
        second = build(Path(again))
    if differing := sorted(name for name in first | second if first.get(name) != second.get(name)):
        raise SystemExit(f"error: a second build gave other bytes: {', '.join(differing)}")
    pure = next(options.out / name for name in first if name.endswith("-none-any.whl"))
    what_it_requires(pure, options.out)
    (options.out / "SHA256SUMS").write_text("".join(f"{one}  {name}\n" for name, one in first.items()), "utf-8")
    if options.final and options.tag and not _git(ROOT, "tag", "--points-at", "HEAD", "--list", f"v{version()}"):
        _git(ROOT, "tag", "--annotate", f"v{version()}", "--message", f"aliquot {version()}")
    sys.stdout.write(json.dumps({"version": version(), "reproducible": True, "sha256": first}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
