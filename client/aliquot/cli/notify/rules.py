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

from aliquot.cli._document import Found, Shape, each, read_file, text
from aliquot.cli.notify.notices import Rule
from aliquot.common.errors import ConfigError
from aliquot.common.files import naming, read_text
from aliquot.common.urls import check_url


def read_rules(path: Path) -> list[Rule]:
    """Raises `ConfigError`."""
    rules = read_file(path, _FILE)["rules"]
    if len({rule.name for rule in rules}) < len(rules):
        raise ConfigError(f"{path}: two rules have one name", hint="what was told is remembered by it")
    return list(rules)


def _rules(value: Found, where: str) -> tuple[Rule, ...]:
    rules = each(_RULE)(value, where)
    for number, rule in enumerate(rules):
        if bool(rule.to) is bool(rule.control):
            raise ConfigError(f"{where}[{number}]: either `to` or `control`", hint="see docs/idleness.md")
        if rule.control:
            with naming(f"{where}[{number}].control"):
                check_url(rule.control, public=not rule.control_token)  # a token goes to no other machine in the clear
    if not rules:
        raise ConfigError(f"{where}: no rules", hint="such as rules: [{name: all, to: ['mailto://…']}]")
    return rules


_RULE = Shape(
    Rule,
    {
        "name": text,
        "tenant": text,
        "to": each(text),
        "control": text,
        "control_token_file": ("control_token", lambda value, where: read_text(Path(text(value, where))).strip()),
    },
    needed=["name"],
)
_FILE: Shape[dict[str, tuple[Rule, ...]]] = Shape(dict, {"rules": _rules}, needed=["rules"])
