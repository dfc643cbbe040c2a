"""Where the coordinator is, and who asks: arguments, then the environment, then the configuration file, then defaults.

The file is `$ALIQUOT_CONFIG`, else the user's (`~/.config/aliquot/config.toml`), else the machine's
(`/etc/aliquot/config.toml`); its table is `[client]`::

    [client]
    coordinator = ["gpu-a:7070", "gpu-b:7070"]  # ALIQUOT_COORDINATOR, separated by commas
    tenant = "research/vision"  # ALIQUOT_TENANT
    tls.ca_file = "/etc/aliquot/ca.pem"  # ALIQUOT_CLIENT_TLS_CA_FILE
    token_file = "/etc/aliquot/token"  # ALIQUOT_TOKEN_FILE
    service_account_file = "/var/run/secrets/aliquot/token"  # of a pod; ALIQUOT_SERVICE_ACCOUNT_FILE

Where none of these names a token, the one that `aliquot login` or `aliquot up` has put into the credentials file for
this coordinator is used, with the authority that came along; on the coordinator's machine, the first administrator's,
for whoever may read it. Where none of these names a coordinator, it is that of the last login.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from aliquot.client import local
from aliquot.client._token import Token
from aliquot.client.credentials import Credential, CredentialsFile, read_token_file
from aliquot.client.local import ADMIN_SOCKET, ADMIN_TOKEN, access_folders
from aliquot.common.config import DEFAULT_ORIGIN, Loaded, load
from aliquot.common.connection_string import ConnectionString
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls, fingerprints, is_local_address
from aliquot.common.tokens import check_token

DEFAULT_PORT = 7070
DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"
ENV_PREFIX = "ALIQUOT_CLIENT_"
CONFIG_VARIABLE = "ALIQUOT_CONFIG"
# Short names for the settings that everybody uses; the others have the prefix.
_SHORT = {
    "ALIQUOT_COORDINATOR": "COORDINATOR",
    "ALIQUOT_TENANT": "TENANT",
    "ALIQUOT_TOKEN": "TOKEN",
    "ALIQUOT_TOKEN_FILE": "TOKEN_FILE",
    "ALIQUOT_SERVICE_ACCOUNT_FILE": "SERVICE_ACCOUNT_FILE",
}


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
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """At most one of the two."""
    service_account_file: Path | None = None
    """Of a pod: its projected token for our audience, by which sessions are opened and renewed."""

    def client_tls(self, known: Credential | None = None) -> ClientTls | None:
        """The files for TLS, or None for plain text. `known` brings an authority, where none is named."""
        if self.coordinator and all(address.endswith(f"/{ADMIN_SOCKET}") for address in self.coordinator):
            return None  # whoever may enter its folder is trusted; whom to trust elsewhere says nothing of it
        tls = self.tls
        if tls.enabled or tls.ca_file or tls.certificate_file:
            return ClientTls(tls.ca_file, tls.certificate_file, tls.key_file)
        return ClientTls(ca_pem=known.ca) if known is not None and known.ca else None


@dataclass(frozen=True, slots=True)
class Connecting:
    """What a pool needs to connect."""

    settings: ClientSettings
    token: Token
    tls: ClientTls | None
    kept_in: CredentialsFile | None = None
    """Where whom `tls` trusts is kept, if it came with a login."""

    def check(self) -> None:
        """Raises `SecurityError` where the token would be sent in the clear."""
        for address in self.settings.coordinator:
            self.token.check(address)

    def connection_string(self, token: str, addresses: Sequence[str] = (), node: str = "", ca_pem: str = "") -> str:
        """What makes another machine reach the same pool with this token, by these addresses or its own. `ca_pem`: whom
        it is to trust there, as the coordinator says; empty: whom this one trusts.
        """
        tls, ca = self.tls, ca_pem
        if tls is not None and not ca:
            ca = self._trusted_pem()
        where = tuple(map(_with_port, addresses)) or self.settings.coordinator
        return ConnectionString(where, token, ca, node).encode()

    def trusts_some_of(self, pem: str) -> bool:
        """Whether one of these authorities is trusted here."""
        return bool(set(fingerprints(self._trusted_pem())) & set(fingerprints(pem)))

    def _trusted_pem(self) -> str:
        tls = self.tls
        if tls is None:
            return ""
        pem = tls.ca_file.read_bytes() if tls.ca_file is not None else tls.ca_pem.encode()
        return pem.decode("ascii", errors="replace")


def connecting(
    coordinator: str | Sequence[str] | None = None,
    tenant: str | None = None,
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    tls: ClientTls | None = None,
    env: Mapping[str, str] | None = None,
) -> Connecting:
    """Gather the settings, and find the token and the authority for this coordinator.

    Raises `ConfigError` for anything that can't be understood, `SecurityError` for a file of tokens that others could
    read.
    """
    env = os.environ if env is None else env
    settings = client_settings(coordinator, tenant, env, token=token, token_file=token_file)
    file = CredentialsFile.of(env)
    known = file.find(settings.coordinator)
    if known is not None:
        settings = replace(settings, coordinator=known.reached_by(settings.coordinator))
    of_login = tls is None and known is not None and bool(known.ca)
    tls = tls or settings.client_tls(known)
    kept_in = file if of_login and tls is not None and tls.ca_file is None and tls.ca_pem else None
    if token is None and not settings.token and settings.token_file is None and settings.service_account_file:
        from aliquot.client._sessions import PodSession  # noqa: PLC0415 - of pods alone

        session = PodSession(settings.service_account_file, settings.coordinator, tls)
        return Connecting(settings, session.token(f"a session by {settings.service_account_file}"), tls, kept_in)
    load, origin = (partial(str, token), "the argument") if token is not None else _source(settings, file, known)
    return Connecting(settings, Token(load, origin, tls=tls is not None), tls, kept_in)


def _source(settings: ClientSettings, file: CredentialsFile, known: Credential | None) -> tuple[Callable[[], str], str]:
    """What reads the token, and for people, where that is."""
    if settings.token:
        return partial(str, settings.token), "ALIQUOT_TOKEN"
    if settings.token_file is not None:
        return partial(read_token_file, settings.token_file), str(settings.token_file)
    if known is None and all(map(is_local_address, settings.coordinator)):
        for folder in access_folders(local.MACHINE_STATE):
            if os.access(folder / ADMIN_TOKEN, os.R_OK):
                return partial(read_token_file, folder / ADMIN_TOKEN), str(folder / ADMIN_TOKEN)

    # Also where there is none yet: who logs in while a program runs need not start it again.
    def kept() -> str:
        found = file.find(settings.coordinator)
        return found.token if found is not None else ""

    return kept, f"{file.path}, by {known.issuer}" if known is not None and known.issuer else str(file.path)


def client_settings(
    coordinator: str | Sequence[str] | None = None,
    tenant: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
) -> ClientSettings:
    """Gather the settings. Raises `ConfigError` for anything that can't be understood."""
    env = os.environ if env is None else env
    if token is not None and token_file is not None:
        raise ConfigError("a token, and a file with one", hint="give one of the two")
    stated = {name: text for name, text in env.items() if name.startswith(ENV_PREFIX)}
    stated |= {ENV_PREFIX + _SHORT[name]: text for name, text in env.items() if name in _SHORT and text}
    flags: dict[str, object] = {"tenant": tenant}
    if coordinator is not None:
        texts = coordinator.split(",") if isinstance(coordinator, str) else list(coordinator)
        flags["coordinator"] = [text.strip() for text in texts if text.strip()]
    loaded = load(ClientSettings, env_prefix=ENV_PREFIX, file=config_file(env), table="client", env=stated, flags=flags)
    settings = loaded.settings
    addresses = settings.coordinator
    if loaded.origins["coordinator"] == DEFAULT_ORIGIN and (logged_in := CredentialsFile.of(env).current()) is not None:
        addresses = logged_in.addresses
    if not addresses:
        raise ConfigError("coordinator: no address", hint=f"write host:port, such as {DEFAULT_ADDRESS}")
    addresses = tuple(map(_with_port, addresses))
    if token is not None:
        given = check_token(token, "the argument") if token else ""
        return replace(settings, coordinator=addresses, token=given, token_file=None)
    if token_file is not None:
        return replace(settings, coordinator=addresses, token="", token_file=Path(token_file).expanduser())
    return _one_token(replace(settings, coordinator=addresses), loaded)


