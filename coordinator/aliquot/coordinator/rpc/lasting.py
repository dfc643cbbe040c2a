"""Calls that may last, by the token that opened them: they end when it does.

TLS and tokens are looked at when a call begins. So whoever is let in keeps a stream for as long as it likes, unless
somebody ends it: this does, at once when a token is revoked or a role is taken away, and within a second when a token
expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from aliquot.common.errors import AliquotError
from aliquot.coordinator.errors import Overloaded, RolesChanged, Unauthenticated
from aliquot.coordinator.rpc.caller import Caller, caller
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.calls import Context, Handler, kind_of

SWEEP_S = 0.5
_RETRY_MS = 2_000


class _Open:
    """One call under way."""

    __slots__ = ("caller", "counted", "ours", "task", "why")

    def __init__(self, who: Caller, task: asyncio.Task[Any], *, counted: bool) -> None:
        self.caller = who
        self.counted = counted
        self.task = task
        self.why: AliquotError | None = None
        self.ours = True
        """Whether its task is in our code, and not in gRPC's, which writes an answer: cancelled there, it would end
        without telling the caller anything, not even that it has.
        """

    def end(self, why: AliquotError) -> None:
        if self.why is None:
            self.why = why
            if self.ours:
                self.task.cancel()

    async def tell(self, context: Context) -> None:
        """Its task was cancelled: tell its caller why it ends, where it was us who ended it."""
        if self.why is not None:
            self.task.uncancel()
            await rpc_errors.abort(context, self.why)


class LastingCalls:
    """All that are under way."""

    def __init__(self, streams_max: int = 0) -> None:
        self.streams_max = streams_max
        """Of one principal at a time; 0: any number."""
        self._open: dict[str, dict[_Open, None]] = {}
        """By token id, in the order in which they came: they end in the same."""
        self._tokens_of: dict[str, dict[str, None]] = {}
        """By principal, the ids of tokens that calls are open with."""
        self._counted: dict[str, int] = {}
        """By principal."""

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def wrap(self, handler: Handler, *, counted: bool = True) -> Handler:
        """The same method, whose calls end with their token. `counted`: they are among the caller's `streams_max`."""
        make, behaviour = kind_of(handler)

        async def streamed(request: object, context: Context) -> AsyncIterator[object]:
            entry = self._enter(counted=counted) or await self._refuse(context)
            try:
                async for answer in behaviour(request, context):
                    if entry.why is None:
                        entry.ours = False
                        yield answer
                        entry.ours = True
                    if entry.why is not None:
                        await rpc_errors.abort(context, entry.why)
            except asyncio.CancelledError:
                await entry.tell(context)
                raise
            finally:
                self._leave(entry)

        async def answered(request: object, context: Context) -> object:
            entry = self._enter(counted=counted) or await self._refuse(context)
            try:
                return await behaviour(request, context)
            except asyncio.CancelledError:
                await entry.tell(context)
                raise
            finally:
                self._leave(entry)

        ending = streamed if handler.response_streaming else answered
        return make(ending, handler.request_deserializer, handler.response_serializer)

    def _enter(self, *, counted: bool) -> _Open | None:
        """None where the caller has as many as one may have."""
        task, who = asyncio.current_task(), caller()
        assert task is not None
        if counted:
            others = self._counted.get(who.principal, 0)
            if 0 < self.streams_max <= others:
                return None
            self._counted[who.principal] = others + 1
        entry = _Open(who, task, counted=counted)
        self._open.setdefault(who.token_id, {})[entry] = None
        if who.token_id:
            self._tokens_of.setdefault(who.principal, {})[who.token_id] = None
        return entry

    def _leave(self, entry: _Open) -> None:
        who = entry.caller
        entries = self._open[who.token_id]
        del entries[entry]
        if not entries:
            del self._open[who.token_id]
            if who.token_id:
                of_principal = self._tokens_of[who.principal]
                del of_principal[who.token_id]
                if not of_principal:
                    del self._tokens_of[who.principal]
        if entry.counted:
            others = self._counted[who.principal] - 1
            if others:
                self._counted[who.principal] = others
            else:
                del self._counted[who.principal]

    async def _refuse(self, context: Context) -> NoReturn:
        said = f"{caller().principal} has {self.streams_max} watches and calls that wait (`access.streams_max`)"
        await rpc_errors.abort(context, Overloaded(said, retry_after_ms=_RETRY_MS))

    def changed(self, still: Callable[[str], Caller | None], token_ids: frozenset[str], names: frozenset[str]) -> None:
        """Tokens and principals have changed: end what is no longer theirs to do. `still`: who holds a token now.

        Only what is open for these is looked at: whoever has a token may make and end others of their own all day.
        """
        concerned = dict.fromkeys(sorted(token_ids))
        for name in sorted(names):
            concerned |= self._tokens_of.get(name, {})
        for token_id in concerned:
            entries = self._open.get(token_id) if token_id else None
            if not entries:
                continue
            now = still(token_id)
            for entry in list(entries):
                if now is None:
                    entry.end(Unauthenticated("TOKEN_REVOKED", f"token {token_id} has ended", hint="`aliquot login`"))
                elif not set(entry.caller.grants) <= set(now.grants):
                    entry.end(RolesChanged("roles of the caller were taken away; call again with those that are left"))

    def end_all(self, why: AliquotError) -> None:
        """End everything that is under way, for the same reason."""
        for entry in [entry for entries in self._open.values() for entry in entries]:
            entry.end(why)

    def sweep(self, now_ms: int) -> None:
        """End what was opened with tokens that have expired."""
        for token_id, entries in list(self._open.items()):
            for entry in list(entries):
                if 0 < entry.caller.expires_ms <= now_ms:
                    entry.end(
                        Unauthenticated("TOKEN_EXPIRED", f"token {token_id} has expired", hint="`aliquot login` again")
                    )
