"""Carrying out the effects of flows: once with threads, once with asyncio.

Whatever interrupts an effect (Ctrl-C, a cancelled task) is thrown into the flow where it waits, so that a flow can
clean up with effects of its own before the interruption goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from aliquot.client._flow import Attempt, Effect, Flow, Forget, Keep, Pause
from aliquot.client._transport import AsyncTransport, Transport

T = TypeVar("T")
KeepOrForget = Callable[[Keep | Forget], None]


def drive(flow: Flow[T], transport: Transport, keeping: KeepOrForget) -> T:
    """Run a flow to its end on this thread."""
    try:
        effect = next(flow)
        while True:
            try:
                outcome = _carry_out(effect, transport, keeping)
            except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
                effect = flow.throw(error)
            else:
                effect = flow.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _carry_out(effect: Effect, transport: Transport, keeping: KeepOrForget) -> object:
    match effect:
        case Attempt(method, request, address, timeout_s):
            return transport.unary(method, request, address, timeout_s)
        case Pause(seconds):
            time.sleep(seconds)
        case Keep() | Forget():
            keeping(effect)
    return None


async def drive_async(flow: Flow[T], transport: AsyncTransport, keeping: KeepOrForget) -> T:
    """Run a flow to its end on this event loop."""
    try:
        effect = next(flow)
        while True:
            try:
                outcome = await _carry_out_async(effect, transport, keeping)
            except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
                effect = flow.throw(error)
            else:
                effect = flow.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _carry_out_async(effect: Effect, transport: AsyncTransport, keeping: KeepOrForget) -> object:
    match effect:
        case Attempt(method, request, address, timeout_s):
            return await transport.unary(method, request, address, timeout_s)
        case Pause(seconds):
            await asyncio.sleep(seconds)
        case Keep() | Forget():
            keeping(effect)
    return None
