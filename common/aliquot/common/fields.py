"""Between a value and its message of the contract: a table says which field is which attribute; code follows from it.

    GENERATION = Writer(access_pb2.AuthorityGeneration, Generation, {"begun_by": "by", "sha256": lambda g, known: …})
    TOKEN = Reader(access_pb2.Token, Token)

Equal names need no line; neither do forms that follow from the types:

- `time_limit_s` is `time_limit_ms` of a value that counts in milliseconds;
- an enumeration whose members are texts has the contract's words, one whose members are numbers has its numbers; a text
  field holds the member's own text;
- a repeated field is a tuple, a map is a mapping or sorted pairs, a sum beyond 64 bits is digits in a text field;
- an absent `optional` field is None, or the value's negative default (`UNKNOWN`);
- as all over the contract, zero means "unset": a value whose default is something else has that default.

Everything else is a rule of the table, or left out with a reason. A table is compiled to straight-line code when it is
first used, so nothing is looked up per field afterwards, and importing tables costs nothing. `tests/contract` walks all
messages of the contract: a field that a table neither maps nor leaves out fails there, and so does a message without a
table, unless a reason is given.
"""

from __future__ import annotations

import dataclasses
import enum
import linecache
import re
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aliquot.common.errors import InvalidFieldError

M = TypeVar("M", bound=Message)
V = TypeVar("V")
_SHOWN_CHARS = 32
_FILES = "<fields of "
_numbers = count(1)
_TARGET = re.compile(r"into\.(\w+)")
_SECONDS, _MILLISECONDS = "_s", "_ms"
_MISSING: Any = object()
_Field: TypeAlias = Any
"""Protobuf's descriptor of a field, of whichever implementation is in use."""
_Hint: TypeAlias = Any
"""A type form."""


_tables: dict[tuple[type, type, type], Any] = {}
"""By direction, message and value: the first that was declared, which messages within others are converted by."""


class Table(Generic[M, V]):
    """What a message and a value have in common."""

    all: ClassVar[list[Table[Any, Any]]] = []
    """Every table that was declared so far, for the test that walks the contract."""

    def __init__(
        self,
        message: type[M],
        value: type[V],
        rules: Mapping[str, Any] = types.MappingProxyType({}),
        *,
        parts: Sequence[str] = (),
        left_out: Mapping[str, str] = types.MappingProxyType({}),
        rest: str = "",
    ) -> None:
        """`parts`: where else names are looked for, one step further in: attributes of a Writer's value, fields of a
        Reader's message. `rest`: why all that has no rule is left out.
        """
        self.message_type = message
        self.value_type = value
        self.rules = rules
        self.parts = parts
        self.left_out = left_out
        self.rest = rest
        Table.all.append(self)
        _tables.setdefault((type(self), message, value), self)

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The message's fields by name, without those that are left out."""
        known = {field.name: field for field in self.message_type.DESCRIPTOR.fields}
        if unknown := set(self.left_out) - set(known):
            raise TypeError(f"{self} has no fields {', '.join(sorted(unknown))}")
        return {name: field for name, field in known.items() if name not in self.left_out}

    def __str__(self) -> str:
        return f"{self.message_type.DESCRIPTOR.name} of {self.value_type.__name__}"


Computed: TypeAlias = Callable[[Any, Any], Any]
"""From the whole value (of a Reader: the whole message), and what the caller gave beside it."""
Writing: TypeAlias = "str | Computed | Writer[Any, Any] | tuple[str | Computed, Writer[Any, Any]]"
"""Another name or a path (`plan.node_id`), a computation, or how a message within is written (and from what)."""
Reading: TypeAlias = "str | Computed | Reader[Any, Any]"


