"""What stands in the place of features of CUDA that a remote device does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.remote.errors import NotOnRemoteError


def refusing(feature: str, instead: str = "") -> Callable[..., Any]:
    """A function that refuses to be called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotOnRemoteError(feature, instead)

    return refuse


def refusing_class(feature: str, instead: str = "") -> type:
    """A class that refuses to be made, so that `isinstance` goes on working."""

    def refuse(_: type, *__: Any, **___: Any) -> Any:
        raise NotOnRemoteError(feature, instead)

    return type(feature.rpartition(".")[2], (), {"__new__": refuse, "__doc__": f"Not on a remote GPU: {feature}."})
