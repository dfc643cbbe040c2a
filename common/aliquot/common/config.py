"""Settings: defaults, then a TOML file, then the environment, then flags; later ones win.

A schema is a `msgspec.Struct` or a dataclass; a field whose type is itself one becomes a TOML table.
Nothing is ignored: an unknown key, an unknown variable with the part's prefix or a value of the wrong type is an error
that names its place and, if one is similar, the setting that was probably meant.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec

from aliquot.common._settings_values import SettingValueError, from_text, from_toml
from aliquot.common.errors import ConfigError
from aliquot.common.text import nearest

T = TypeVar("T")
DEFAULT_ORIGIN: Final = "default"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Settings, and for each dotted key where its value came from: `default`, a file, a variable or a flag."""

    settings: T
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One setting: its dotted key, and the type of its value as annotated."""

    key: str
    hint: Any

    @property
    def flat(self) -> str:
        """`journal.path` as flags and variables write it: `journal_path`."""
        return self.key.replace(".", "_")


def load(
    schema: type[T],
    *,
    env_prefix: str,
    file: Path | None = None,
    table: str | None = None,
    tables: Iterable[str] = ("coordinator", "agent", "client", "console"),
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded[T]:
    """Gathers the settings of one part.

    Args:
        schema: the type of the settings; it is made with only the given values, so defaults stay in one place.
        env_prefix: of this part's variables, such as `ALIQUOT_AGENT_`; `journal.path` is then
            `ALIQUOT_AGENT_JOURNAL_PATH`. Every variable with the prefix must be a setting.
        file: a TOML file, which must exist; None for none.
        table: the part's table in a file that it shares with other parts; None when the whole file is its own.
        tables: the tables of the other parts in that file.
        env: the environment.
        flags: values by dotted key or by its flat form (`journal_path`); None means not given.

    Raises:
        ConfigError: for anything that is not understood, with its place and setting.
    """
    leaves = {leaf.key: leaf for leaf in _leaves(schema)}
    values: dict[str, object] = {}
    origins = dict.fromkeys(leaves, DEFAULT_ORIGIN)
    stated = [
        *_from_file(file, table, tables, leaves),
        *_from_env(env or {}, env_prefix, leaves),
        *_from_flags(flags or {}, leaves),
    ]
    for leaf, value, origin in stated:
        values[leaf.key], origins[leaf.key] = value, origin
    return Loaded(_make(schema, "", values, env_prefix), origins)


def parse(
    schema: type[T],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    *,
    env_prefix: str,
    table: str,
    env: Mapping[str, str] | None = None,
) -> T:
    """The settings of a program whose flags are settings; see `flags_of`. Raises ConfigError."""
    flags = flags_of(parser, arguments, env_prefix, table)
    file, env = flags.pop("config"), os.environ if env is None else env
    return load(schema, env_prefix=env_prefix, file=file, table=table, env=env, flags=flags).settings


def flags_of(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, env_prefix: str, table: str
) -> dict[str, Any]:
    """What is given of a program's own flags, and of those that all programs have: `--config`, and about the log."""
    parser.epilog = f"Every setting can also be given as {env_prefix}<NAME>, or in the [{table}] table of --config."
    parser.add_argument("--config", metavar="FILE", type=Path, help=f"a TOML file; its table [{table}] is read")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning, error (info)")
    parser.add_argument("--log-json", action="store_true", default=None, help="one JSON object a line")
    return vars(parser.parse_args(arguments))


def read_toml(file: Path) -> dict[str, Any]:
    """Reads a TOML file. Raises `ConfigError` when it can't be read or is not TOML."""
    import tomllib  # noqa: PLC0415 - many programs have no file

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="name a file that exists and can be read") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{file}: no TOML: {error}", hint="see https://toml.io for the syntax") from error


_Stated = tuple[_Leaf, object, str]


def _from_file(
    file: Path | None, table: str | None, tables: Iterable[str], leaves: Mapping[str, _Leaf]
) -> Iterable[_Stated]:
    if file is None:
        return
    document = read_toml(file)
    if table is not None:
        for name in document:
            if name not in {table, *tables}:
                raise _unknown(f"{file}: [{name}]", name, {table, *tables})
        document = document.get(table, {})
    where = f"{file}: [{table}]" if table else str(file)
    for key, value in _flatten(document, where, leaves):
        yield leaves[key], _convert(from_toml, value, leaves[key], f"{where} {key}"), str(file)


