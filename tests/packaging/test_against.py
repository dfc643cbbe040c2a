"""What `make bench-against` calls slower, and that it finds both sides' figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import against
from bench.lib.checkout import Checkout
from tests.packaging.layout import REPOSITORY


def compared(name: str, base: list[float], head: list[float]) -> list[str]:
    return against.slower(against.Comparison({name: {"base": base, "head": head}}, {}, {}).ratios())


@pytest.mark.parametrize(
    ("name", "base", "head", "is_slower"),
    [
        ("allocate.cpu_us_per_lease", [100, 100, 100], [120, 121, 130], True),
        ("allocate.cpu_us_per_lease", [100, 100, 100], [104, 105, 106], False),  # less than its loss
        ("allocate.cpu_us_per_lease", [100, 100, 100], [99, 140, 150], False),  # a round without loss
        ("allocate.leases_per_s", [100, 100, 100], [70, 75, 80], True),  # more is better
        ("allocate.leases_per_s", [100, 100, 100], [130, 140, 150], False),
        ("remote.waits_per_step", [0, 0, 0], [1, 1, 1], True),  # nothing before, something now
        ("start.coordinator_modules", [433, 433, 433], [450, 450, 450], True),
    ],
)
def test_slower_is_what_lost_more_than_is_allowed_in_every_round(
    name: str, base: list[float], head: list[float], is_slower: bool
) -> None:
    assert (compared(name, base, head) == [name]) is is_slower


def test_a_bench_or_a_flag_that_a_checkout_lacks_is_left_out(tmp_path: Path) -> None:
    checkout = Checkout("base", tmp_path, Path("python"))
    bench = next(bench for bench in against.BENCHES if bench.name == "queueing")
    with pytest.raises(against.LeftOutError, match="no such bench"):
        against.run(bench, checkout, bench.flags, tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/queue.py").write_text('add_argument("--jobs"), add_argument("--trace"), add_argument("--json")')
    with pytest.raises(against.LeftOutError, match="without --policies"):
        against.run(bench, checkout, bench.flags, tmp_path)


def test_every_bench_is_there_with_its_flags() -> None:
    checkout = Checkout("head", REPOSITORY, Path("python"))
    for bench in against.BENCHES:
        for flags in (bench.flags, bench.quick):
            assert against.script_of(bench, checkout, flags).is_file()
