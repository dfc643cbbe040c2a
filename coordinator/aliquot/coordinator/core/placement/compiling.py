"""Makes machine code of the price kernel that runs in a process without numba: an object file of one function.

What numba makes for callers in Python counts references, wraps arguments and raises exceptions, and for all of that it
calls into its own modules, which take half a second and a hundred megabytes. The kernel needs none of it: numbers and
arrays come in, as words in memory (`Scene.words`), and numbers go out.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from numba.core import types
from numba.core.caching import Cache, CacheImpl
from numba.core.compiler import Flags, compile_extra
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.misc.special import typeof

from aliquot.coordinator.core.placement.accelerated import ENTRY, Scene
from aliquot.coordinator.core.placement.price_kernel import score


def object_code(scene: Scene) -> bytes:
    """`score` for this processor, from numba's cache or in some seconds: `ENTRY` takes the address of the words.

    Raises RuntimeError where numba makes no such code here.
    """
    target, typing = cpu_target.target_context, cpu_target.typing_context
    target.refresh()
    typing.refresh()
    call = typeof((scene, scene.width, 0, 0))
    cache = None
    with contextlib.suppress(RuntimeError):  # nowhere to keep it: then it is compiled each time
        cache = _Kept(score.py_func)
        found: bytes | None = cache.load_overload(str(call), target)
        if found is not None:
            return found
    flags = Flags()
    # No reference counts, wrappers for Python or exceptions: all of them would call into numba.
    flags.nrt, flags.no_cpython_wrapper, flags.no_cfunc_wrapper, flags.error_model = False, True, True, "numpy"
    compiled = compile_extra(typing, target, _entry(call), (types.voidptr,), types.none, flags, {})
    module = compiled.library._final_module  # noqa: SLF001 - numba has no word for code that is to run elsewhere
    module.get_function(compiled.fndesc.mangled_name).name = ENTRY
    missing = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if missing:  # to load it would end the process
        raise RuntimeError(f"the compiled code needs {', '.join(missing)}")
    made = _Made(target.codegen(), target.codegen()._tm.emit_object(module))  # noqa: SLF001
    if cache is not None:
        cache.save_overload(str(call), made)
    return made.object_code


def _entry(call: Any) -> Any:  # noqa: ANN401 - numba's
    """A function that takes the arguments of `score` from an address, where they lie as numba lays out such a tuple."""

    def load(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.load(builder.bitcast(arguments[0], context.get_value_type(call).as_pointer()))

    def call_at(_typing: Any, _address: Any) -> Any:  # noqa: ANN401
        return call(types.voidptr), load

    arguments_at = intrinsic(call_at)

    def entry(address: Any) -> None:  # noqa: ANN401
        scene, rows, first_slot, end_slot = arguments_at(address)
        score(scene, rows, first_slot, end_slot)

    return entry


class _Made(NamedTuple):
    """What numba's cache takes, which asks the first for the processor."""

    codegen: Any
    object_code: bytes


class _ObjectCode(CacheImpl):  # type: ignore[misc]
    """What is kept."""

    def reduce(self, data: _Made) -> bytes:
        """What goes to the disk."""
        return data.object_code

    def rebuild(self, target_context: object, reduced_data: bytes) -> bytes:
        """What comes from there."""
        return reduced_data

    def check_cachable(self, data: object) -> bool:
        """Whether it may be kept at all."""
        return True


class _Kept(Cache):  # type: ignore[misc]
    """numba's cache of the kernel: by its arguments, the processor, the versions, and the time of the source."""

    _impl_class = _ObjectCode
