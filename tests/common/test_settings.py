"""Settings: later sources win, nothing is ignored, and every refusal names its place."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from aliquot.common.config import load
from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.common.quantity import ByteSize
from aliquot.common.tiers import Tier


class Fsync(enum.Enum):
    FULL = "full"
    OFF = "off"


class Journal(msgspec.Struct, frozen=True):
    path: Path = Path("journal.db")
    group_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    fsync: Fsync = Fsync.FULL


class Settings(msgspec.Struct, frozen=True):
    listen: str = "127.0.0.1:7700"
    heartbeat: DurationMs = DurationMs(5000)
    max_message: ByteSize = ByteSize(4 << 20)
    insecure: bool = False
    pools: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    min_tier: Tier = Tier.WATCHDOG
    node_name: str | None = None
    journal: Journal = Journal()


PREFIX = "ALIQUOT_AGENT_"


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "aliquot.toml"


def settings(**sources: object) -> Settings:
    return load(Settings, env_prefix=PREFIX, **sources).settings  # type: ignore[arg-type]


def refused(**sources: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings(**sources)
    return caught.value


def test_without_any_source_the_defaults_hold() -> None:
    loaded = load(Settings, env_prefix=PREFIX)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert "journal.path" in loaded.origins


def test_later_sources_win(toml: Path) -> None:
    toml.write_text('listen = "file:1"\nheartbeat = "1s"\nmax_message = "1Mi"\n[journal]\ngroup_max = 2\n')
    loaded = load(
        Settings,
        env_prefix=PREFIX,
        file=toml,
        env={"ALIQUOT_AGENT_LISTEN": "env:1", "ALIQUOT_AGENT_HEARTBEAT": "2s", "PATH": "/bin", "ALIQUOT_TRACES": "/x"},
        flags={"listen": "flag:1", "heartbeat": None, "journal_path": "~/j.db"},
    )
    assert loaded.settings == Settings(
        listen="flag:1",
        heartbeat=DurationMs(2000),
        max_message=ByteSize(1 << 20),
        journal=Journal(path=Path("~/j.db").expanduser(), group_max=2),
    )
    assert loaded.origins["listen"] == "--listen"
    assert loaded.origins["heartbeat"] == "ALIQUOT_AGENT_HEARTBEAT"
    assert loaded.origins["max_message"] == str(toml)
    assert loaded.origins["journal.path"] == "--journal-path"
    assert loaded.origins["insecure"] == "default"


def test_all_kinds_of_values_from_the_environment() -> None:
    assert settings(
        env={
            "ALIQUOT_AGENT_INSECURE": "Yes",
            "ALIQUOT_AGENT_POOLS": "a, b,",
            "ALIQUOT_AGENT_PORTS": "1,2",
            "ALIQUOT_AGENT_MIN_TIER": "mps",
            "ALIQUOT_AGENT_NODE_NAME": "n1",
            "ALIQUOT_AGENT_JOURNAL_GROUP_MAX": "7",
            "ALIQUOT_AGENT_JOURNAL_FSYNC": "off",
        }
    ) == Settings(
        insecure=True,
        pools=("a", "b"),
        ports=(1, 2),
        min_tier=Tier.MPS,
        node_name="n1",
        journal=Journal(group_max=7, fsync=Fsync.OFF),
    )


def test_all_kinds_of_values_from_a_file(toml: Path) -> None:
    toml.write_text('insecure = true\npools = ["a", "b"]\nports = [1]\nmin_tier = "driver"\n[journal]\nfsync = "off"\n')
    assert settings(file=toml) == Settings(
        insecure=True, pools=("a", "b"), ports=(1,), min_tier=Tier.DRIVER, journal=Journal(fsync=Fsync.OFF)
    )


def test_flags_may_come_typed_and_dotted() -> None:
    flags = {
        "insecure": True,
        "heartbeat": DurationMs(1),
        "journal.path": Path("x"),
        "min_tier": Tier.MIG,
        "pools": ["p"],
    }
    assert settings(flags=flags) == Settings(
        insecure=True, heartbeat=DurationMs(1), journal=Journal(path=Path("x")), min_tier=Tier.MIG, pools=("p",)
    )


def test_one_file_serves_all_parts(toml: Path) -> None:
    toml.write_text('[agent]\nlisten = "a:1"\n[coordinator]\nwhatever = 1\n')
    assert settings(file=toml, table="agent").listen == "a:1"
    toml.write_text("[coordinator]\nwhatever = 1\n")
    assert settings(file=toml, table="agent") == Settings()
    toml.write_text("[agnet]\n")
    error = refused(file=toml, table="agent")
    assert (error.hint, "[agnet]" in str(error)) == ("did you mean agent?", True)
    toml.write_text("agent = 1\n")
    assert "a table was expected" in str(refused(file=toml, table="agent"))


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("heartbeet = '5s'", "heartbeet: no such setting", "did you mean heartbeat?"),
        ("[journal]\npathh = 'x'", "journal.pathh: no such setting", "did you mean journal.path?"),
        ("zzzz = 1", "zzzz: no such setting", "remove it"),
        ("heartbeat = 5", "heartbeat: ", "did you mean 5s or 5ms?"),
        ("heartbeat = 'soon'", "heartbeat: ", "write a number with d, h, m, s or ms"),
        ("max_message = '4MB'", "max_message: ", "write 4M or 4Mi"),
        ("insecure = 'yes'", "insecure: ", ""),
        ("listen = 1", "listen: ", ""),
        ("min_tier = 'strong'", "min_tier: 'strong'", "one of none, watchdog"),
        ("min_tier = 17", "min_tier: ", ""),
        ("journal = 1", "journal: a table was expected", "TOML table"),
        ("[journal]\ngroup_max = 0", "journal.group_max: ", ""),
        ("[journal]\npath = 1", "journal.path: ", ""),
        ("pools = 'a'", "pools: ", ""),
        ("listen = ", "no TOML", "toml.io"),
        ("\N{BYTE ORDER MARK}", "no TOML", "toml.io"),
    ],
)
def test_a_files_mistakes_name_their_place(toml: Path, text: str, place: str, hint: str) -> None:
    toml.write_text(text, encoding="utf-8")
    error = refused(file=toml)
    assert str(toml) in str(error)
    assert place in str(error)
    assert hint in error.hint
    assert error.reason == "INVALID_CONFIG"


def test_a_file_that_can_not_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    assert "No such file" in str(refused(file=tmp_path / "absent.toml"))
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    assert "no TOML" in str(refused(file=tmp_path / "latin.toml"))


@pytest.mark.parametrize(
    ("variable", "value", "message", "hint"),
    [
        ("ALIQUOT_AGENT_LISTN", "x", "no such setting", "did you mean ALIQUOT_AGENT_LISTEN?"),
        ("ALIQUOT_AGENT_INSECURE", "maybe", "neither true nor false", "write true or false"),
        ("ALIQUOT_AGENT_HEARTBEAT", "5", "not a duration", "did you mean 5s or 5ms?"),
        ("ALIQUOT_AGENT_MIN_TIER", "x", "none of them", "one of none"),
        ("ALIQUOT_AGENT_PORTS", "1,x", "", ""),
        ("ALIQUOT_AGENT_JOURNAL_GROUP_MAX", "5000", "<= 4096", ""),
    ],
)
def test_the_environments_mistakes_name_the_variable(variable: str, value: str, message: str, hint: str) -> None:
    error = refused(env={variable: value})
    assert str(error).startswith(variable)
    assert message in str(error)
    assert hint in error.hint


def test_a_flags_mistake_names_the_flag() -> None:
    assert str(refused(flags={"heartbeat": "5"})).startswith("--heartbeat: ")
    assert refused(flags={"heartbeet": "5s"}).hint == "did you mean heartbeat?"


@dataclass(frozen=True, slots=True)
class Limits:
    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


@dataclass(frozen=True, slots=True)
class Required:
    address: str
    limits: Limits = field(default_factory=Limits)
    derived: int = field(default=0, init=False)


class RequiredStruct(msgspec.Struct):
    address: str


@pytest.mark.parametrize("schema", [Required, RequiredStruct])
def test_what_has_no_default_must_be_set(schema: type) -> None:
    with pytest.raises(ConfigError) as caught:
        load(schema, env_prefix="X_")
    assert "address: not set" in str(caught.value)
    assert "X_ADDRESS" in caught.value.hint
    assert load(schema, env_prefix="X_", env={"X_ADDRESS": "a"}).settings.address == "a"


def test_settings_that_do_not_go_together_are_refused_at_their_table() -> None:
    with pytest.raises(ConfigError, match="limits: low is above high"):
        load(Required, env_prefix="X_", env={"X_ADDRESS": "a", "X_LIMITS_LOW": "9"})


def test_a_schema_that_breaks_by_itself_is_a_defect_not_a_setting() -> None:
    @dataclass
    class Broken:
        x: int = 0

        def __post_init__(self) -> None:
            raise TypeError("defect")

    Broken.__annotations__["x"] = int
    with pytest.raises(TypeError, match="defect"):
        load(Broken, env_prefix="X_")
