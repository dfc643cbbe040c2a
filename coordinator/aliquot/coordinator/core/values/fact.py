"""The base of all facts. The kinds are in each subject's books; `evolve` knows them all."""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True, array_like=True, tag_field="k"):
    """Base of all facts. `at_ms` is the coordinator's clock, which never goes backwards."""

    at_ms: int
