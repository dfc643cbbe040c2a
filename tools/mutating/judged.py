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
_CORE = "agent/aliquot/agent/core"
_ENFORCED = f"{_CORE}/enforcement.py NumberReplacer"
_IDENTIFIED = "return [use for use in uses if use.process is not None and (use.memory_bytes or 0) > 0]"
_SEEN = "offences[process] = Offence(asked, sightings=before.sightings + 1, since_ms=begun_ms, why=answerable)"
_LEAST = "least = min(known_before.get(slice_id, 0), piece.known_bytes, unexplained.get(slice_id, 0))"
_VICTIMS = "coordinator/aliquot/coordinator/core/preemption/victims.py NumberReplacer"
_ENDING = "return 0 if self.reclaim and not is_protected(self.state, lease, self._scale) else NEVER_MS"
_PLAN = "coordinator/aliquot/coordinator/core/preemption/plan.py"
_INVENTORY = "coordinator/aliquot/coordinator/core/inventory/inventory.py"
_ONLY_SPEED = "what is kept there is a cache: only the speed changes"
EQUIVALENT: dict[str, str] = {
    f"{_ENFORCED} 84: {_IDENTIFIED}": "less than nothing is not above nothing either",
    f"{_ENFORCED} 72: {_SEEN}": "two looks are enough, more are not told apart",
    f"{_ENFORCED} 96: {_LEAST}": "what is below zero adds nothing, as zero does",
    f"{_ENFORCED} 20: since_ms: int = 0": "not read before the first sighting, which sets it",
    f"{_CORE}/reservations.py NumberReplacer 18: slices: int = 0": "whoever makes one says all three numbers",
    f"{_VICTIMS} 16: NEVER_MS = 1 << 62": "both are after the end of every clock",
    f"{_VICTIMS} 19: {_ENDING}": "both are before now",
    f"{_PLAN} ReplaceComparisonOperator_Gt_Lt 33: if len(self._caches) > CACHES_MAX:": _ONLY_SPEED,
    f"{_PLAN} RemoveCall 12: self._caches.move_to_end(key)": _ONLY_SPEED,
    f"{_INVENTORY} NumberReplacer 26: self._next_rank = 0": "ranks are only compared with one another",
    f"{_INVENTORY} RemoveCall 12: self._rebuild()": "rows of removed nodes fit nothing: only memory is saved",
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 73: {_OPEN}": "Python opens every descriptor close-on-exec anyway",
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 52: {_FOLDER}": _NO_FLAG,
    f"{_FILES} ReplaceBinaryOperator_BitOr_BitAnd 38: {_FOLDER}": _NO_FLAG,
    f"{_JOURNAL}/sqlite.py NumberReplacer 38: {_PAGES}": "pages are copied, however many at a time, to the last",
    f"{_JOURNAL}/sqlite.py NumberReplacer 113: {_CONNECT}": "how many statements are kept parsed: speed alone",
    f"{_JOURNAL}/tools.py RemoveCall 8: journal.close()": _UNOPENED,
}
