"""Which tests of an area reach which lines, and how long each takes: measured once, then kept while nothing changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import coverage
import pytest

from tools.mutating.areas import AREAS, ROOT, Area, relative

KEPT = ROOT / ".mutate"
DESELECTED = ("-m", "not slow", "--timeout=0", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "-q")


class Cover:
    """See the module's docstring."""

    def __init__(self, lines: dict[str, dict[str, list[int]]], tests: list[str], took_s: list[float]) -> None:
        self._lines, self.tests, self.took_s = lines, tests, took_s

    def of(self, path: str, line: int, tests_max: int, seconds_max: float) -> list[str]:
        """So many of the quickest tests that reach a line as take no longer together, but at least one.

        Of a line that only an import reaches: those that reach one with the name that it gives something, or else those
        of its file.
        """
        by_line = self._lines.get(path, {})
        found = by_line.get(str(line)) or (self._named(path, line) if str(line) in by_line else [])
        found = found or self._begun(by_line, line) or sorted({test for tests in by_line.values() for test in tests})
        found = sorted(found, key=lambda number: self.took_s[number])[:tests_max]
        sums_s = accumulate(self.took_s[number] for number in found)
        number_of = max(1, sum(sum_s <= seconds_max for sum_s in sums_s))
        return [self.tests[number] for number in found[:number_of]]

    def seconds(self, tests: Sequence[str]) -> float:
        """How long these take in all."""
        took = dict(zip(self.tests, self.took_s, strict=True))
        return sum(took[test] for test in tests)

    @staticmethod
    def _begun(by_line: dict[str, list[int]], line: int) -> list[int]:
        """A statement of several lines is reached where it begins."""
        above = [int(each) for each in by_line if int(each) < line and by_line[each]]
        return by_line[str(max(above))] if above and line - max(above) <= 6 else []

    def _named(self, path: str, line: int) -> list[int]:
        """Tests that reach what uses the constant or the field of this line."""
        text = (ROOT / path).read_text("utf-8").splitlines()[line - 1]
        given = re.match(r"\s*(\w+(?=\s*:)|_?[A-Z]\w*)\s*(:.*)?=", text)
        if given is None:
            return []
        name = re.compile(rf"\b{given[1]}\b")
        found: set[int] = set()
        for each, by_line in self._lines.items():
            for number, text in enumerate((ROOT / each).read_text("utf-8").splitlines(), 1):
                if name.search(text):
                    found.update(by_line.get(str(number), ()))
        return sorted(found)


def cover_of(name: str) -> Cover:
    """Measured now where sources or what tests share changed; else only the tests that did."""
    area = AREAS[name]
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{name}.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    stamp, now = _stamp(area), {relative([path])[0]: _digest([path]) for path in _tests(area)}
    if found.get("stamp") != stamp:
        found = {"stamp": stamp, "files": {}, "lines": {}, "tests": [], "took_s": []}
    if found["files"] != now:
        stale = [file for file, digest in now.items() if found["files"].get(file) != digest]
        kept.write_text(json.dumps(_without(found, {file for file in found["files"] if file not in now} | {*stale})))
        subprocess.run([sys.executable, "-m", "tools.mutating.cover", name, *stale], cwd=ROOT, check=True)  # noqa: S603
        found = json.loads(kept.read_text())
        found["files"] = now
        kept.write_text(json.dumps(found))
    return Cover(found["lines"], found["tests"], found["took_s"])


def _without(found: dict[str, Any], files: set[str]) -> dict[str, Any]:
    """What is known of the tests in all other files: theirs keep their numbers, and reach nothing."""
    gone = {number for number, test in enumerate(found["tests"]) if test.partition("::")[0] in files}
    lines = {
        path: {line: [number for number in numbers if number not in gone] for line, numbers in by_line.items()}
        for path, by_line in found["lines"].items()
    }
    return {
        **found,
        "files": {file: known for file, known in found["files"].items() if file not in files},
        "lines": lines,
    }


def _stamp(area: Area) -> str:
    """Of the sources, and of what their tests share."""
    beside = [path for folder in area.tests for path in _files(ROOT / folder) if not path.name.startswith("test_")]
    return _digest([*area.files(), *beside])


def _tests(area: Area) -> list[Path]:
    return [path for folder in area.tests for path in _files(ROOT / folder) if path.name.startswith("test_")]


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


class _Contexts:
    """Pytest's part: names the test that runs now."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.took_s: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """One test."""
        self._measured.switch_context(item.nodeid)
        began_s = monotonic()  # a test that waits for another process is none of the quick ones
        yield
        self.took_s[item.nodeid] = monotonic() - began_s
        self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that does not pass, or is skipped, notices nothing."""
        if not report.passed:
            self.failed.add(report.nodeid)


def _measure(name: str, files: Sequence[str]) -> int:
    """What the tests in these files reach joins what is known."""
    known = json.loads((KEPT / f"{name}.json").read_text())
    sources = relative(AREAS[name].files())
    measured = coverage.Coverage(data_file=None, include=[str(ROOT / source) for source in sources], config_file=False)
    contexts = _Contexts(measured)
    measured.start()
    os.environ["CI"] = "1"  # the same examples each time
    if files:
        pytest.main([*DESELECTED, "--no-cov", *files], plugins=[contexts])
    measured.stop()
    tests = sorted(contexts.took_s.keys() - contexts.failed)
    numbers = {test: number for number, test in enumerate(tests, len(known["tests"]))}
    data = measured.get_data()
    for path in data.measured_files():
        by_line = known["lines"].setdefault(relative([Path(path)])[0], {})
        for line, found in data.contexts_by_lineno(path).items():
            by_line.setdefault(str(line), []).extend(sorted(numbers[test] for test in found if test in numbers))
    known["tests"] += tests
    known["took_s"] += [round(contexts.took_s[test], 4) for test in tests]
    (KEPT / f"{name}.json").write_text(json.dumps(known))
    return 0


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1], sys.argv[2:]))
