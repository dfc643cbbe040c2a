"""Counts what can be reached from an object: how a test finds what is kept without knowing where."""

from __future__ import annotations

import gc
from collections import Counter
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, FrameType)


def everything_in(*roots: object) -> Counter[str]:
    """How many objects of each type hang on these, without classes, modules and code; plain values by the garbage
    collector's measure: numbers and strings are not counted, what holds them is.
    """
    seen: set[int] = set()
    found: Counter[str] = Counter()
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, _CODE):
            continue
        seen.add(id(each))
        if gc.is_tracked(each) or isinstance(each, (tuple, dict)):
            found[type(each).__name__] += 1
        if isinstance(each, (list, tuple, set, frozenset, dict)):
            found[f"items of {type(each).__name__}"] += len(each)
        left.extend(gc.get_referents(each))
    return found