class Writer(Table[M, V]):
    """Fills messages from values. `rules` are by the fields' names; `rest`: why all that no rule names is left out."""

    rules: Mapping[str, Writing]

    def message(self, value: V, beside: Any = None) -> M:  # noqa: ANN401 - the caller's own
        """A new message."""
        made = self.message_type()
        self.write(made, value, beside)
        return made

    @cached_property
    def write(self) -> Callable[..., None]:
        """`write(into, value, beside)` fills an empty message in place; computations are given `beside`, too."""
        code = _Code("into, value, beside=None", str(self))
        if unknown := set(self.rules) - set(self.fields):
            raise TypeError(f"{self} has no fields {', '.join(sorted(unknown))}")
        for name, field in self.fields.items():
            if name in self.rules:
                self._one(code, field, self.rules[name])
            elif not self.rest:
                self._one(code, field, _named_alike(self, field))
        written: Callable[..., None] = code.function()
        return written

    def _one(self, code: _Code, field: _Field, rule: Writing) -> None:
        source, within = (
            rule if isinstance(rule, tuple) else (field.name, rule) if isinstance(rule, Writer) else (rule, None)
        )
        hint, default = None, _MISSING
        if isinstance(source, str):
            code.line(f"v = value.{source}")
            hint, default = _hint_of(self.value_type, source)
        else:
            code.line(f"v = {code.name(source)}(value, beside)")
        hint, _ = _optional(hint)
        target = f"into.{field.name}"
        if _is_map(field):
            code.line(f"if v: {target}.update(v if hasattr(v, 'keys') else dict(v))")
        elif field.message_type is not None:
            self._message(code, field, within or _within(field, hint, Writer))
        elif field.is_repeated:
            form = _outward(code, field, (get_args(hint) or (None,))[0], "each")
            code.line(f"if v: {target}.extend({'v' if form == 'each' else f'[{form} for each in v]'})")
        else:
            in_seconds = isinstance(source, str) and source.endswith(_MILLISECONDS) and field.name.endswith(_SECONDS)
            form = "v // 1000" if in_seconds else _outward(code, field, hint, "v")
            code.line(f"{_where_set(field, form, default)}{target} = {form}")

    def _message(self, code: _Code, field: _Field, within: Writer[Any, Any] | None) -> None:
        target = f"into.{field.name}"
        if within is None:  # a computation has made messages
            code.line(f"if v is not None: {target}.{'extend' if field.is_repeated else 'CopyFrom'}(v)")
        elif field.is_repeated:
            code.line(f"for each in v: {code.name(within.write)}({target}.add(), each, beside)")
        else:
            code.line(f"if v is not None: {target}.SetInParent(); {code.name(within.write)}({target}, v, beside)")


class Reader(Table[M, V]):
    """Makes values from messages. `rules` are by the value's attributes; one that has a default and no field has it."""

    rules: Mapping[str, Reading]

    tells_path = False
    """Whether anything in it may be refused, so that it is worth putting the path together."""

    @cached_property
    def read(self) -> Callable[..., V]:
        """`read(message, path)` makes a value. `path` is where the message stands in what was sent, for errors.

        Raises InvalidFieldError for a text that is no word of its enumeration, and what its rules raise.
        """
        code = _Code('message, path=""', str(self))
        for part in self.parts:
            code.line(f"{part} = message.{part}")
        arguments = []
        attributes = _attributes(self.value_type)
        if unknown := set(self.rules) - set(attributes):
            raise TypeError(f"{self} has no attributes {', '.join(sorted(unknown))}")
        for name, (hint, default) in attributes.items():
            given = self.rules.get(name, name)
            source, within = (name, given) if isinstance(given, Reader) else (given, None)
            if not isinstance(source, str):
                self.tells_path = True
                arguments.append(f"{name}={code.name(source)}(message, path)")
            elif (found := self._field(source)) is not None:
                arguments.append(f"{name}={self._one(code, *found, _Attribute(name, hint, default), within)}")
            elif default is _MISSING:
                raise TypeError(f"{self}: no field is named {source}, and it has no default: give it a rule")
        code.line(f"return {code.name(self.value_type)}({', '.join(arguments)})")
        reads: Callable[..., V] = code.function()
        return reads

    def _field(self, name: str) -> tuple[str, _Field] | None:
        """The message that has a field of this name: this one, or one of its parts."""
        names = (name, name.removesuffix(_MILLISECONDS) + _SECONDS) if name.endswith(_MILLISECONDS) else (name,)
        for known in names:
            if known in self.fields:
                return "message", self.fields[known]
            for part in self.parts:
                inner: _Field = self.fields[part]
                if known in (fields := inner.message_type.fields_by_name):
                    return part, fields[known]
        return None

    def _one(
        self, code: _Code, message: str, field: _Field, attribute: _Attribute, within: Reader[Any, Any] | None
    ) -> str:
        found, (hint, nullable) = f"{message}.{field.name}", _optional(attribute.hint)
        is_set = f"{message}.HasField({field.name!r})"
        path = f"(path + '.{field.name}' if path else {field.name!r})"
        inner = (get_args(hint) or (None,))[0] if field.is_repeated else hint
        if _is_map(field):
            return f"tuple(sorted({found}.items()))" if get_origin(hint) is tuple else f"dict({found})"
        if field.message_type is not None:
            within = within or _within(field, hint, Reader)
            if within is None:
                raise TypeError(f"{self}: {field.name} is a message: give it a rule")
            read = code.name(within.read)
            self.tells_path |= within.tells_path
            if field.is_repeated and within.tells_path:
                return f"tuple([{read}(each, {path} + f'[{{number}}]') for number, each in enumerate({found})])"
            if field.is_repeated:
                return f"tuple([{read}(each) for each in {found}])"
            form = f"{read}({found}, {path})" if within.tells_path else f"{read}({found})"
            return f"{form} if {is_set} else None" if nullable else form
        self.tells_path |= _is_word_in_text(field, inner)
        if field.is_repeated:
            form = _inward(code, field, inner, "each", path)
            return f"tuple({found})" if form == "each" else f"tuple([{form} for each in {found}])"
        in_seconds = attribute.name.endswith(_MILLISECONDS) and field.name.endswith(_SECONDS)
        form = f"{found} * 1000" if in_seconds else _inward(code, field, hint, found, path)
        default = attribute.default
        if field.has_presence:
            return f"{form} if {is_set} else {'None' if default is _MISSING else code.name(default)}"
        # What is unset is as the value has it by itself.
        return form if default is _MISSING or not default else f"({form} if {found} else {code.name(default)})"


