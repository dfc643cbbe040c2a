"""What the commands print as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from aliquot.cli._exits import exit_of
from aliquot.client import AliquotError
from aliquot.client.documents import of_error, plain

__all__ = ["dumps", "error_document", "plain"]


def dumps(value: object, *, indent: int | None = None) -> str:
    """JSON text; in ASCII where the terminal does not speak UTF-8, so that nothing is lost."""
    utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    return json.dumps(plain(value), indent=indent, ensure_ascii=not utf8)


def error_document(error: AliquotError) -> dict[str, Any]:
    """An error as JSON for stderr."""
    return {"error": of_error(error) | {"exit_code": int(exit_of(error))}}
