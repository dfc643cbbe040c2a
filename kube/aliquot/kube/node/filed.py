"""A store of one JSON file a thing, by uid, in a folder and in memory: what a restart of this process must not lose."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from aliquot.common.own_files import write_whole

log = logging.getLogger(__name__)

SUFFIX = ".json"


class _HasUid(Protocol):
    @property
    def uid(self) -> str: ...


T = TypeVar("T", bound=_HasUid)


class Filed(Generic[T]):
    """One file a thing. What can't be read is left out, with a warning: whoever asked for it asks again."""

    def __init__(self, folder: Path, kind: type[T]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._by_uid: dict[str, T] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                found = msgspec.json.decode(path.read_bytes(), type=kind)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s can't be read: %s", path, error)
                continue
            self._by_uid[found.uid] = found

    def all(self) -> list[T]:
        """Every one."""
        return list(self._by_uid.values())

    def of(self, uid: str) -> T | None:
        """The one of this uid."""
        return self._by_uid.get(uid)

    def put(self, thing: T) -> None:
        """Write it down; durable against the death of this process when it returns. Raises `OSError`."""
        if self._by_uid.get(thing.uid) == thing:
            return
        write_whole(self._path(thing.uid), msgspec.json.encode(thing), durable=False)
        self._by_uid[thing.uid] = thing

    def remove(self, uid: str) -> None:
        """It is no more. Raises `OSError`."""
        self._path(uid).unlink(missing_ok=True)
        self._by_uid.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}{SUFFIX}"
