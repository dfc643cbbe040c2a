"""The console's settings: a TOML file (`[console]`), the environment (`ALIQUOT_CONSOLE_…`), flags; later ones win."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aliquot.common import config as common_config
from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ServerTls, in_authority, is_local_address, server_tls
from aliquot.console.origin import Origin, without_port

ENV_PREFIX = "ALIQUOT_CONSOLE_"
POOLS_MAX = 1_000
_SESSION_MS_MIN, _SESSION_MS_MAX = 60_000, 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: what browsers see, and by whom the coordinator's certificate must be signed."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    coordinator_ca_file: Path | None = None
    """None: the one that came with this user's login, as for every client."""

    def server(self) -> ServerTls | None:
        """None: in the clear. Raises ConfigError for half a pair."""
        return server_tls(self.certificate_file, self.key_file)


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them."""

    host: str = "127.0.0.1"
    port: int = 7074
    """0: a free one."""
    coordinator: tuple[str, ...] = ()
    """host:port of each coordinator; none: as every client finds them."""
    names: tuple[str, ...] = ()
    """Names by which browsers and programs reach it, beside `host` and localhost. A request for another one is refused:
    a page of somebody else's could have had its name point here."""
    url: str = ""
    """How browsers reach it where a proxy is in front of it, as `https://gpus.example.org`; its name counts, too."""
    session: DurationMs = field(default=DurationMs(12 * 3_600_000))
    """How long a browser stays logged in."""
    streams_max: int = 1_000
    """Streams of events at once."""
    callers_max: int = 256
    """Callers whose connections are kept open."""
    drain: DurationMs = field(default=DurationMs(5_000))
    """How long requests under way may go on when it is stopped."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 7075
    """0 takes a free one; -1 serves no metrics."""
    metrics_token_file: Path | None = None
    """Tokens that may read metrics; needed off loopback."""
    log_level: str = "info"
    log_json: bool = False
    tls: TlsSettings = TlsSettings()

    def check(self) -> None:
        """Raises ConfigError where these can't go together."""
        if self.tls.server() is None and not is_local_address(self.host):
            raise ConfigError(
                f"refusing to serve {self.host} without TLS: tokens would be readable on their way",
                hint="give --tls-cert and --tls-key, or put a proxy that has them in front of 127.0.0.1",
            )
        parts = urlsplit(self.url)
        if self.url and (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or self.url != f"{parts.scheme}://{parts.netloc.lower()}"
        ):
            raise ConfigError(f"url is {self.url[:128]!r}", hint="write it as https://gpus.example.org, without a path")
        if not _SESSION_MS_MIN <= self.session <= _SESSION_MS_MAX:
            raise ConfigError(f"session is {self.session} ms", hint="it is a minute to 30 days")
        if not 1 <= self.callers_max <= POOLS_MAX:
            raise ConfigError(f"callers_max is {self.callers_max}", hint=f"it is 1 to {POOLS_MAX}")

    @property
    def allowed_names(self) -> frozenset[str]:
        """What the header `Host` may name, without a port."""
        own = () if self.host in {"0.0.0.0", "::"} else (self.host,)  # noqa: S104 - compared, not listened on
        behind = without_port(urlsplit(self.url).netloc)
        names = ("localhost", "127.0.0.1", "::1", *own, *self.names, behind)
        return frozenset(in_authority(name.strip("[]")).lower() for name in names if name)

    @property
    def origin(self) -> Origin:
        """How browsers reach it."""
        return Origin(self.allowed_names, self.url, tls=self.tls.certificate_file is not None)


def parse_settings(argv: list[str] | None, version: str, env: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags, the environment and a file. Raises ConfigError."""
    parser = argparse.ArgumentParser(
        prog="aliquot-console",
        description="Serves a pool over HTTP: a page for browsers, and REST below /api/v1.",
    )
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--host", help="where it listens (127.0.0.1)")
    parser.add_argument("--port", type=int, help="0: a free one (7074)")
    parser.add_argument("--metrics-port", type=int, help="of /metrics; 0: a free one; -1: none (7075)")
    parser.add_argument("--coordinator", metavar="ADDRESS", type=_several, help="host:port of each, with commas")
    parser.add_argument("--names", metavar="NAME", type=_several, help="by which it is reached, too, with commas")
    parser.add_argument("--url", help="how browsers reach it where a proxy is in front: https://gpus.example.org")
    parser.add_argument("--tls-cert", metavar="FILE", dest="tls.certificate_file", help="its certificate, as PEM")
    parser.add_argument("--tls-key", metavar="FILE", dest="tls.key_file", help="the certificate's key, as PEM")
    parser.add_argument(
        "--tls-coordinator-ca", metavar="FILE", dest="tls.coordinator_ca_file", help="who signs the coordinator's"
    )
    settings = common_config.parse(Settings, parser, argv, env_prefix=ENV_PREFIX, table="console", env=env)
    settings.check()
    return settings


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