def _one_token(settings: ClientSettings, loaded: Loaded[ClientSettings]) -> ClientSettings:
    """Variables before the file, and of the variables that of a file first: that one can be exchanged."""
    of_token, of_file = loaded.origins["token"], loaded.origins["token_file"]
    if of_token not in {DEFAULT_ORIGIN, ENV_PREFIX + "TOKEN"}:
        raise ConfigError(
            f"{of_token}: a configuration file is no place for a token",
            hint="write it into a file of its own, and name that: token_file",
        )
    if of_token == DEFAULT_ORIGIN or of_file == ENV_PREFIX + "TOKEN_FILE":
        return replace(settings, token="")
    return replace(settings, token=check_token(settings.token.strip(), "ALIQUOT_TOKEN"), token_file=None)


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
    is_url = address.startswith(("http://", "https://"))
    if (not is_url and "://" in address) or address.startswith(("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")):
        return address
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) < 6 and int(port) < 1 << 16
    if not is_url and colon and host and is_port and (":" not in host or host.startswith("[")):
        return address
    if is_url or (colon and ":" not in host and not (host and is_port)):
        raise ConfigError(
            f"coordinator: {address!r} is not an address", hint=f"write host:port, such as {DEFAULT_ADDRESS}"
        )
    bare = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return f"{bare}:{DEFAULT_PORT}"
