"""Mutants that nobody could notice, each with the reason: they don't count."""

from __future__ import annotations

_FILES = "agent/aliquot/agent/disk/files.py"
_OPEN = "descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)"
_FOLDER = "descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)"
_NO_FLAG = "O_RDONLY is 0, and a folder opens without O_DIRECTORY"
_JOURNAL = "coordinator/aliquot/coordinator/writing/journal"
_PAGES = "source.backup(copy, pages=1024)"
_CONNECT = "uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S, cached_statements=32"
_UNOPENED = "reading opens connections of its own: an SQLite journal that was never opened has nothing to close"
EQUIVALENT: dict[str, str] = {
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 73: {_OPEN}": "Python opens every descriptor close-on-exec anyway",
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 52: {_FOLDER}": _NO_FLAG,
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 38: {_FOLDER}": _NO_FLAG,
    f"{_JOURNAL}/sqlite.py NumberReplacer 38: {_PAGES}": "pages are copied, however many at a time, to the last",
    f"{_JOURNAL}/sqlite.py NumberReplacer 113: {_CONNECT}": "how many statements are kept parsed: speed alone",
    f"{_JOURNAL}/tools.py RemoveCall 8: journal.close()": _UNOPENED,
}
