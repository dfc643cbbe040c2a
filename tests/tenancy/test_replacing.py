"""What a declaration replaces is shown before, and what it leaves out disappears only where that was meant."""

from __future__ import annotations

from pathlib import Path

from tests.command_line import cli
from tests.coordinator.pool import running
from tests.tenancy.test_admin_service import POOL_FILE

PRICES = 'prices: {gpu_hour: {"*": 2}}\n'


async def test_what_would_disappear_is_named_and_stays_unless_it_is_agreed_to(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    async with running() as pool:

        async def apply(text: str, *more: str) -> tuple[int, str, str]:
            file.write_text(text)
            return await cli(pool.address, "apply", "-f", str(file), *more)

        code, said, _ = await apply(POOL_FILE)
        assert (code, "disappears" in said) == (0, False)
        less = "queues: [{name: vision, parent: training}]\ntenants: [{name: research, queue: vision}]\n" + PRICES
        for more in ((), ("--dry-run",)):
            code, said, error = await apply(less, *more)
            assert code == (0 if more else 2)
            for line in (
                "queue vision: policy disappears (was slowdown)",
                "tenant research: quota.limit.share_milli disappears (was 8000)",
                "tenant research: budget.money_micro disappears (was 2500500000)",
                "prices: currency disappears (was EUR)",
                "prices: tiers.1.discount_permille disappears (was 100)",
                "prices: rates.*.gpu_hour_micro 1000000 -> 2000000",
            ):
                assert line in said
            assert more or "--yes" in error
        assert "0 declared" in (await apply(POOL_FILE))[1], "nothing was changed"
        code, said, _ = await apply(less, "--yes")
        assert (code, "3 declared" in said) == (0, True)


async def test_what_is_as_the_coordinator_has_it_anyway_may_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    async with running() as pool:
        for text in (
            "pools: [{name: p}]\nqueues: [{name: q, on_over_limit: {action: refuse}}]\n"
            "tenants: [{name: t, budget: {money: 5}, on_over_limit: {action: refuse}}]\n" + PRICES,
            "pools: [{name: p, limit: {gpus: 3}}]\n"
            "queues: [{name: q, on_over_limit: {action: refuse}, weight: 2, idle: {action: lend}}]\n"
            "tenants: [{name: t, budget: {money: 6}, on_over_limit: {action: refuse}}]\n" + PRICES.replace("2", "3"),
            "queues: [{name: q, on_over_limit: {action: refuse}, weight: 3, idle: {action: notify}}]\n",
        ):
            file.write_text(text)
            code, said, error = await cli(pool.address, "apply", "-f", str(file))
            assert (code, "disappears" in said) == (0, False), (said, error)


async def test_a_pool_keeps_the_currency_in_which_something_was_charged(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    async with running() as pool:

        async def price(currency: str) -> tuple[int, str, str]:
            file.write_text(f'prices: {{currency: {currency}, gpu_hour: {{"*": 2}}}}\n')
            return await cli(pool.address, "apply", "-f", str(file))

        await pool.declare(1)
        assert [(await price(name))[0] for name in ("USD", "EUR")] == [0, 0], "nothing was charged yet"
        lease = await pool.allocate("1", tenant="a")
        code, _, error = await price("USD")
        assert code != 0
        assert "charged and paid is in EUR" in error
        await pool.release(lease.lease_id)
        assert (await price("USD"))[0] != 0
        assert "EUR" in (await cli(pool.address, "invoice", "a"))[1]
