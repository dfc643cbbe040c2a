"""A stage whose every message and durable fact is written down, as lines for people."""

from __future__ import annotations

from typing import Any

from tests.golden import rendering
from tests.simulation.sim.network import Connection
from tests.simulation.sim.server import AGENT_SESSION
from tests.simulation.stage import Stage


class ToldStage(Stage):
    """See the module's docstring. Nothing that is played on it may be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._names = rendering.Names()
        self._said: list[str] = []

    def told(self, command: str) -> list[str]:
        """Carry a command out. Returns what was said and made durable because of it. Raises ValueError."""
        self._said = []
        self.play(command)
        assert not self.violations, self.violations
        return [self._names.plain(line) for line in self._said]

    def _tell(self, text: str) -> None:
        self._said.append(text)

    def _attach(self) -> None:
        super()._attach()
        store, network = self.world.store, self.world.network
        durable, deliver, answer = store.on_durable, network.on_deliver, network.on_answer

        def on_durable(record: Any, epoch: int) -> None:
            durable(record, epoch)
            self._said += rendering.facts(record.payload)

        def on_deliver(connection: Connection, up: bool, data: bytes) -> None:
            deliver(connection, up, data)
            if connection.note == AGENT_SESSION:
                text = rendering.from_agent(data) if up else rendering.from_coordinator(data)
                ends = (connection.client, connection.address)
                source, target = ends if up else ends[::-1]
            else:
                text = "names its leases" if up else "has heard"
                source, target = ("launcher", connection.address) if up else (connection.address, "launcher")
            if text:
                self._said.append(f"{source} -> {target}: {text}")

        def on_answer(address: str, method: str, request: bytes, result: Any) -> None:
            answer(address, method, request, result)
            name = method.rpartition("/")[2]
            self._said.append(f"{address} answers {name}: {rendering.answer(name, result)}")

        store.on_durable, network.on_deliver, network.on_answer = on_durable, on_deliver, on_answer
