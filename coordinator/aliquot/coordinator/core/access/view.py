"""What decisions see of principals and tokens: read only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aliquot.coordinator.core.access.records import Principal, Token
from aliquot.coordinator.core.access.roles import Grant


class AccessView(Protocol):
    """`AccessBooks`, without what changes it."""

    @property
    def principals(self) -> Mapping[str, Principal]:
        """By name."""

    @property
    def tokens(self) -> Mapping[str, Token]:
        """By id."""

    @property
    def tokens_of(self) -> Mapping[str, Mapping[str, None]]:
        """Principal -> the ids of its tokens."""

    def grants_of(self, principal: str) -> tuple[Grant, ...]:
        """What a principal may do."""

    def grants_of_token(self, token: Token) -> tuple[Grant, ...]:
        """What the holder of a token may do."""
