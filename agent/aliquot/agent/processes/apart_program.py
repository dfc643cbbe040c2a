"""The other side of `apart`: calls one function, with what it is told by its standard input, and says what it returned.

    python -m aliquot.agent.processes.apart_program MODULE:FUNCTION

It imports little itself: who waits for it has waited for that, too.
"""

from __future__ import annotations

import importlib
import sys

import msgspec

from aliquot.common.errors import AliquotError


def answer(place: str, arguments: bytes) -> bytes:
    """What to say: the result, or why there is none and what to do about it."""
    module, _, function = place.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(*msgspec.msgpack.decode(arguments))
        return msgspec.msgpack.encode((result, "", ""))
    except AliquotError as error:
        return msgspec.msgpack.encode((None, error.message, error.hint))
    except ImportError as error:
        hint = "pip install 'aliquot[agent]'"
        return msgspec.msgpack.encode((None, f"what a node that has joined a pool needs is missing: {error}", hint))


if __name__ == "__main__":
    sys.stdout.buffer.write(answer(sys.argv[1], sys.stdin.buffer.read()))
