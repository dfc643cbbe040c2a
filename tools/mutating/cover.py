"""Which tests of an area reach which lines, and how long each takes: measured once, then kept while nothing changes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import coverage
import pytest

from tools.mutating.areas import AREAS, ROOT, Area, relative

KEPT = ROOT / ".mutate"
DESELECTED = ("-m", "not slow", "--timeout=0", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "-q")


class Cover:
    """See the module's docstring."""

    def __init__(self, lines: dict[str, dict[str, list[int]]], tests: list[str], took_s: list[float]) -> None:
        self._lines, self.tests, self.took_s = lines, tests, took_s

    def of(self, path: str, line: int, tests_max: int) -> list[str]:
        """Tests that reach a line, the quickest first; of a line that only an import reaches, those of its file."""
        by_line = self._lines.get(path, {})
        found = by_line.get(str(line)) or self._near(by_line, line)
        found = sorted(found, key=lambda number: self.took_s[number])
        return [self.tests[number] for number in found[:tests_max]]

    def seconds(self, tests: Sequence[str]) -> float:
        """How long these take in all."""
        took = dict(zip(self.tests, self.took_s, strict=True))
        return sum(took[test] for test in tests)

    @staticmethod
    def _near(by_line: dict[str, list[int]], line: int) -> list[int]:
        """A statement of several lines is reached where it begins."""
        above = [int(each) for each in by_line if int(each) < line and by_line[each]]
        if above and line - max(above) <= 6:
            return by_line[str(max(above))]
        return sorted({number for numbers in by_line.values() for number in numbers})


def cover_of(name: str) -> Cover:
    """Measured now, unless it was for the same sources and tests."""
    area = AREAS[name]
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{name}.json"
    stamp = _stamp(area)
    found = json.loads(kept.read_text()) if kept.exists() else {}
    if found.get("stamp") != stamp:
        subprocess.run([sys.executable, "-m", "tools.mutating.cover", name, stamp], cwd=ROOT, check=True)  # noqa: S603
        found = json.loads(kept.read_text())
    return Cover(found["lines"], found["tests"], found["took_s"])


def _stamp(area: Area) -> str:
    digest = hashlib.sha256()
    tests = [path for folder in area.tests for path in _files(ROOT / folder)]
    for path in [*area.files(), *tests]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


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


def _measure(name: str, stamp: str) -> int:
    area = AREAS[name]
    sources = relative(area.files())
    measured = coverage.Coverage(data_file=None, include=[str(ROOT / source) for source in sources], config_file=False)
    contexts = _Contexts(measured)
    measured.start()
    os.environ["CI"] = "1"  # the same examples each time
    pytest.main([*DESELECTED, "--no-cov", *area.tests], plugins=[contexts])
    measured.stop()
    tests = sorted(contexts.took_s.keys() - contexts.failed)
    numbers = {test: number for number, test in enumerate(tests)}
    data = measured.get_data()
    lines = {}
    for path in data.measured_files():
        by_line = data.contexts_by_lineno(path)
        lines[Path(path).relative_to(ROOT).as_posix()] = {
            line: sorted(numbers[test] for test in found if test in numbers) for line, found in by_line.items()
        }
    took_s = [round(contexts.took_s[test], 4) for test in tests]
    kept = {"stamp": stamp, "lines": lines, "tests": tests, "took_s": took_s}
    (KEPT / f"{name}.json").write_text(json.dumps(kept))
    return 0


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1], sys.argv[2]))
