"""The request that would start is told as the command to type, and as a request to programs."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace

import pytest

from aliquot.cli import _options as options
from aliquot.cli._written import written
from aliquot.client import Request, Serve, Tier, Topology


@pytest.mark.parametrize(
    "request_",
    [
        Request("0.25,8Gi"),
        Request("1(H100-80>A100)", tenant="a b", queue="x", priority=-3, gang_size=4, same_card=True),
        Request("2", node_ids=("n-1", "n-2"), node_selector={"zone": "x", "a": ""}, labels={"port": "8888"}),
        Request("10Gi", time_limit_s=90, min_run_s=5, grace_s=7, cpu_milli=1500, host_memory_bytes=3 << 29),
        Request("0.5", min_tier=Tier.MPS, topology=Topology.REQUIRE_ISLAND, serve=Serve.REMOTE, stop_signal="INT"),
        Request("0.5", min_count=1, max_count=8, or_mig=True, preemptible=True, movable=True, opportunistic=True),
        Request("0.1", affinity_group="g", max_per_node=2, spread_domains=True, cuda_ordinals=True, no_queue=True),
        Request("0.1", pool="big", name="it's", avoid_node_ids=("n-3",)),
    ],
    ids=lambda each: each.gpu,
)
def test_what_is_written_is_read_again(request_: Request) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gpu")
    options.request(parser)
    args = parser.parse_args(shlex.split(written(request_)))
    assert options.read_request(args.gpu, args) == replace(request_, stop_signal=request_.stop_signal or "TERM")
