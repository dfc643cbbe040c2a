"""The extender's verbs, as they come over HTTP from the scheduler on the same machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from aliquot.kube.core.extending import BindArgs, FilterArgs, PreemptArgs
from aliquot.kube.extender.scheduling import Extender
from aliquot.kube.serving import Answer


def verbs(extender: Extender) -> Mapping[str, Answer]:
    """By path."""
    return {
        "/filter": _verb(FilterArgs, extender.filter),
        "/prioritize": _verb(FilterArgs, extender.prioritize),
        "/bind": _verb(BindArgs, extender.bind),
        "/preempt": _verb(PreemptArgs, extender.preempt),
    }


def _verb(shape: type[Any], decide: Callable[[Any], Awaitable[Any]]) -> Answer:
    decode, encode = msgspec.json.Decoder(shape).decode, msgspec.json.Encoder().encode

    async def answer(body: bytes) -> bytes:
        return encode(await decide(decode(body)))

    return answer
