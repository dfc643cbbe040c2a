"""What is meant where nothing is said is part of the contract: defaults of the SDK, the settings and the command line.

They are saved beside this file, so that whoever changes one changes a line there, and CHANGELOG:

    ALIQUOT_REWRITE=1 make one T=tests/contract/test_defaults.py
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import aliquot.client
from aliquot.cli.commands import ALL
from aliquot.cli.main import build_parser, commands

SAVED = Path(__file__).with_name("defaults.txt")
SETTINGS = (
    "aliquot.agent.settings",
    "aliquot.client._settings",
    "aliquot.console.settings",
    "aliquot.console.monitor.readings",
    "aliquot.console.monitor.watching",
    "aliquot.coordinator.logins.config",
    "aliquot.coordinator.settings.config",
    "aliquot.kube.core.accounts",
    "aliquot.kube.node.settings",
    "aliquot.kube.settings",
)
NOTHING_SAID = (inspect.Parameter.empty, None, "", False, (), argparse.SUPPRESS)
"""Not worth a line each."""


def test_defaults_are_those_that_were_promised() -> None:
    lines = sorted({*_of_sdk(), *_of_settings(), *_of_command_line()})
    if os.environ.get("ALIQUOT_REWRITE"):
        SAVED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == SAVED.read_text(encoding="utf-8").splitlines()


def _of_sdk() -> Iterator[str]:
    names = [each.name for each in pkgutil.iter_modules(aliquot.client.__path__) if not each.name.startswith("_")]
    modules = [aliquot.client, *(importlib.import_module(f"aliquot.client.{name}") for name in names)]
    for module in modules:
        for name in sorted(getattr(module, "__all__", None) or vars(module)):
            thing = getattr(module, name)
            if not name.startswith("_") and str(getattr(thing, "__module__", "")).startswith("aliquot.client"):
                yield from _of_thing(f"sdk {name}", thing)


def _of_thing(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        yield from _of_fields(name, thing)
        for method, found in inspect.getmembers(thing, inspect.isroutine):
            if not method.startswith("_") or (method == "__init__" and not _fields(thing)):
                yield from _of_signature(f"{name}.{method}", found)
    elif inspect.isroutine(thing):
        yield from _of_signature(name, thing)


def _of_signature(name: str, found: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return  # of the interpreter's own
    for each in parameters:
        yield from _line(f"{name} {each.name}", each.default)


def _of_settings() -> Iterator[str]:
    for module in map(importlib.import_module, SETTINGS):
        for name, thing in _own_classes(module):
            yield from _of_fields(f"setting {module.__name__.removeprefix('aliquot.')} {name}", thing)


def _own_classes(module: ModuleType) -> list[tuple[str, type]]:
    return inspect.getmembers(
        module, lambda found: inspect.isclass(found) and found.__module__ == module.__name__ and bool(_fields(found))
    )


def _fields(thing: type) -> list[tuple[str, Any]]:
    if issubclass(thing, msgspec.Struct):
        return [(each.name, _made(each.default, each.default_factory)) for each in msgspec.structs.fields(thing)]
    if dataclasses.is_dataclass(thing):
        return [(each.name, _made(each.default, each.default_factory)) for each in dataclasses.fields(thing)]
    return []


def _made(default: Any, factory: Any) -> Any:
    if callable(factory):
        return factory()
    return None if default in (dataclasses.MISSING, msgspec.NODEFAULT) else default


def _of_fields(name: str, thing: type) -> Iterator[str]:
    for field, value in _fields(thing):
        yield from _line(f"{name} {field}", value)


def _line(name: str, value: Any) -> Iterator[str]:
    if any(value is each or (type(value) is type(each) and value == each) for each in NOTHING_SAID):
        return
    if _fields(type(value)) or callable(value):
        return  # has lines of its own
    if value or value == 0:
        yield f"{name} = {value!r}"


def _of_command_line() -> Iterator[str]:
    yield from _of_parser("aliquot", build_parser(commands([each.name for each in ALL])))


def _of_parser(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from _of_parser(f"{name} {word}", sub)
        else:
            yield from _line(
                f"{name} {action.option_strings[-1] if action.option_strings else action.dest}", action.default
            )
