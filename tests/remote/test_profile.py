"""Where a program's time went: counts that are exact, times that add up, and lines that are the program's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import aliquot.remote.torch as remote
from aliquot.remote import profile
from aliquot.remote.core.profile import Place, Profile


def test_waits_are_counted_by_the_line_that_waits(device: torch.device) -> None:
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 4, device=device)
    loss = x
    with profile() as found:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.detach().sum().item()  # read one by one
            loss.to("cpu", non_blocking=True)
        loss.cpu()
    (seen,) = found.profiles
    places = {place.what: place for place in seen.places}
    assert (seen.steps, seen.waits, places[".item()"].waits, places[".cpu()"].waits) == (4, 9, 8, 1)
    lines = Path(__file__).read_text().splitlines()
    assert "read one by one" in lines[places[".item()"].line - 1]
    assert seen.operators > 40
    assert seen.sent_bytes > 0
    assert seen.elapsed_s >= seen.busy_s >= seen.within_s > 0
    assert seen.here_s + seen.wire_s + seen.for_server_s == pytest.approx(seen.elapsed_s)
    assert f"2 waits a step, {places['.item()'].waited_s / 4 * 1e3:.2f} ms: .item() at test_profile.py:" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["devices"][0]["waits"] == 9


def test_captured_steps_are_steps_and_a_session_that_ends_is_kept(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    step = remote.capture(lambda: x.mul_(0.5))
    with profile() as found:
        for _ in range(6):
            step()
    assert found.profiles[0].steps == 3, "the first was done as it is, two were recorded"
    with profile() as found:
        assert str(found) == "no remote device was used"
        found.step()
        found.remove(remote.session_of(device))
        x.tolist()
    assert (found.profiles[0].steps, found.profiles[0].waits) == (1, 0)


def made(**more: float) -> Profile:
    numbers = dict.fromkeys(("within_s", "device_s", "held_s"), 0.0) | {"elapsed_s": 1.0, "busy_s": 0.4} | more
    place = Place(".item()", "/somewhere/train.py", 41, 170, 0.5)
    return Profile(
        "cuda:0", "cuda", steps=10, round_trip_s=0.001, operators=1000, waits=170, sent_bytes=1, received_bytes=1,
        places=[place], **{"waited_s": 0.5} | numbers,
    )  # fmt: skip


def test_it_says_what_to_change() -> None:
    assert made().advice()[0].startswith("17 waits a step: .item() at train.py:41. Read results after several steps")
    (own,) = made(waited_s=0.01).advice()
    assert own.startswith("the program's own time is most of it, and the server stands by: torch.compile")
    assert "a larger part" in made(waited_s=0.05, busy_s=0.95).advice()[0]
    assert made(waited_s=0.05, busy_s=0.6).advice() == []
    assert made().wire_s == pytest.approx(0.17)
    assert made().for_server_s == pytest.approx(0.33)
    assert "waiting for the GPU" in made().table()
