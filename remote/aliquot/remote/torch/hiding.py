"""Keeps `torch.compile` out of our own functions: what happens inside a remote tensor is no part of a user's program.

The compiler is told through its C part, which is there without the seconds that its Python part takes to load.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch


def hide(package: str) -> None:
    """Have the compiler leave every function of a package's loaded modules alone."""
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    for code in _codes(value):
                        frames.set_code_exec_strategy(code, skip)


def _codes(value: object) -> Iterator[CodeType]:
    if isinstance(value, FunctionType):
        yield from _nested(value.__code__)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _codes(value.__func__)
    elif isinstance(value, type):
        for member in vars(value).values():
            if isinstance(member, (FunctionType, staticmethod, classmethod)):
                yield from _codes(member)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
