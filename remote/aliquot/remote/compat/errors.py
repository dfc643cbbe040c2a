"""What is said of features of CUDA that a remote device does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.remote.errors import RemoteError


class NotOnRemoteError(RemoteError, NotImplementedError):
    """A feature that remote devices don't have. `feature` is its name."""

    def __init__(self, feature: str, instead: str = "") -> None:
        then = f"; {instead}" if instead else ""
        super().__init__(f"{feature} does not work on a remote GPU (docs/remote-scripts.md){then}")
        self.feature = feature


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
