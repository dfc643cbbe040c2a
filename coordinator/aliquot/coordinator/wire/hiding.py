"""Other tenants' leases in what is told to somebody: their ids become a word that says nothing.

Lists keep their length, so that how many there are is still told; in texts the word stands where the id was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from aliquot.common.ids import ALPHABET, ID_CHARS
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.view import View

Sees = Callable[[Lease], bool]
"""Whether somebody may see the whole of a lease."""
ANOTHERS: Final = "another's"
_ID: Final = re.compile(rf"\bl-[{ALPHABET}]{{{ID_CHARS}}}(?:\.\d+)*")


def shown_id(lease_id: str, view: View, sees: Sees | None) -> str:
    """The id of a lease, where it may be seen. `sees` is None for who sees all."""
    if sees is None:
        return lease_id
    lease = view.leases.get(lease_id.partition(".")[0])
    return lease_id if lease is not None and sees(lease) else ANOTHERS


def shown_ids(lease_ids: Iterable[str], view: View, sees: Sees | None) -> list[str]:
    """The same of several."""
    return [shown_id(lease_id, view, sees) for lease_id in lease_ids]


def shown_text(text: str, view: View, sees: Sees | None) -> str:
    """A text without the ids of leases that may not be seen."""
    if sees is None or "l-" not in text:
        return text
    return _ID.sub(lambda found: shown_id(found.group(), view, sees), text)


def of_tenant(tenant: str) -> Sees:
    """What all who see leases of this tenant may see: for what is made once for many."""
    return lambda lease: lease.request.tenant == tenant
