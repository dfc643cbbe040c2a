"""What a coordinator with default settings loads: parts that no setting names cost it nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.parts import PARTS, Part, load

MODULES_MAX = 343
"""Of our own, in a coordinator that serves; 250 is the aim. Who makes it load less lowers this. Decision 0106 says what
is left, and why."""
LEFT_OUT = (
    "aliquot.coordinator.agents.authority",
    "aliquot.forecast",
    "aliquot.plan",
    "cryptography",
    "email",
    "http",
    "importlib.metadata",
    "joserfc",
    "kubernetes",
    "llvmlite",
    "numba",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "scipy",
)
SERVE = """
import asyncio, json, sys
from aliquot.coordinator.main import discover, run
from aliquot.coordinator.settings.arguments import parse_settings

def read():
    return parse_settings(sys.argv[1:], "0")

discover()
if scraped:
    import urllib.request

async def look():
    serving = asyncio.create_task(run(read(), read))
    while not serving.done():
        await asyncio.sleep(0.01)

class Out:
    def write(self, text):
        if text.startswith("ready "):
            if scraped:
                where = json.loads(text.removeprefix("ready "))["metrics"]
                urllib.request.urlopen(f"http://{where}/metrics").read()
            sys.__stdout__.write(json.dumps(sorted(sys.modules)))
            sys.__stdout__.flush()
            import os, signal
            os.kill(os.getpid(), signal.SIGTERM)

    def flush(self):
        pass

sys.stdout = Out()
asyncio.run(look())
"""


def loaded(folder: Path, *arguments: str, scraped: bool = False) -> AbstractSet[str]:
    """All modules of a coordinator that serves, and that somebody has asked for its metrics."""
    words = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--journal", f"sqlite:{folder / 'journal.db'}")
    ran = subprocess.run(
        [sys.executable, "-c", f"scraped = {scraped}\n{SERVE}", *words, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(json.loads(ran.stdout))


def under(modules: AbstractSet[str], place: str) -> list[str]:
    return sorted(name for name in modules if name == place or name.startswith(f"{place}."))


def test_a_coordinator_with_default_settings_loads_no_part_that_can_be_left_out(tmp_path: Path) -> None:
    modules = loaded(tmp_path)
    places = [part.place.partition(":")[0] for part in PARTS.values()]
    assert [found for place in (*LEFT_OUT, *places) for found in under(modules, place)] == []
    assert len(under(modules, "aliquot")) <= MODULES_MAX


def test_a_scrape_loads_nothing_that_reads_certificates_where_there_are_none(tmp_path: Path) -> None:
    modules = loaded(tmp_path, scraped=True)
    assert under(modules, "prometheus_client")
    assert [found for place in LEFT_OUT[:4] for found in under(modules, place)] == []


def test_a_part_is_loaded_where_a_setting_names_it(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text("[coordinator]\nforecast = true\n")
    assert under(loaded(tmp_path, "--config", str(file)), "aliquot.coordinator.forecasting")


def test_every_part_is_where_the_table_says() -> None:
    for name in PARTS:
        assert isinstance(load(name), type)


def test_a_part_whose_libraries_are_missing_says_what_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "absent", Part("aliquot.nowhere:Absent", "tracing"))
    with pytest.raises(ConfigError) as error:
        load("absent")
    assert error.value.hint == "pip install 'aliquot[tracing]'"
