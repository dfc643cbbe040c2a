"""Counts what can be reached from an object: how a test finds what is kept without knowing where."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections import Counter
from types import BuiltinFunctionType, CoroutineType, FrameType, FunctionType, ModuleType

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType, logging.Logger)
_COUNTED_ONLY = (asyncio.Future, asyncio.AbstractEventLoop, CoroutineType, weakref.ref)
"""From these one gets to everything: the stacks of all that runs."""


def everything_in(*roots: object) -> Counter[str]:
    """How many objects of each type hang on these, without classes, modules and code. Numbers and strings are not; what
    holds them is, and how many it holds.
    """
    seen: set[int] = set()
    found: Counter[str] = Counter()
    left = list(roots)
    while left:
        each = left.pop()
        # What a proxy stands for may be gone, and then it can't even be asked what it is.
        if id(each) in seen or type(each) in weakref.ProxyTypes or isinstance(each, _CODE):
            continue
        seen.add(id(each))
        if gc.is_tracked(each) or isinstance(each, (tuple, dict)):
            found[type(each).__name__] += 1
        if isinstance(each, (list, tuple, set, frozenset, dict)):
            found[f"items of {type(each).__name__}"] += len(each)
        if not isinstance(each, _COUNTED_ONLY):
            left.extend(gc.get_referents(each))
    return found