class _Attribute(NamedTuple):
    name: str
    hint: _Hint
    default: Any


def reader(message: type[M], value: type[V]) -> Reader[M, V]:
    """The table of a message and a value: the declared one, else of equal names."""
    found: Reader[M, V] | None = _tables.get((Reader, message, value))
    return Reader(message, value) if found is None else found


def writer(message: type[M], value: type[V]) -> Writer[M, V]:
    """Likewise."""
    found: Writer[M, V] | None = _tables.get((Writer, message, value))
    return Writer(message, value) if found is None else found


def refused_at(error: BaseException) -> str:
    """The path of the field that a Writer could not set; empty: it was none."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [_TARGET.search(frame.line or "") for frame in frames if frame.filename.startswith(_FILES)]
    return ".".join(found.group(1) for found in names if found is not None)


def word(kind: type[enum.Enum], text: str, path: str) -> Any:  # noqa: ANN401 - a member of `kind`
    """The member that a text names. Raises InvalidFieldError, which says what there is."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidFieldError(path, f"{text[:_SHOWN_CHARS]!r} is none of: {known}", hint=known) from None


class _Code:
    """A function that is being written. What it needs is given to it by name, so nothing is looked up when it runs."""

    def __init__(self, parameters: str, title: str) -> None:
        self._head = f"def generated({parameters}):\n"
        self._title = title
        self._lines: list[str] = []
        self._known: dict[str, Any] = {}

    def line(self, text: str) -> None:
        """Add a line."""
        self._lines.append(f"    {text}\n")

    def name(self, thing: Any) -> str:  # noqa: ANN401 - whatever the code needs
        """A name for something that the code needs."""
        for known, there in self._known.items():
            if there is thing:
                return known
        name = f"_{len(self._known)}"
        self._known[name] = thing
        return name

    def function(self) -> Any:  # noqa: ANN401 - a function
        """Compile it. Its text is kept where tracebacks look for it."""
        text = self._head + ("".join(self._lines) or "    pass\n")
        # Two tables may have the same title: in coordinator and client, say. Each has its own lines.
        file = f"{_FILES}{self._title}, {next(_numbers)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), self._known)  # noqa: S102 - written above, from our own tables
        return self._known["generated"]


def _named_alike(table: Table[Any, Any], field: _Field) -> str:
    """The attribute of a field without a rule."""
    name: str = field.name
    names = (name, name.removesuffix(_SECONDS) + _MILLISECONDS) if name.endswith(_SECONDS) else (name,)
    for known in names:
        if _has(table.value_type, known):
            return known
        for part in table.parts:
            if _has(_optional(_hint_of(table.value_type, part)[0])[0], known):
                return f"{part}.{known}"
    raise TypeError(f"{table}: {table.value_type.__name__} has no {name}: give the field a rule, or leave it out")


def _has(kind: type, name: str) -> bool:
    return name in _attributes(kind) or hasattr(kind, name)


_attributes_known: dict[type, Mapping[str, tuple[Any, Any]]] = {}


def _attributes(kind: type) -> Mapping[str, tuple[Any, Any]]:
    """The type and the default of each attribute, in the order of the constructor's parameters; gathered once."""
    if (found := _attributes_known.get(kind)) is None:
        hints = get_type_hints(kind)
        found = _attributes_known[kind] = {name: (hints[name], default) for name, default in _defaults(kind)}
    return found


