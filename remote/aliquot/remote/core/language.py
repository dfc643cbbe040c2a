"""How the messages of both engines become frames: one tagged array each, so that a frame says what it is.

Arrays rather than maps, so that names of fields don't travel. Fields are only ever appended, with defaults. What is
more bytes than message is a frame of its own that begins with a byte below 128, as no array does.
"""

from __future__ import annotations

import re
from typing import Union

import msgspec


class MessageError(ValueError):
    """A frame that is no message of its kind."""


class Part(msgspec.Struct, array_like=True, frozen=True):
    """What messages consist of."""


class Message(Part, frozen=True, tag=lambda name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()):
    """What is said by itself. An engine's messages are the subclasses of its own subclass of this."""


_ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A frame of a message. Raises `OverflowError`, `TypeError` for values that no message holds."""
    return _ENCODER.encode(message)


class Decoder:
    """Reads the frames of one engine."""

    def __init__(self, messages: type[Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(Union[tuple(messages.__subclasses__())])  # noqa: UP007 - made of a list

    def __call__(self, frame: bytes) -> msgspec.Struct:
        """The message of a frame.

        Raises:
            MessageError: it is none.
        """
        try:
            message: msgspec.Struct = self._decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageError(f"no such message: {error}") from None
        return message
