"""What production code logs together with an exception is a defect that it has caught: here it is one that is found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Finder(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def found_in_logs(found: list[str]) -> Iterator[None]:
    """For the length of a block, the product's log goes here and nowhere else."""
    logger = logging.getLogger("aliquot")
    before = logger.level, logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [_Finder(found)]
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