def _flatten(
    document: object, where: str, leaves: Mapping[str, _Leaf], prefix: str = ""
) -> Iterable[tuple[str, object]]:
    if not isinstance(document, dict):
        raise ConfigError(
            f"{where} {prefix.rstrip('.')}".rstrip() + ": a table was expected", hint="write it as a TOML table"
        )
    for name, value in document.items():
        key = prefix + name
        if key in leaves:
            yield key, value
        elif any(known.startswith(f"{key}.") for known in leaves):
            yield from _flatten(value, where, leaves, f"{key}.")
        else:
            raise _unknown(f"{where} {key}", key, leaves)


def _from_env(env: Mapping[str, str], prefix: str, leaves: Mapping[str, _Leaf]) -> Iterable[_Stated]:
    by_variable = {prefix + leaf.flat.upper(): leaf for leaf in leaves.values()}
    for variable, text in env.items():
        if not variable.startswith(prefix):
            continue
        if variable not in by_variable:
            raise _unknown(variable, variable, by_variable)
        leaf = by_variable[variable]
        yield leaf, _convert(from_text, text, leaf, variable), variable


def _from_flags(flags: Mapping[str, object], leaves: Mapping[str, _Leaf]) -> Iterable[_Stated]:
    by_name = {name: leaf for leaf in leaves.values() for name in (leaf.flat, leaf.key)}
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-").replace(".", "-")
        if name not in by_name:
            raise _unknown(flag, name, by_name)
        if value is not None:
            leaf = by_name[name]
            converter = from_text if isinstance(value, str) else from_toml
            yield leaf, _convert(converter, value, leaf, flag), flag


def _convert(converter: Any, value: object, leaf: _Leaf, where: str) -> object:  # noqa: ANN401
    try:
        return converter(value, leaf.hint)
    except SettingValueError as error:
        raise ConfigError(f"{where}: {error}", hint=error.hint) from error


def _make(schema: Any, prefix: str, values: Mapping[str, object], env_prefix: str) -> Any:  # noqa: ANN401
    given: dict[str, object] = {}
    for name, hint in _fields(schema).items():
        key = prefix + name
        if _is_schema(hint):
            if any(each.startswith(f"{key}.") for each in values):
                given[name] = _make(hint, f"{key}.", values, env_prefix)
        elif key in values:
            given[name] = values[key]
    try:
        return schema(**given)
    except TypeError as error:
        missing = [prefix + name for name in _required(schema) if name not in given]
        if not missing:
            raise
        variable = env_prefix + missing[0].replace(".", "_").upper()
        raise ConfigError(f"{missing[0]}: not set", hint=f"set it in the file, as {variable} or as a flag") from error
    except ValueError as error:
        raise ConfigError(f"{prefix.rstrip('.') or 'settings'}: {error}", hint=getattr(error, "hint", "")) from error


def _leaves(schema: Any, prefix: str = "") -> Iterable[_Leaf]:  # noqa: ANN401
    for name, hint in _fields(schema).items():
        if _is_schema(hint):
            yield from _leaves(hint, f"{prefix}{name}.")
        else:
            yield _Leaf(prefix + name, hint)


def _is_schema(hint: Any) -> bool:  # noqa: ANN401
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint))


def _fields(schema: Any) -> dict[str, Any]:  # noqa: ANN401
    hints = get_type_hints(schema, include_extras=True)
    if issubclass(schema, msgspec.Struct):
        return {field.name: hints[field.name] for field in msgspec.structs.fields(schema)}
    return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.init}


def _required(schema: Any) -> list[str]:  # noqa: ANN401
    if issubclass(schema, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(schema) if field.required]
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(schema) if f.default is missing and f.default_factory is missing]


def _unknown(where: str, name: str, known: Iterable[str]) -> ConfigError:
    near = nearest(name, sorted(known))
    return ConfigError(f"{where}: no such setting", hint=f"did you mean {near[0]}?" if near else "remove it")
