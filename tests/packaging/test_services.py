"""Programs as services: each writes a unit that starts it where it is, and settings that it can read."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("coordinator", "agent", "console")
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs where a service could reach them: a checkout is often in somebody's home."""
    folder = tmp_path_factory.mktemp("bin")
    for program in PROGRAMS:
        shutil.copy(BIN / f"aliquot-{program}", folder)
    return folder


def install(bin_folder: Path, program: str, root: Path) -> subprocess.CompletedProcess[str]:
    words = [str(bin_folder / f"aliquot-{program}"), "install-service", "--root", str(root)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, bin_folder: Path) -> Path:
    root = tmp_path_factory.mktemp("root")
    for program in PROGRAMS:
        done = install(bin_folder, program, root)
        assert done.returncode == 0, done.stderr
        assert f"systemctl enable --now aliquot-{program}" in done.stdout
    return root


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_unit_starts_its_program_where_it_is_with_its_settings(root: Path, bin_folder: Path, program: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(root / f"etc/systemd/system/aliquot-{program}.service")
    started, flag, settings = unit["Service"]["ExecStart"].split()
    assert Path(started).samefile(bin_folder / f"aliquot-{program}")
    assert (flag, settings) == ("--config", f"/etc/aliquot/{program}.toml")
    assert unit["Service"]["Type"] == "notify"


def test_settings_can_be_read_and_stay_as_they_were_edited(root: Path, bin_folder: Path, tmp_path: Path) -> None:
    from aliquot.agent.settings import ENV_PREFIX
    from aliquot.agent.settings import Settings as AgentSettings
    from aliquot.common import config
    from aliquot.console.settings import parse_settings as console_settings
    from aliquot.coordinator.settings.arguments import parse_settings as coordinator_settings

    folder = root / "etc/aliquot"
    assert coordinator_settings(["--config", str(folder / "coordinator.toml")], "1").listen == "0.0.0.0:7070"
    assert console_settings(["--config", str(folder / "console.toml")], "1").coordinator == ("127.0.0.1:7070",)
    config.load(AgentSettings, env_prefix=ENV_PREFIX, file=folder / "agent.toml", table="agent", env={})
    edited = tmp_path / "etc/aliquot/agent.toml"
    edited.parent.mkdir(parents=True)
    edited.write_text("mine")
    assert install(bin_folder, "agent", tmp_path).returncode == 0
    assert edited.read_text() == "mine"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units(root: Path) -> None:
    units = sorted((root / "etc/systemd/system").iterdir())
    assert {each.name for each in units} >= {"aliquot-backup.service", "aliquot-backup.timer"}
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False
    )
    assert not [line for line in checked.stderr.splitlines() if "aliquot-" in line], checked.stderr


def test_no_unit_takes_a_folder_from_another(root: Path) -> None:
    """Systemd gives a unit's folders with all that is in them to its user: of an agent beside a coordinator, too."""
    owners = {}
    for path in (root / "etc/systemd/system").glob("*.service"):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read(path)
        for folder in unit["Service"].get("StateDirectory", "").split():
            owners[folder] = unit["Service"].get("User", "root")
    assert {"aliquot", "aliquot/coordinator", "aliquot-backups"} <= owners.keys()
    for folder, owner in owners.items():
        above = [each for each in owners if folder.startswith(f"{each}/")]
        assert all(owners[each] == "root" for each in above), (
            "who owns what is above gets what is below at its next start"
        )
        assert owner == "root" or not any(each.startswith(f"{folder}/") for each in owners)


def test_where_it_can_not_write_it_says_so(bin_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = install(bin_folder, "agent", tmp_path / "file")
    assert done.returncode == 1
    assert "can't write" in done.stderr
    assert "run it as root" in done.stderr
