"""What each process of ours has: handed as one to whatever works with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aliquot.client import AsyncPool
from aliquot.kube.api.client import KubeClient
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.holding.book import LeaseBook, now_ms
from aliquot.kube.holding.pods import PodIndex
from aliquot.kube.holding.requests import Requests
from aliquot.kube.holding.telling import Teller


@dataclass(frozen=True, slots=True)
class Parts:
    """The API server, the pool, and what is known of both."""

    client: KubeClient
    pool: AsyncPool
    book: LeaseBook
    pods: PodIndex
    requests: Requests
    teller: Teller
    patience: Patience
    now_ms: Callable[[], int] = now_ms
    """Wall time."""
