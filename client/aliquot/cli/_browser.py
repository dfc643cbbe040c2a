"""Lets a browser in at a console: by a link with a code that counts once."""

from __future__ import annotations

from aliquot.client import NotLoggedIn
from aliquot.common.https import exchange
from aliquot.common.names import plain_text

TIMEOUT_S = 10.0


def link_to(console: str, token: str) -> str:
    """The page's address with a code that is good once, for ten minutes. Raises HttpError and NotLoggedIn."""
    answer = exchange(f"{console.rstrip('/')}/api/v1/session/codes", document={}, token=token, timeout_s=TIMEOUT_S)
    url = answer.document.get("url")
    if answer.status != 201 or not isinstance(url, str):
        detail = answer.document.get("detail")
        said = plain_text(detail, 200) if isinstance(detail, str) else f"status {answer.status}"
        raise NotLoggedIn(f"{console} gives no link: {said}", hint="is it a console of this pool?")
    # By the name that was given here, which leads there: the code and whose it is come from the answer.
    return f"{console.rstrip('/')}/login#{url.partition('#')[2]}"
