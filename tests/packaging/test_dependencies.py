"""Each library that pyproject.toml asks for has its line, with a reason, in the list of decision 0001."""

from __future__ import annotations

import fnmatch
import re
import tomllib

from tests.packaging.layout import REPOSITORY

RECORD = REPOSITORY / "docs/decisions/0001-dependencies.md"


def asked_for() -> set[str]:
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = document["project"]
    groups = [project["dependencies"], document["build-system"]["requires"], *project["optional-dependencies"].values()]
    names = {match[0] for group in groups for line in group if (match := re.match(r"[\w.-]+", line))}
    return {name.lower() for name in names} - {project["name"]}


def listed() -> list[str]:
    rows = [line.split("|") for line in RECORD.read_text().splitlines() if line.startswith("| ")]
    return [re.split(r"[\s\[]", name.strip())[0].lower() for row in rows[1:] for name in row[1].split(",")]


def test_every_library_has_its_reason() -> None:
    assert not {name for name in asked_for() if not any(fnmatch.fnmatch(name, line) for line in listed())}


def test_no_reason_is_kept_for_a_library_that_is_gone() -> None:
    assert not {line for line in listed() if not fnmatch.filter(asked_for(), line)}
