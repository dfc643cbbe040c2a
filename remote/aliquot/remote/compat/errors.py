"""What stands in the place of features of CUDA that a remote device does not have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aliquot.remote.errors import NotOnRemoteError


def refusing(feature: str, instead: str = "") -> Callable[..., Any]:
    """A function that refuses to be called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotOnRemoteError(feature, instead)

    return refuse


def translating(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's whose errors call the devices by the names that the program has for them."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except RuntimeError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (error.args[0].replace("aliquot:", "cuda:").replace("[aliquot", "[torch.cuda."),)
            raise

    return call


def refusing_class(feature: str, instead: str = "") -> type:
    """A class that refuses to be made, so that `isinstance` goes on working."""

    def refuse(_: type, *__: Any, **___: Any) -> Any:
        raise NotOnRemoteError(feature, instead)

    return type(feature.rpartition(".")[2], (), {"__new__": refuse, "__doc__": f"Not on a remote GPU: {feature}."})
