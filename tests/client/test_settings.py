"""Where the coordinator's address comes from, and which spellings it may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.client import Pool
from aliquot.client._settings import client_settings
from aliquot.common.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    """An environment with a user's configuration file."""
    file = tmp_path / "aliquot" / "config.toml"
    file.parent.mkdir()
    file.write_text('[client]\ncoordinator = ["one:1", "two"]\ntenant = "from-file"\ntls.ca_file = "/ca.pem"\n')
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_an_argument_beats_a_variable_beats_the_file_beats_the_default(config: dict[str, str]) -> None:
    variable = {"ALIQUOT_COORDINATOR": "three:3, four:4", "ALIQUOT_TENANT": "from-variable"}
    assert client_settings("five:5", "given", config | variable).coordinator == ("five:5",)
    assert client_settings(None, None, config | variable).coordinator == ("three:3", "four:4")
    assert client_settings(None, None, config | variable).tenant == "from-variable"
    assert client_settings(None, None, config).coordinator == ("one:1", "two:7070")
    assert client_settings(None, None, config).tenant == "from-file"
    assert client_settings(None, None, {"XDG_CONFIG_HOME": "/nonexistent"}).coordinator == ("localhost:7070",)


def test_tls_from_the_file(config: dict[str, str]) -> None:
    tls = client_settings(None, None, config).client_tls()
    assert tls is not None
    assert tls.ca_file == Path("/ca.pem")
    assert client_settings(None, None, {"XDG_CONFIG_HOME": "/nonexistent"}).client_tls() is None


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("host", "host:7070"),
        ("host:1", "host:1"),
        ("10.0.0.1", "10.0.0.1:7070"),
        ("::1", "[::1]:7070"),
        ("[::1]", "[::1]:7070"),
        ("[::1]:5", "[::1]:5"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("dns:///pool:7", "dns:///pool:7"),
    ],
)
def test_spellings_of_an_address(written: str, address: str) -> None:
    assert client_settings(written, None, {}).coordinator == (address,)


@pytest.mark.parametrize(
    "written", ["", " , ", ":7070", "host:port", "http://host:7070", "https://host", "host:65536", "h:" + "9" * 5000]
)
def test_no_address(written: str) -> None:
    with pytest.raises(ConfigError):
        client_settings(written, None, {})


def test_a_named_file_must_exist_and_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        client_settings(None, None, {"ALIQUOT_CONFIG": str(tmp_path / "missing.toml")})
    with pytest.raises(ConfigError, match="ALIQUOT_CLIENT_TENNANT"):
        client_settings(None, None, {"ALIQUOT_CLIENT_TENNANT": "x"})


def test_a_pool_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_COORDINATOR", "one:1,two:2")
    with Pool() as pool:
        assert pool.addresses == ("one:1", "two:2")
