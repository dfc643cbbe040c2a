"""A release: the same sources give the same bytes, and its changelog says the day."""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging.layout import REPOSITORY
from tools import licences, release
from tools.distributions import build_sdist, build_wheel


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("first", "second"):
        sdist = build_sdist(tmp_path / name)
        wheels = [build_wheel(sdist, tmp_path / name, native=native) for native in (False, True)]
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (sdist, *wheels)})
    assert made[0] == made[1]
    assert len(made[0]) == 3


def test_the_changelog_says_the_day_of_a_version() -> None:
    assert release.dated("# Changelog\n\n## [1.2.0] - 2026-11-28\n\n### Added\n", "1.2.0")
    assert not release.dated("# Changelog\n\n## [1.2.0]\n", "1.2.0")
    assert not release.dated("## [1.2.0] - 2026-11-28\n", "1.2")


def test_the_version_is_said_in_one_place(sdist: Path, pure: Path) -> None:
    said = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert release.version() == said
    with tarfile.open(sdist) as archive:
        assert archive.getnames()[0].split("/")[0] == f"aliquot-{said}"
    with zipfile.ZipFile(pure) as archive:
        assert f"aliquot-{said}.dist-info/METADATA" in archive.namelist()


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
