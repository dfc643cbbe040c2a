"""Contents that were sent once, by their hash: a second client with the same weights sends none of them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict


class Blobs:
    """A bounded store of contents, of one tenant alone. Any thread may use it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> bytes | None:
        """The content of a hash, if it is held."""
        with self._lock:
            content = self._contents.get(digest)
            if content is not None:
                self._contents.move_to_end(digest)
            return content

    def put(self, digest: bytes, content: bytes) -> bool:
        """Keep a content; what was used longest ago goes to make room. False where its hash is another."""
        if hashlib.sha256(content).digest() != digest:
            return False
        with self._lock:
            if digest not in self._contents and len(content) <= self._limit_bytes:
                self._contents[digest] = content
                self._held_bytes += len(content)
                while self._held_bytes > self._limit_bytes:
                    _, dropped = self._contents.popitem(last=False)
                    self._held_bytes -= len(dropped)
        return True
