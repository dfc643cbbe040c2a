"""What every test may count on: Hypothesis profiles, markers that skip with a reason, the public traces."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tests.identity  # noqa: F401 - who the tests are
from aliquot.client import local
from tests import keeper
from tests.certificates import OPENSSL, Authority

# A coordinator that runs on this machine as a service is nobody's whom tests log in to.
local.MACHINE_STATE = Path(__file__).parent / "no-service-of-this-machine"

# How wide the terminal is that the tests were started from is nothing to programs that they start; a library for
# terminals sets these for workers even where there is none.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# Tests start hundreds of our programs: where the environment forbids to keep what was compiled, each would compile all
# its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ("tests.unhurried",)

# What is imported until the tests begin stays: to look through it again and again takes a third of that time.
gc.disable()

# Whatever a test starts ends with this process, even if that is killed: what reads the pipe sees to it.
_KEEPER = keeper.watch()

# No deadlines: tests run on loaded machines and assert behaviour, not times. CI explores the same examples
# each run, so that a red run is about the change; developers explore new ones, and `make test-long` many.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("default", _UNTIMED)
settings.register_profile("ci", _UNTIMED, derandomize=True)
settings.register_profile("thorough", _UNTIMED, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def postgres_bin_dir() -> Path | None:
    """Folder of PostgreSQL's server programs; Debian keeps them off PATH, one folder a version."""
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).resolve().parent
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")]
    return max(versions, key=lambda path: int(path.parent.name), default=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: golden traces are written anew instead of compared (tests/golden)."""
    parser.addoption("--rewrite", action="store_true", help="write golden traces as the protocol is now")


FOLDER = Path(__file__).parent
WATCHED = frozenset(
    {
        "access",
        "agent",
        "supply",
        "core",
        "enforce",
        "extending",
        "forecast",
        "health",
        "ledger",
        "maintenance",
        "placement",
        "preemption",
        "queueing",
        "tenancy",
        "use",
    }
)
"""Folders whose tests drive the pure cores. Others reach them from afar: the lines that they run there are not counted,
because to watch them costs nearly as much as the tests themselves.
"""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count lines only where the cores are driven: elsewhere not what fixtures run either, nor their threads."""
    # Of pytest-cov, whose own marker leaves out a test's call alone; None: nothing is counted.
    watcher = getattr(item.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    driving = item.path.is_relative_to(FOLDER) and item.path.relative_to(FOLDER).parts[0] in WATCHED
    if watcher is None or driving or item.get_closest_marker("no_cover"):
        return (yield)
    watcher.pause()
    try:
        return (yield)
    finally:
        watcher.resume()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What has been loaded never becomes garbage: each full collection would take half a second to look through it."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine can't run, and say why."""
    postgres = postgres_bin_dir() is not None
    for item in items:
        for marker in item.iter_markers("root"):
            if len(marker.args) != 1:
                raise pytest.UsageError(f'{item.nodeid}: say what needs root: @pytest.mark.root("to ...")')
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason=f"needs root {marker.args[0]}"))
        if not postgres and item.get_closest_marker("postgres") is not None:
            item.add_marker(pytest.mark.skip(reason="needs PostgreSQL: apt-get install postgresql"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI=true, a test that is left out because something is missing has failed: .ci/prerequisites brings it."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith("needs "):
            report.outcome, report.longrepr = "failed", f"left out, which CI must not be: {reason}"
    return report


def pytest_unconfigure() -> None:
    """What is still there when all tests are over has been forgotten by its test, and ends now."""
    assert _KEEPER.stdin is not None
    _KEEPER.stdin.close()
    _KEEPER.wait()


RERUNS_MAX = 3
"""How many tests of a run may need their second attempt."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which many tests passed only at their second attempt has failed (docs/decisions/0069)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker
        return
    again = {report.nodeid for report in reporter.stats.get("rerun", ())}
    if len(again) > RERUNS_MAX and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{len(again)} tests needed a second attempt, more than {RERUNS_MAX}: mend them", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the first attempts of tests that passed at their second died of."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"RERUN {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Certificates for this machine."""
    if OPENSSL is None:
        pytest.skip("needs the openssl command to make certificates")
    return Authority.create(tmp_path / "authority")


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Folder of the public traces that ALIQUOT_TRACES names."""
    value = os.environ.get("ALIQUOT_TRACES")
    if not value:
        pytest.skip("ALIQUOT_TRACES names no folder of public traces")
    path = Path(value)
    if not path.is_dir():
        pytest.fail(f"ALIQUOT_TRACES={value} is no folder")
    return path
