"""What a program needs to use a lease that is served: the file that `aliquot run --remote` and Kubernetes write."""

from __future__ import annotations

import msgspec


class TicketPart(msgspec.Struct, frozen=True):
    """One of the lease's slices."""

    slice_id: str
    endpoint: str
    """Empty: it is not served at the moment."""
    device_model: str
    share_milli: int
    memory_bytes: int


class Ticket(msgspec.Struct, frozen=True):
    """Programs find the file by `ALIQUOT_REMOTE_TICKET`."""

    lease_id: str
    lease_epoch: int
    tenant: str
    credential: str
    parts: tuple[TicketPart, ...]
    ending: str = ""
    """Why it is ending or has ended: the coordinator's word, such as PREEMPTED; empty: it goes on."""
    detail: str = ""

    def __repr__(self) -> str:
        """Without the credential."""
        return f"Ticket({self.lease_id}, epoch {self.lease_epoch}, {len(self.parts)} parts, {self.ending or 'goes on'})"
