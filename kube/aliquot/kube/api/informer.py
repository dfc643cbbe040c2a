"""Following many objects: a paged list, then a watch with bookmarks, for ever; kept are flat records, not objects.

- A list comes in pages of 500; a page whose continue token has expired (410) begins the list again.
- A watch begins at the list's resource version, is ended by the server after a while and by us when nothing, not
  even a bookmark, was heard for `silence_s`: a connection that is half open is noticed.
- 410 means that what we have seen is too old: list again. What the list no longer has is told as deleted. Where a list
  takes longer than the server remembers, it would never be finished: each next one comes in fewer, larger pages.
- An object that can't be read (it was stored by an older version, by looser rules) is none of the others' business. It
  is told once, and stays as it was last read: it is not taken for deleted, so nothing that it owns is ended.
- `age_s` says for how long nothing was heard; who decides by what is here asks it first and fails closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from aliquot.common.backoff import Backoff
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError, KubeExpired, KubeNotFound, KubeUnavailable, level_of, refused
from aliquot.kube.api.resources import Resource

log = logging.getLogger(__name__)

R = TypeVar("R")
"""What comes over the wire: a Struct with `metadata`."""
K = TypeVar("K")
"""What is kept."""

PAGE: Final = 500
_PAGE_GROWTH: Final = 4
SILENCE_S: Final = 55.0
_WATCH_PART: Final = 0.7
"""Of the silence that is allowed, the server ends each watch after so much: it sends bookmarks only about once a
minute, and the end of a watch is a word of it, too."""
_YIELD_EVERY: Final = 256
"""Events handled in one go before others have a turn."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    """A list whose objects are decoded one by one."""

    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _Envelope(msgspec.Struct):
    """An event of a watch, whose object is decoded once it is known of what type it is."""

    type: str
    object: msgspec.Raw


class _OnlyMeta(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Failure(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class Informer(Generic[R, K]):
    """All objects of a kind that selectors choose, kept by `NAMESPACE/NAME` as what `flatten` makes of them.

    Args:
        client: the API server.
        resource: the kind.
        shape: the Struct to decode: only its fields are.
        flatten: what is kept; None: nothing of this object.
        namespace: only this one; empty: all.
        fields: field selector.
        labels: label selector.
        optional: the cluster need not have this kind; it is followed as soon as it has.
        on_change: told `(key, before, after)` of each change, after it is kept; None stands for absence. More may
            be added to the list of that name.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        shape: type[R],
        flatten: Callable[[R], K | None],
        *,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        on_change: Callable[[str, K | None, K | None], None] | None = None,
        silence_s: float = SILENCE_S,
        page: int = PAGE,
        backoff: Backoff | None = None,
        optional: bool = False,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        """Set after the first whole list."""
        self.version = ""
        """The resource version up to which this is complete."""
        self.relists = 0
        self.unreadable: dict[str, str] = {}
        """Why objects can't be read that are there, by `NAMESPACE/NAME`."""
        self.on_unreadable: list[Callable[[str, str, str], None]] = []
        """Told `(key, uid, why)` of each, once."""
        self.problem = ""
        """Why it can't be followed at the moment; empty: it is."""
        self._client = client
        self._path = resource.path(namespace)
        self._selectors = {
            name: value for name, value in (("fieldSelector", fields), ("labelSelector", labels)) if value
        }
        self._items = msgspec.json.Decoder(_list_of(shape))
        self._one = msgspec.json.Decoder(shape)
        self._event = msgspec.json.Decoder(_Envelope)
        self._flatten = flatten
        self._kept: dict[str, K] = {}
        self.on_change: list[Callable[[str, K | None, K | None], None]] = [] if on_change is None else [on_change]
        self._silence_s = silence_s
        self._page = page
        self._page_now = page
        self._behind = False
        """Whether nothing was followed yet since the last list."""
        self._backoff = backoff or Backoff(0.2, 15.0, quick=3)
        self._heard_at = 0.0
        self._optional = optional

    # ---------------------------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept.values())

    def get(self, key: str) -> K | None:
        """By `NAMESPACE/NAME`, or `NAME` where there are no namespaces."""
        return self._kept.get(key)

    def items(self) -> Mapping[str, K]:
        """What is kept; not a copy."""
        return self._kept

    def age_s(self) -> float:
        """For how long nothing was heard of the API server."""
        return asyncio.get_running_loop().time() - self._heard_at

    @property
    def trustworthy(self) -> bool:
        """Whether this was complete, and the server heard, within the silence that is allowed."""
        return self.synced.is_set() and self.age_s() <= self._silence_s

    # -------------------------------------------------------------------------------------------------- following

    async def run(self) -> None:
        """Follow until cancelled. Errors are told once in the log, and tried again with growing pauses."""
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
                self._heard()
                self._caught_up()
                self._well()
            except KubeExpired as error:
                self.version = ""
                self.relists += 1
                if self._behind:
                    self._page_now *= _PAGE_GROWTH
                    self._unwell(error)
                    await asyncio.sleep(self._backoff.next_s())
            except KubeError as error:
                self._unwell(error)
                pause_s = error.retry_after_s if isinstance(error, KubeUnavailable) else None
                await asyncio.sleep(pause_s if pause_s is not None else self._backoff.next_s())

    def _well(self) -> None:
        if self.problem:
            log.info("%s is followed again", self._path)
        self.problem = ""
        self._backoff.succeeded()

    def _caught_up(self) -> None:
        self._behind = False
        self._page_now = self._page

    def _unwell(self, error: KubeError) -> None:
        text = error.message
        if text != self.problem:
            level = logging.ERROR if isinstance(error, KubeNotFound) else level_of(error)
            if self._optional and isinstance(error, KubeNotFound):
                level = logging.INFO
            log.log(level, "%s can't be followed: %s", self._path, error.explain())
        self.problem = text

    async def _list(self) -> None:
        token, version = "", ""
        found: dict[str, K] = {}
        unreadable: set[str] = set()
        self._behind = True
        while True:
            params = {**self._selectors, "limit": str(self._page_now)}
            if token:
                params["continue"] = token
            answer = await self._client.call("GET", self._path, params=params, timeout_s=60.0)
            page = self._page_of(answer, unreadable)
            version = page.metadata.resource_version
            for item in page.items or ():
                flat = self._flatten(item)
                if flat is not None:
                    found[_key(item)] = flat
            token = page.metadata.continue_
            if not token:
                break
            await asyncio.sleep(0)
        self._heard()
        found |= {key: self._kept[key] for key in unreadable if key in self._kept}
        self.unreadable = {key: why for key, why in self.unreadable.items() if key in unreadable}
        before, self._kept = self._kept, found
        for tell in self.on_change:
            for key in before.keys() - found.keys():
                tell(key, before[key], None)
            for key, flat in found.items():
                if before.get(key) != flat:
                    tell(key, before.get(key), flat)
        self.version = version
        self._well()
        self.synced.set()

    async def _watch(self) -> None:
        params = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(max(1, int(self._silence_s * _WATCH_PART))),
        }
        handled = 0
        stream = self._client.lines(self._path, params, read_timeout_s=self._silence_s)
        try:
            async for line in stream:
                self._take(line)
                handled += 1
                if handled % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            await stream.aclose()

    def _take(self, line: bytes) -> None:
        event = _decoded(self._event, line, self._path)
        self._heard()
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            raise refused(failure.code or 410, failure.reason, failure.message, self._path)
        self._caught_up()
        if event.type == "BOOKMARK":
            self.version = _decoded(_ONLY_META, event.object, self._path).metadata.resource_version
            return
        item: Any
        try:
            item = self._one.decode(event.object)
        except msgspec.MsgspecError as error:
            if event.type != "DELETED":
                self.version = self._not_read(event.object, error).resource_version
                return
            item = _decoded(_ONLY_META, event.object, self._path)
        key = _key(item)
        flat = None if event.type == "DELETED" else self._flatten(item)
        before = self._kept.get(key)
        self.unreadable.pop(key, None)
        if flat is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = flat
        self.version = item.metadata.resource_version
        if before is not None or flat is not None:
            for tell in self.on_change:
                tell(key, before, flat)

    def _page_of(self, answer: bytes, unreadable: set[str]) -> Any:  # noqa: ANN401 - of any kind
        """A page's objects; added to `unreadable`: which of them can't be read."""
        try:
            return self._items.decode(answer)
        except msgspec.ValidationError:
            page = _decoded(_RAW_LIST, answer, self._path)
        except msgspec.MsgspecError as error:
            raise KubeUnavailable(f"{self._path}: an answer that can't be read: {error}") from error
        items = []
        for raw in page.items or ():
            try:
                items.append(self._one.decode(raw))
            except msgspec.MsgspecError as error:
                unreadable.add(_key_of(self._not_read(raw, error)))
        page.items = items
        return page

    def _not_read(self, raw: msgspec.Raw, error: msgspec.MsgspecError) -> _Meta:
        meta: _Meta = _decoded(_ONLY_META, raw, self._path).metadata
        key = _key_of(meta)
        if self.unreadable.get(key) != str(error):
            self.unreadable[key] = str(error)
            log.error(
                "%s %s can't be read: %s; it stays as it was, with all that it holds, until it is mended or deleted",
                self.resource.plural,
                key,
                error,
            )
            for tell in self.on_unreadable:
                tell(key, meta.uid, str(error))
        return meta

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()


def _list_of(shape: type[Any]) -> type[Any]:
    return msgspec.defstruct(
        f"{shape.__name__}List",
        [
            ("metadata", _ListMeta, msgspec.field(default_factory=_ListMeta)),
            ("items", list[shape] | None, msgspec.field(default_factory=list)),  # type: ignore[valid-type]
        ],
    )


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw, what: str) -> Any:  # noqa: ANN401 - of any kind
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise KubeUnavailable(f"{what}: an answer that can't be read: {error}") from error


def _key(item: Any) -> str:  # noqa: ANN401 - any Struct with metadata
    return _key_of(item.metadata)


def _key_of(meta: Any) -> str:  # noqa: ANN401 - of any kind
    return f"{meta.namespace}/{meta.name}" if meta.namespace else str(meta.name)


_RAW_LIST: Final = msgspec.json.Decoder(_RawList)
_ONLY_META: Final = msgspec.json.Decoder(_OnlyMeta)