def _defaults(kind: Any) -> Iterable[tuple[str, Any]]:  # noqa: ANN401 - a dataclass, a Struct or a named tuple
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            made = field.default_factory is not dataclasses.MISSING
            yield field.name, None if made else _MISSING if field.default is dataclasses.MISSING else field.default
    elif issubclass(kind, msgspec.Struct):
        for each in msgspec.structs.fields(kind):
            made = each.default_factory is not msgspec.NODEFAULT
            yield each.name, None if made else _MISSING if each.default is msgspec.NODEFAULT else each.default
    else:
        for name in getattr(kind, "_fields", ()):
            yield name, kind._field_defaults.get(name, _MISSING)


def _hint_of(kind: _Hint, path: str) -> tuple[Any, Any]:
    """The type and the default of what stands at a path, properties included."""
    default: Any = _MISSING
    for name in path.split("."):
        if name in (attributes := _attributes(kind)):
            kind, default = attributes[name]
        else:
            member = getattr(kind, name, None)
            function = member.fget if isinstance(member, property) else getattr(member, "func", None)
            if function is None:
                raise TypeError(f"{kind} has no {name}")
            kind, default = get_type_hints(function)["return"], _MISSING
    return kind, default


def _optional(hint: _Hint) -> tuple[Any, bool]:
    """A type without None, and whether it had it."""
    origin: Any = get_origin(hint)
    if origin is Union or origin is types.UnionType:
        others = [each for each in get_args(hint) if each is not types.NoneType]
        return others[0], len(others) < len(get_args(hint))
    return hint, False


def _is_map(field: _Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_kind(hint: _Hint, *kinds: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kinds)


def _is_word_in_text(field: _Field, hint: _Hint) -> bool:
    return field.enum_type is None and _is_kind(hint, enum.Enum)


def _within(field: _Field, hint: _Hint, kind: type) -> Any:  # noqa: ANN401 - a table of this kind
    """The table of a message within another that has equal names, as none was given; None where it has no value."""
    inner = (get_args(hint) or (None,))[0] if field.is_repeated else hint
    if not (
        isinstance(inner, type) and (dataclasses.is_dataclass(inner) or issubclass(inner, (msgspec.Struct, tuple)))
    ):
        return None
    message = GetMessageClass(field.message_type)
    return (reader if kind is Reader else writer)(message, inner)


def _where_set(field: _Field, form: str, default: object) -> str:
    """The condition on which a field is set."""
    if field.has_presence:
        return f"if v != {default}: " if type(default) is int and default < 0 else "if v is not None: "
    # What is zero stays unset: to ask costs a third of setting it, and most fields of most messages are zero.
    return "" if form == "str(v)" else "if v: "


def _words(field: _Field, kind: type[enum.Enum]) -> Mapping[int, Any]:
    """The members of an enumeration of texts, by the contract's numbers."""
    values = field.enum_type.values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {
        each.number: kind.__members__[name]
        for each in values
        if (name := each.name.removeprefix(prefix)) in kind.__members__
    }


class _Numbers(dict[str, int]):
    """The contract's numbers of words."""

    def __missing__(self, word: str) -> int:
        raise ValueError(f"{word!r} is none of: {', '.join(self)}")


def _outward(code: _Code, field: _Field, hint: _Hint, found: str) -> str:
    """How a plain value is put into a field."""
    if field.enum_type is not None and _is_kind(hint, str):
        numbers = _Numbers({member: number for number, member in _words(field, hint).items()})
        return f"{code.name(numbers)}[{found}]"
    if _is_word_in_text(field, hint) and not _is_kind(hint, str, int):
        return f"{found}.value"
    if hint is int and field.cpp_type == field.CPPTYPE_STRING:
        return f"str({found})"
    return found


def _inward(code: _Code, field: _Field, hint: _Hint, found: str, path: str) -> str:
    """How a plain value is taken from a field."""
    if field.enum_type is not None and _is_kind(hint, enum.Enum):
        if issubclass(hint, str):
            known = _words(field, hint)
        else:
            known = {int(member.value): member for member in hint}
        # Numbers that only a newer peer knows are "unspecified".
        otherwise = code.name(hint.__members__.get("UNSPECIFIED"))
        return f"{code.name(known)}.get({found}, {otherwise})"
    if _is_word_in_text(field, hint):
        return f"{code.name(word)}({code.name(hint)}, {found}, {path})"
    if hint is int and field.cpp_type == field.CPPTYPE_STRING:
        return f"int({found} or 0)"
    return found


def varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
