"""A release: the same sources give the same bytes, and its changelog says the day."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from aliquot.common import runtime
from tests.packaging.layout import REPOSITORY
from tools import licences, release
from tools.distributions import distribute


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("first", "second"):
        distribute(tmp_path / name)
        files = (path for path in (tmp_path / name).rglob("*") if path.is_file())
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert made[0] == made[1]
    assert len(made[0]) == 3


def test_the_changelog_says_the_day_of_a_version() -> None:
    assert release.dated("# Changelog\n\n## [1.2.0] - 2026-11-28\n\n### Added\n", "1.2.0")
    assert not release.dated("# Changelog\n\n## [1.2.0]\n", "1.2.0")
    assert not release.dated("## [1.2.0] - 2026-11-28\n", "1.2")


def test_the_version_is_said_in_one_place(sdist: Path, pure: Path) -> None:
    said = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert release.version() == runtime.VERSION == said
    with tarfile.open(sdist) as archive:
        assert archive.getnames()[0].split("/")[0] == f"aliquot-{said}"
    with zipfile.ZipFile(pure) as archive:
        assert f"aliquot-{said}.dist-info/METADATA" in archive.namelist()

    chart = yaml.safe_load((REPOSITORY / "deploy/chart/aliquot/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (said, said), "make release ARGS='--raise …' writes them all"


def test_a_version_is_raised_wherever_it_stands(tmp_path: Path) -> None:
    source = "common/aliquot/common/runtime.py"
    for name in ("pyproject.toml", "CHANGELOG.md", "deploy/chart/aliquot/Chart.yaml", source):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    release.raise_version(tmp_path, "7.8.9", "2031-02-03")
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["version"] == "7.8.9"
    assert 'VERSION = "7.8.9"\n' in (tmp_path / source).read_text()
    chart = yaml.safe_load((tmp_path / "deploy/chart/aliquot/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9", "7.8.9")
    changelog = (tmp_path / "CHANGELOG.md").read_text()
    assert release.dated(changelog, "7.8.9")
    assert (
        changelog.index("## [Unreleased]") < changelog.index("## [7.8.9] - 2031-02-03") < changelog.index("### Added")
    )
    with pytest.raises(SystemExit, match="no one place"):
        release.raise_version(tmp_path, "7.8.9", "2031-02-04")
    with pytest.raises(SystemExit, match="three numbers"):
        release.raise_version(tmp_path, "v8", "2031-02-04")


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_what_can_be_released_is_committed_dated_and_tagged_as_it_says(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## [Unreleased]\n")
    git(tmp_path, "init", "--quiet")
    assert "no section `## [1.2.0] - YYYY-MM-DD`" in release.unready(tmp_path, "1.2.0")
    changelog.write_text("# Changelog\n\n## [1.2.0] - 2026-11-28\n")
    assert "commit or remove first" in release.unready(tmp_path, "1.2.0")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Say the day")
    assert release.unready(tmp_path, "1.2.0") == ""
    git(tmp_path, "tag", "v1.1.0")
    assert "tagged v1.1.0" in release.unready(tmp_path, "1.2.0")
    git(tmp_path, "tag", "v1.2.0")
    assert release.unready(tmp_path, "1.2.0") == ""
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "Go on")
    assert "raise the version" in release.unready(tmp_path, "1.2.0")


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_workflows_call_our_scripts_and_actions_by_commit(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    for step in steps:
        # A tag may be moved to other code; a commit can't.
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]) if "uses" in step else "run" in step
    told = subprocess.run(["make", "help"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    for target in re.findall(r"\bmake ([a-z-]+)(?![\w/-])", path.read_text()):
        assert f"make {target} " in told
    for script in re.findall(r"(?<![\w/])\.ci/\w+", path.read_text()):
        assert (REPOSITORY / script).is_file()


def put_licence(folder: Path, *lines: str) -> Path:
    path = folder / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "a-1.0.dist-info/METADATA", "\n".join(["Metadata-Version: 2.4", "Name: a", "Version: 1.0", *lines])
        )
    return path


@pytest.mark.parametrize(
    "line",
    ["License-Expression: MIT AND (GPL-3.0-only OR Apache-2.0)", "Classifier: License :: OSI Approved :: MIT License"],
)
def test_allowed_licences_are_known(tmp_path: Path, line: str) -> None:
    licences.check([put_licence(tmp_path, line)])


@pytest.mark.parametrize(
    "line", ["License-Expression: MIT AND GPL-3.0-only", "License: Proprietary", "Summary: nothing"]
)
def test_other_licences_and_none_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(SystemExit, match=r"a 1\.0: "):
        licences.check([put_licence(tmp_path, line)])
