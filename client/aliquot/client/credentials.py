"""The credentials file: which token, and which authority, this user has for which pool, and where its coordinators are.

`$XDG_CONFIG_HOME/aliquot/credentials.json` (`~/.config/aliquot/credentials.json`). `aliquot login` and `aliquot up`
write it, `logout` and `down` take their entries out. It is replaced as a whole, under a lock, so that no reader sees
half of it and no writer undoes another; only its owner may read it, which is checked each time.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from aliquot.common.errors import ConfigError, SecurityError
from aliquot.common.limits import ADDRESSES_MAX
from aliquot.common.own_files import lock_file, make_private, write_whole
from aliquot.common.tls import is_local_address
from aliquot.common.tokens import check_token

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
TOKEN_FILE_BYTES_MAX: Final = 4096
_MOUNTED: Final = (Path("/run/secrets"), Path("/var/run/secrets"))
"""Where Kubernetes and Docker mount secrets for a container's programs, readable by all of them."""
_LOOPBACK: Final = {"127.0.0.1", "[::1]", "ip6-localhost", "localhost"}


@dataclass(frozen=True, slots=True)
class Credential:
    """What is known for one pool."""

    addresses: tuple[str, ...]
    """Its coordinators."""
    token: str = field(repr=False)
    ca: str = ""
    """The authority that signs its certificates, in PEM; empty: the system's, or none where only this machine can
    reach it."""
    issuer: str = ""
    """The OpenID provider that vouched for the user: `aliquot login` asks it again when the session is over."""
    pool: str = ""
    """Its id, which all its coordinators have in common; empty: of a login that did not hear it."""

    def reached_by(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """These addresses of the pool, then the others that are known, where they can be used as safely."""
        known = set(map(_canonical, addresses))
        others = [each for each in self.addresses if self.ca or is_local_address(each)]
        return (*addresses, *(each for each in others if _canonical(each) not in known))


class _Entry(msgspec.Struct, omit_defaults=True):
    addresses: list[str]
    token: str
    ca: str = ""
    issuer: str = ""
    pool: str = ""
    asked_ms: int = 0
    """When the coordinator was last asked whom to trust."""


class _Document(msgspec.Struct):
    current: str = ""
    pools: list[_Entry] = []


class CredentialsFile:
    """One user's credentials."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, env: Mapping[str, str]) -> CredentialsFile:
        """The file of the user with this environment."""
        home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
        return cls(Path(home) / "aliquot" / "credentials.json")

    def find(self, addresses: Sequence[str]) -> Credential | None:
        """What is known for the pool with one of these addresses. Raises `SecurityError`, `ConfigError`."""
        wanted = set(map(_canonical, addresses))
        for entry in self._read().pools:
            if wanted & set(map(_canonical, entry.addresses)):
                return Credential(tuple(entry.addresses), entry.token, entry.ca, entry.issuer, entry.pool)
        return None

    def current(self) -> Credential | None:
        """The pool of the last login, which is meant where no coordinator is named."""
        document = self._read()
        return self.find([document.current]) if document.current else None

    def put(self, credential: Credential, *, current: bool = False) -> None:
        """Keep this instead of what was kept for its pool and its addresses; `current`: this pool is meant now."""
        replaced = set(map(_canonical, credential.addresses))
        entry = _Entry(list(credential.addresses), credential.token, credential.ca, credential.issuer, credential.pool)
        with self._changing() as document:
            others = [each for each in document.pools if not entry.pool or each.pool != entry.pool]
            document.pools = [entry, *(kept for each in others if (kept := _without(each, replaced)))]
            if current:
                document.current = credential.addresses[0]

    def remove(self, addresses: Sequence[str]) -> bool:
        """Take out what is kept for these addresses. Says whether there was anything."""
        if not self.path.exists():
            return False
        gone = set(map(_canonical, addresses))
        with self._changing() as document:
            kept = [entry for entry in document.pools if not gone & set(map(_canonical, entry.addresses))]
            removed = len(kept) < len(document.pools)
            document.pools = kept
            if not any(_canonical(document.current) in map(_canonical, entry.addresses) for entry in kept):
                document.current = ""
        return removed

    def asked(self, addresses: Sequence[str], now_ms: int, rest_ms: int) -> bool:
        """Whether it is time to ask the pool at these addresses whom to trust; if so, it counts as asked now."""
        wanted = set(map(_canonical, addresses))

        def due(document: _Document) -> list[_Entry]:
            found = [each for each in document.pools if wanted & set(map(_canonical, each.addresses))]
            return [each for each in found if not 0 <= now_ms - each.asked_ms < rest_ms]

        if not due(self._read()):
            return False
        with self._changing() as document:
            entries = due(document)
            for entry in entries:
                entry.asked_ms = now_ms
        return bool(entries)

    def meet(self, addresses: Sequence[str], told: Sequence[str]) -> None:
        """Keep where all coordinators of the pool at these addresses are, after those that were known."""
        known = self.find(addresses)
        if known is None:
            return
        reached = replace(known, addresses=tuple(told)).reached_by(known.addresses)[:ADDRESSES_MAX]
        if reached != known.addresses:
            self.put(replace(known, addresses=reached))

    def trust(self, addresses: Sequence[str], before: str, ca: str) -> bool:
        """Trust this authority at these addresses, where it is still the one of before. Says whether it was."""
        wanted = set(map(_canonical, addresses))
        with self._changing() as document:
            found = [
                each for each in document.pools if each.ca == before and wanted & set(map(_canonical, each.addresses))
            ]
            for entry in found:
                entry.ca = ca
        return bool(found)

    # ------------------------------------------------------------------------------------------------------- the file

    def _read(self) -> _Document:
        raw = read_private(self.path, FILE_BYTES_MAX)
        if raw is None:
            return _Document()
        try:
            return msgspec.json.decode(raw, type=_Document)
        except msgspec.MsgspecError:
            raise ConfigError(
                f"{self.path} can't be read: it is damaged", hint="remove it, and log in again with `aliquot login`"
            ) from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Document]:
        folder = self.path.parent
        try:
            make_private(folder)
            _check_folder(folder)
            with _locked(self.path.with_suffix(".lock")):
                document = self._read()
                yield document
                write_whole(self.path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(
                f"{self.path} can't be written: {error.strerror}", hint="make its folder one that you can write to"
            ) from None


def same_place(one: str, other: str) -> bool:
    """Whether two addresses are spellings of the same."""
    return _canonical(one) == _canonical(other)


def read_token_file(path: Path) -> str:
    """The token in a file of its own. Raises `ConfigError`, and `SecurityError` if others could read it too.

    Mounted secrets of containers are for whoever is in the container, and their modes are not the user's to choose.
    """
    mounted = any(path.absolute().is_relative_to(folder) for folder in _MOUNTED)
    raw = read_private(path, TOKEN_FILE_BYTES_MAX, checked=not mounted)
    if raw is None:
        raise ConfigError(f"{path}: no such file", hint="name a file that holds a token")
    return check_token(raw.decode("utf-8", errors="replace").strip(), str(path))


def read_private(path: Path, bytes_max: int, *, checked: bool = True) -> bytes | None:
    """A file that only its owner may read: this user, or root. None if there is none. Raises `SecurityError` if others
    could read or replace it, and `ConfigError` if this user can't.
    """
    try:
        with path.open("rb") as file:
            # What was opened is looked at, so that it can't be exchanged in between.
            found = os.fstat(file.fileno())
            if checked:
                _check_file(path, found)
            raw = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a file that you can read") from None
    if len(raw) > bytes_max:
        raise ConfigError(f"{path} is larger than {bytes_max} bytes", hint="it is not a file of this kind")
    return raw


def _check_file(path: Path, found: os.stat_result) -> None:
    if os.name != "posix":
        return
    if os.geteuid() != 0 and found.st_uid not in {0, os.geteuid()}:
        raise SecurityError(f"{path} belongs to another user, who could change it", hint=f"chown {os.geteuid()} {path}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SecurityError(
            f"{path} can be read by others, and a token must not be", hint=f"chmod 600 {path}, and change the token"
        )


def _check_folder(folder: Path) -> None:
    if os.name == "posix" and folder.stat().st_mode & 0o022:
        raise SecurityError(f"others can put files into {folder}", hint=f"chmod go-w {folder}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = lock_file(path, wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


def _without(entry: _Entry, gone: set[str]) -> _Entry | None:
    left = [address for address in entry.addresses if _canonical(address) not in gone]
    return msgspec.structs.replace(entry, addresses=left) if left else None


def _canonical(address: str) -> str:
    """One spelling of what is the same: schemes of DNS and IP, the ways to say this machine, upper case."""
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        address = address.removeprefix(scheme)
    if address.startswith("unix"):
        return address
    host, colon, port = address.lower().rpartition(":")
    return f"localhost{colon}{port}" if host in _LOOPBACK else address.lower()
