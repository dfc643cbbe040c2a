"""Two pools with two policies: each request goes where its own policy puts it, whatever happens meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.mutations_kept import TWO_POLICIES
from tests.simulation.stage import Stage


def played(script: str) -> Stage:
    """A stage on which all went well."""
    stage = Stage()
    assert stage.play_all(script) == []
    return stage


def test_serving_is_spread_and_training_is_packed_beside_each_other() -> None:
    books = played(TWO_POLICIES).world.auditor.books
    by_queue = [
        sorted(
            piece.uuid for story in books.stories.values() if story.queue == queue for piece in story.pieces.values()
        )
        for queue in ("serving", "training")
    ]
    assert len(set(by_queue[0])) == 3
    assert len(set(by_queue[1])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_chance(seed: int) -> None:
    """Requests of both come and go, nodes close and open, the leader is killed; the auditor looks at each grant."""
    random = Random(seed)
    lines, living = [TWO_POLICIES], ["s1", "s2", "s3", "t1", "t2", "t3"]
    for number in range(30):
        match random.randrange(6):
            case 0 | 1 | 2:
                queue, share = random.choice(("serving", "training")), random.choice(("0.2", "0.3", "0.5"))
                lines.append(f"allocate l{number} {share} in={queue} until=granted ttl=3600")
                living.append(f"l{number}")
            case 3 if living:
                lines.append(f"release {living.pop(random.randrange(len(living)))}")
            case 4:
                node = f"node-{random.randrange(4):04}"
                lines += [f"cordon {node}", f"wait {random.choice((1, 5))}", f"uncordon {node}"]
            case _:
                lines += ["crash leader", "wait 10"]
    stage = played("\n".join([*lines, *(f"release {name}" for name in living), "wait 10"]))
    assert stage.world.auditor.facts["granted"] > 12
