"""A relay's settings: a TOML file (`[relay]`), the environment (`ALIQUOT_RELAY_…`), flags; later ones win."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from aliquot.common import config as common_config
from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls, ServerTls, is_local_address
from aliquot.common.tokens import check_token
from aliquot.relay.joining import CA_FILE, read_joined

ENV_PREFIX = "ALIQUOT_RELAY_"
PROCESSES_MAX = 64


def _default_state_dir() -> Path:
    if state := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(state)
    home = os.environ.get("XDG_STATE_HOME") or str(Path("~").expanduser() / ".local" / "state")
    return Path(home) / "aliquot" / "relay"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: what agents see, whom they must be signed by, and how the coordinator is trusted and trusts us."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """Agents need a certificate by it. Give the coordinator's own, where the coordinator asks for certificates."""
    coordinator_ca_file: Path | None = None
    """None, with any of the others set: the system's."""

    def server(self) -> ServerTls | None:
        """None: agents connect in the clear. Raises ConfigError for half a pair."""
        if self.certificate_file is None and self.key_file is None and self.client_ca_file is None:
            return None
        if self.certificate_file is None or self.key_file is None:
            raise ConfigError("TLS needs a certificate and its key", hint="give --tls-cert and --tls-key")
        return ServerTls(self.certificate_file, self.key_file, self.client_ca_file)

    def client(self) -> ClientTls | None:
        """None: the coordinator is spoken to in the clear. The relay shows it the certificate that agents see too."""
        if self.coordinator_ca_file is None and self.certificate_file is None:
            return None
        return ClientTls(self.coordinator_ca_file, self.certificate_file, self.key_file)


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds of each process. Who comes when one is reached is told when to come back."""

    agents_max: int = 10_000
    greetings_max: int = 500
    """Agents that wait for the coordinator's first word at once."""
    buffered_mib: int = 128
    """What may wait for agents that read slowly, all together; the slowest is ended when it is more."""
    lag: DurationMs = field(default=DurationMs(1_000))
    """New agents are sent away while the event loop is later than this."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them."""

    state_dir: Path = field(default_factory=_default_state_dir)
    """Where it keeps what `aliquot-relay join` has brought."""
    token_file: Path | None = None
    """Of role relay, instead of the one that joining has brought."""

    listen: str = "127.0.0.1:7072"
    coordinator: tuple[str, ...] = ("127.0.0.1:7070",)
    """host:port of each coordinator; the leader is found among them."""
    processes: int = 1
    """That share the port, each with a stream of its own to the coordinator. A processor core each is what they use."""
    metrics_host: str = "127.0.0.1"
    metrics_token_file: Path | None = None
    """Tokens that may read metrics; needed off loopback."""
    metrics_port: int = 7073
    """Of the first process; each other has the next one. 0: a free one each; -1: none."""
    linger: DurationMs = field(default=DurationMs(50))
    """How long a heartbeat or a measurement may wait for company. What a lease waits for never does."""
    drain: DurationMs = field(default=DurationMs(5_000))
    """Over how long agents are asked to go elsewhere when the relay is stopped."""
    log_level: str = "info"
    log_json: bool = False
    tls: TlsSettings = TlsSettings()
    limits: LimitSettings = LimitSettings()

    def token(self) -> str:
        """What it shows to the coordinator; empty: nothing. Read anew, as it may have joined anew. Raises ConfigError
        and SecurityError.
        """
        if self.token_file is None:
            joined = read_joined(self.state_dir)
            return joined.token if joined is not None else ""
        try:
            return check_token(self.token_file.read_text(encoding="ascii").strip(), str(self.token_file))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.token_file}: {error}", hint="token_file names a file with a token") from error

    def check(self) -> None:
        """Raises ConfigError where these can't go together."""
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise ConfigError(f"processes is {self.processes}", hint=f"it is 1 to {PROCESSES_MAX}")
        if self.processes > 1 and self.listen.startswith(("unix:", "unix-abstract:")):
            raise ConfigError("several processes can't share a unix: socket", hint="give --listen a host:port")
        if not self.coordinator:
            raise ConfigError("no coordinator is named", hint="give --coordinator host:port")
        if self.tls.client() is None:
            for address in self.coordinator:
                if not is_local_address(address):
                    raise ConfigError(
                        f"refusing to relay agents to {address} without TLS",
                        hint="let it join (an administrator's `aliquot relay invite`), or give --tls-coordinator-ca",
                    )


def parse_settings(argv: list[str] | None, version: str) -> tuple[Settings, int | None]:
    """Settings from flags, the environment and a file, and which of several processes this is. Raises ConfigError."""
    parser = argparse.ArgumentParser(
        prog="aliquot-relay",
        description="Carries the sessions of many agents over few streams to the coordinator.",
        epilog=f"Every setting can also be given as {ENV_PREFIX}<NAME>, or in the [relay] table of --config.",
    )
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file; its table [relay] is read")
    parser.add_argument("--state-dir", metavar="DIR", help="where it keeps what `aliquot-relay join` has brought")
    parser.add_argument("--token-file", metavar="FILE", help="a token of role relay, instead of joining")
    parser.add_argument("--listen", metavar="ADDRESS", help="host:port for agents (127.0.0.1:7072)")
    parser.add_argument(
        "--coordinator", metavar="ADDRESS", help="host:port of each coordinator, with commas (127.0.0.1:7070)"
    )
    parser.add_argument("--processes", metavar="N", type=int, help="that share the port, a core each (1)")
    parser.add_argument(
        "--metrics-host", metavar="HOST", help="where /metrics, /healthz and /readyz listen (127.0.0.1)"
    )
    parser.add_argument(
        "--metrics-port", metavar="PORT", type=int, help="of the first process (7073); 0: free ones; -1: none"
    )
    parser.add_argument("--linger", metavar="TIME", help="how long a heartbeat may wait for company (50ms)")
    parser.add_argument("--drain", metavar="TIME", help="over how long agents are sent elsewhere when it stops (5s)")
    parser.add_argument("--agents-max", metavar="N", dest="limits.agents_max", type=int, help="of each process (10000)")
    parser.add_argument(
        "--tls-cert", metavar="FILE", dest="tls.certificate_file", help="PEM file, for agents and the coordinator"
    )
    parser.add_argument("--tls-key", metavar="FILE", dest="tls.key_file", help="PEM file")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", dest="tls.client_ca_file", help="PEM file: agents need a certificate by it"
    )
    parser.add_argument(
        "--tls-coordinator-ca", metavar="FILE", dest="tls.coordinator_ca_file", help="PEM file: the coordinator's CA"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning, error")
    parser.add_argument("--log-json", action="store_true", default=None, help="one JSON object a line")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    flags = vars(parser.parse_args(argv))
    file, worker = flags.pop("config"), flags.pop("worker")
    loaded = common_config.load(Settings, env_prefix=ENV_PREFIX, file=file, table="relay", env=os.environ, flags=flags)
    settings = loaded.settings
    if (joined := read_joined(settings.state_dir)) is not None:
        if loaded.origins["coordinator"] == common_config.DEFAULT_ORIGIN:
            settings = replace(settings, coordinator=joined.addresses)
        if joined.ca_pem and settings.tls.coordinator_ca_file is None:
            settings = replace(settings, tls=replace(settings.tls, coordinator_ca_file=settings.state_dir / CA_FILE))
    settings.check()
    return settings, worker
