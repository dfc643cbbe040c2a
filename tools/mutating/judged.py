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
_PLAN = "coordinator/aliquot/coordinator/core/preemption/displacement.py"
_INVENTORY = "coordinator/aliquot/coordinator/core/inventory/inventory.py"
_POOL = "coordinator/aliquot/coordinator/core"
_HELD = (
    "held = account.by_model.get(over.model, [0, 0, 0]) if over.model else [account.share_milli, account.memory_bytes]"
)
_IN_TIME = "return request.time_limit_ms > 0 and closure.phase is Phase.CLOSING and ends_ms <= closure.starts_ms"
_RUNS = "return request.time_limit_ms + request.grace_ms if request.time_limit_ms else 0"
_COMPUTE = "compute = np.array([c.compute_milli for c in inventory.classes] + [0], np.int64)[classes][:, None]"
_BY_MEMORY = "by_memory = np.where(memory > 0, np.maximum(memory_left, 0) // np.maximum(memory, 1), MANY)"
_ENOUGH = "enough = 0 < compute_milli >= demand.share_milli and memory_bytes >= demand.memory_bytes"
_MOST = "most = np.where(left >= share[:, None], table.memory_left[rows], 0).max(axis=1)"
_LIMITED = "if pool.spec.limit.share_milli >= 0 or pool.spec.limit.memory_bytes >= 0"
_PATH = "path, sums = [self._head] * HEIGHT_MAX, [0] * (HEIGHT_MAX + 1)"
_OVER = "if lease is None or lease.ended or lease.ending:"
_UNLIMITED = "whoever asks has looked already whether there is a time limit"
_TO_FREE = "held[1] + sum(part[2] for part in asked) - limit.memory_bytes if limit.memory_bytes >= 0 else 0,"
_SUBSETS = "return [tuple(ordered[:size]) for size in range(1, len(ordered) + 1)]"
_PER = "per_share, per_memory = max(memory, 1) * (share > 0), max(share, 1) * (memory > 0)"
_OF_MODEL = "held = account.by_model.get(of_model.model, [0, 0, 0])"
_TAKEN = "done, self._done, self.repriced = self._done, [], False"
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
    f"{_POOL}/preemption/search.py NumberReplacer 19: return (0, 0), {{}}, tuple(free[:count])": (
        "compared with groups in which somebody must end: that is more than nobody in both"
    ),
    f"{_POOL}/placement/index.py NumberReplacer 31: slots = slice(slot, slot + 1)": "only the first column is read",
    f"{_POOL}/elastic/decide.py ReplaceOrWithAnd 21: {_OVER}": "what has ended has no slices on notice, nor timers",
    f"{_POOL}/placement/capacity.py NumberReplacer 75: {_COMPUTE}": "rows without a class have no devices",
    f"{_POOL}/placement/capacity.py ReplaceComparisonOperator_Gt_GtE 32: {_BY_MEMORY}": "every slice has some memory",
    f"{_POOL}/inventory/changes.py NumberReplacer 14: CHANGES_MAX = 8192": "beyond them all is looked at: only speed",
    f"{_POOL}/tenancy/ranking.py NumberReplacer 68: {_PATH}": "a place more that nobody uses",
    f"{_POOL}/elastic/shrinking.py NumberReplacer 48: {_HELD}": "whoever holds none of a model has none to give back",
    f"{_POOL}/elastic/shrinking.py NumberReplacer 19: return (), 0": "a time is looked at only where there are slices",
    f"{_POOL}/memory.py ReplaceFalseWithTrue 26: self.look_again = False": "at the start one pass is made anyway",
    f"{_POOL}/timers.py NumberReplacer 18: _LAST_KIND = 1 << 30": "above every kind in both",
    f"{_POOL}/maintenance/closing.py NumberReplacer 82: {_RUNS}": _UNLIMITED,
    f"{_POOL}/maintenance/closing.py ReplaceComparisonOperator_Gt_GtE 33: {_IN_TIME}": _UNLIMITED,
    f"{_POOL}/leases/records.py ReplaceFalseWithTrue 20: billing: bool = False": "whoever makes a slice says it",
    f"{_POOL}/placement/matching.py NumberReplacer 21: {_ENOUGH}": "every instance and profile computes something",
    f"{_POOL}/leases/granting.py NumberReplacer 42: {_LIMITED}": "an unlimited pool is looked at and never full",
    f"{_POOL}/placement/survey.py NumberReplacer 73: {_MOST}": "what is below zero is shown as zero",
    f"{_POOL}/known.py ReplaceTrueWithFalse 30: memory.fold_due = True": "a second timer finds nothing left to fold",
    f"{_POOL}/preemption/search.py NumberReplacer 84: {_PER}": "a factor for all; who is short of one thousandth alone",
    f"{_POOL}/ledger/rates.py NumberReplacer 19: return 0": "only usage asks",
    f"{_POOL}/ledger/books.py ReplaceFalseWithTrue 58: {_TAKEN}": "all meters are told again: only speed",
    f"{_POOL}/tenancy/limits.py NumberReplacer 63: {_OF_MODEL}": "the number of slices is not limited",
    f"{_POOL}/tenancy/decay.py NumberReplacer 28: for _ in range(_STEPS - 1):": "a factor more that nobody uses",
    f"{_POOL}/timers.py ReplaceBinaryOperator_Mul_Add 22: if self._head * 2 > len(self._near):": _ONLY_SPEED,
    f"{_POOL}/placement/accelerated.py NumberReplacer 19: return _loaded[0][0] if _loaded else None": "there is one",
    f"{_POOL}/placement/accelerated.py ReplaceTrueWithFalse 15: return True": "scored again, by NumPy: only speed",
    f"{_POOL}/placement/engine.py ReplaceComparisonOperator_Gt_GtE 32: if demand.gang_size > 1:": (
        "a gang of one is placed as one is"
    ),
    f"{_POOL}/preemption/displacement.py ReplaceComparisonOperator_Gt_Lt 26: if len(cache) > len(state.nodes):": (
        _ONLY_SPEED
    ),
    f"{_POOL}/preemption/exact.py NumberReplacer 52: {_SUBSETS}": "that nobody ends frees nothing",
    f"{_POOL}/queueing/passes.py NumberReplacer 44: self._highest = max(counts, default=0)": "somebody waits there",
    f"{_POOL}/queueing/failed.py NumberReplacer 18: cpu_milli=0,": "the same for all that are compared",
    f"{_POOL}/elastic/shrinking.py NumberReplacer 102: {_TO_FREE}": "nothing is missing in both",
    f"{_POOL}/leases/facts.py NumberReplacer 36: return self.not_before_ms > 0": "no clock is at one millisecond",
    f"{_POOL}/memory.py NumberReplacer 17: freed: int = 0": "at the start there is nothing to be forgotten",
}
