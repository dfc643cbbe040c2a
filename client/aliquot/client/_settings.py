"""Where the coordinator is, and who asks: arguments, then the environment, then the configuration file, then defaults.

The file is `$ALIQUOT_CONFIG`, else the user's (`~/.config/aliquot/config.toml`), else the machine's
(`/etc/aliquot/config.toml`); its table is `[client]`::

    [client]
    coordinator = ["gpu-a:7070", "gpu-b:7070"]  # ALIQUOT_COORDINATOR, separated by commas
    tenant = "research/vision"  # ALIQUOT_TENANT
    tls.ca_file = "/etc/aliquot/ca.pem"  # ALIQUOT_CLIENT_TLS_CA_FILE
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.common.config import load
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls

DEFAULT_PORT = 7070
DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"
ENV_PREFIX = "ALIQUOT_CLIENT_"
CONFIG_VARIABLE = "ALIQUOT_CONFIG"
# Short names for the settings that everybody uses; the others have the prefix.
_SHORT = {"ALIQUOT_COORDINATOR": "COORDINATOR", "ALIQUOT_TENANT": "TENANT"}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files. `enabled` alone trusts the system's authorities."""

    enabled: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The `[client]` table."""

    coordinator: tuple[str, ...] = (DEFAULT_ADDRESS,)
    tenant: str = ""
    tls: TlsSettings = field(default_factory=TlsSettings)

    def client_tls(self) -> ClientTls | None:
        """The files for TLS, or None for plain text."""
        tls = self.tls
        if not (tls.enabled or tls.ca_file or tls.certificate_file):
            return None
        return ClientTls(tls.ca_file, tls.certificate_file, tls.key_file)


def client_settings(
    coordinator: str | Sequence[str] | None = None,
    tenant: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Gather the settings. Raises `ConfigError` for anything that can't be understood."""
    env = os.environ if env is None else env
    stated = {name: text for name, text in env.items() if name.startswith(ENV_PREFIX)}
    stated |= {ENV_PREFIX + _SHORT[name]: text for name, text in env.items() if name in _SHORT and text}
    flags: dict[str, object] = {"tenant": tenant}
    if coordinator is not None:
        texts = coordinator.split(",") if isinstance(coordinator, str) else list(coordinator)
        flags["coordinator"] = [text.strip() for text in texts if text.strip()]
    settings = load(
        ClientSettings, env_prefix=ENV_PREFIX, file=config_file(env), table="client", env=stated, flags=flags
    ).settings
    if not settings.coordinator:
        raise ConfigError("coordinator: no address", hint=f"write host:port, such as {DEFAULT_ADDRESS}")
    return ClientSettings(tuple(map(_with_port, settings.coordinator)), settings.tenant, settings.tls)


def config_file(env: Mapping[str, str]) -> Path | None:
    """The configuration file to read, or None. One named by `ALIQUOT_CONFIG` must exist."""
    if named := env.get(CONFIG_VARIABLE):
        return Path(named)
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
    for candidate in (Path(home) / "aliquot" / "config.toml", Path("/etc/aliquot/config.toml")):
        if candidate.is_file():
            return candidate
    return None


def _with_port(address: str) -> str:
    if "://" in address or address.startswith(("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")):
        return address
    host, colon, port = address.rpartition(":")
    if colon and host and port.isdigit() and (":" not in host or host.startswith("[")):
        return address
    if colon and ":" not in host and not port.isdigit():
        raise ConfigError(
            f"coordinator: {address!r} is not an address", hint=f"write host:port, such as {DEFAULT_ADDRESS}"
        )
    bare = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return f"{bare}:{DEFAULT_PORT}"
