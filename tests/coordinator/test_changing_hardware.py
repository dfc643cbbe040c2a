"""A node whose devices change while its agent is connected registers anew: found by the simulation (seed 34)."""

from __future__ import annotations

from tests.coordinator.pool import Agent, agents, eventually, running


async def test_an_agent_that_shows_other_devices_is_asked_to_connect_again() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1", uuids=("GPU-a",))
        async with agents(agent):
            await eventually(lambda: "n1" in pool.coordinator.view.nodes, "registered")
            await eventually(lambda: bool(agent.desired), "live")
            agent.uuids = ("GPU-a", "GPU-b")
            await agent.describe()
            await eventually(lambda: agent.ended is not None, "its session is over")
            assert "goodbye" in agent.received

        again = Agent(pool.address, "n1", uuids=("GPU-a", "GPU-b"))
        async with agents(again):
            view = pool.coordinator.view
            await eventually(lambda: len(view.nodes["n1"].spec.devices) == 2, "the second device is known")
            await eventually(lambda: view.nodes["n1"].state.name == "READY", "and the node is used again")


async def test_a_second_snapshot_of_the_same_devices_ends_nothing() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1", uuids=("GPU-a", "GPU-b"))
        async with agents(agent):
            await eventually(lambda: bool(agent.desired), "live")
            epoch = agent.welcome.session_epoch
            await agent.describe()
            await pool.allocate("1")
            await eventually(lambda: bool(agent.reservations), "it is told what to hold, on the same session")
            assert agent.ended is None
            assert agent.welcome.session_epoch == epoch
