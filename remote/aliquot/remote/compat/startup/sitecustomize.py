"""Imported by Python itself at its start, in programs of `aliquot run --remote`: their path begins with this folder.

It waits for PyTorch to be imported and then has `cuda` mean the lease. It knows nothing of aliquot until then, since
the program's Python may be another one that has none; and it goes on to whatever `sitecustomize` would be without it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

VARIABLE = "ALIQUOT_REMOTE_CUDA"


class _Loader:
    """Loads PyTorch as its own loader does, then tells it where `cuda` is."""

    def __init__(self, loader: object) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader that PyTorch has."""
        return self._loader.create_module(spec)  # type: ignore[attr-defined, no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As the loader that PyTorch has, then `activate`."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader  # type: ignore[assignment]
        self._loader.exec_module(module)  # type: ignore[attr-defined]
        try:
            from aliquot.remote.compat import activate  # noqa: PLC0415 - only now is it known to be needed
        except ImportError as error:
            # Going on would run for hours on this machine's processor, beside a lease that is paid for.
            raise SystemExit(
                f"aliquot run --remote: {sys.executable} has PyTorch but can't use the lease ({error}): "
                f"install 'aliquot[remote]' there, or set {VARIABLE}=0 to run without cuda"
            ) from error
        activate()


class _Finder:
    """Stands before all others until PyTorch is looked for."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """PyTorch's, with our loader around its own."""
        if name != "torch":
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def _go_on() -> None:
    """Run the `sitecustomize` that this one stands before, if there is one."""
    own = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - nothing is imported that Python has not loaded
    others = [each for each in sys.path if os.path.realpath(each) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get(VARIABLE) == "1":
    sys.meta_path.insert(0, _Finder)
_go_on()
