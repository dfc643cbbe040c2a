"""Keeps `torch.compile` out of what is no part of a user's program: our own functions, and PyTorch's that foresee.

The compiler is told through its C part, which is there without the second that its Python part takes to load.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._decomp import global_decomposition_table


def hide(package: str) -> None:
    """Have the compiler leave every function of a package's loaded modules alone."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    for code in _codes(value):
                        _skip(code)


def hide_pytorch() -> None:
    """The same for those of PyTorch's meta kernels that would load the compiler to be left alone by it.

    Where another version of PyTorch does this by other means they load it, as they do without us. What loads it in any
    case is a step of an optimizer.
    """
    seen: set[FunctionType] = set()
    waiting: list[object] = [kernel for table in global_decomposition_table.values() for kernel in table.values()]
    for name, module in list(sys.modules.items()):
        if name == "torch._refs" or name.startswith("torch._refs."):
            waiting += vars(module).values()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        with suppress(ValueError):  # a cell that is empty still
            within = [cell.cell_contents for cell in function.__closure__ or ()]
            if function.__code__ is _LEFT_ALONE:
                for hidden in within:
                    if isinstance(hidden, FunctionType):
                        _skip(hidden.__code__)
                        vars(hidden).setdefault("__dynamo_disable", hidden)
            waiting += within


_LEFT_ALONE = torch._disable_dynamo(hide).__code__  # type: ignore[attr-defined]
"""Of whatever PyTorch keeps from the compiler: it loads that when first called, unless its function has this mark."""


def _skip(code: CodeType) -> None:
    frames: Any = torch._C._dynamo.eval_frame
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP))


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
