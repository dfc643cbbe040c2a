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

import yaml

from aliquot.cli.notify.notices import Rule
from aliquot.common.errors import ConfigError

_KEYS = {"name", "tenant", "to", "control", "control_token_file"}


def read_rules(path: Path) -> list[Rule]:
    """Raises `ConfigError`."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {error}", hint="a YAML file with `rules`") from error
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
    try:
        token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else ""
    except OSError as error:
        raise ConfigError(f"{where}.control_token_file: {error}", hint="name a file that can be read") from error
    control, tenant = str(value.get("control", "")), str(value.get("tenant", ""))
    return Rule(str(value["name"]), tuple(map(str, to)), control, tenant, token)
