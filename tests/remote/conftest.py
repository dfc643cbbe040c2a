"""Devices on engines in this process; all of it is left out where PyTorch is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.remote.channels import ServerProcess

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test TORCH=no)")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A process that serves. It is not this one, whose random numbers are the client's."""
    started = ServerProcess()
    yield started
    started.close()


@pytest.fixture
def device(server: ServerProcess) -> Iterator[Any]:
    """A remote device of 256 MiB in a session of its own."""
    import aliquot.remote.torch as remote

    made = remote.attach(server.connect(1 << 28))
    yield made
    remote.detach(made)
