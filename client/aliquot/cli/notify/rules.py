"""The file that says whom to tell.

::

    rules:
      - name: vision-chat
        tenant: vision                       # it and all below it; without: everybody
        to: ["slack://…", "mailto://…"]      # as Apprise writes it
      - name: reclaimer
        control: https://optimise.example/findings
        control_token_file: /etc/aliquot/reclaimer.token
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aliquot.cli.notify.notices import Rule
from aliquot.common.errors import ConfigError
from aliquot.common.files import read_document, read_text

_KEYS = {"name", "tenant", "to", "control", "control_token_file"}


def read_rules(path: Path) -> list[Rule]:
    """Raises `ConfigError`."""
    content = read_document(path)
    listed = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} has no rules", hint="such as rules: [{name: all, to: ['mailto://…']}]")
    rules = [_rule(each, f"{path}: rules[{number}]") for number, each in enumerate(listed)]
    if len({rule.name for rule in rules}) < len(rules):
        raise ConfigError(f"{path}: two rules have one name", hint="what was told is remembered by it")
    return rules


def _rule(value: Any, where: str) -> Rule:  # noqa: ANN401 - whatever the file holds
    if not isinstance(value, dict) or (unknown := set(value) - _KEYS):
        raise ConfigError(f"{where}: unknown: {unknown if isinstance(value, dict) else value!r}", hint=str(_KEYS))
    to = value.get("to", [])
    if not isinstance(to, list) or bool(to) is bool(value.get("control")) or not value.get("name"):
        raise ConfigError(f"{where}: a name, and either `to` (a list) or `control`", hint="see docs/idleness.md")
    token_file = value.get("control_token_file")
    token = read_text(Path(token_file)).strip() if token_file else ""
    control, tenant = str(value.get("control", "")), str(value.get("tenant", ""))
    return Rule(str(value["name"]), tuple(map(str, to)), control, tenant, token)
