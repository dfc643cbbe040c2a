"""Tables that stay readable in a narrow terminal: less important columns are left out, with a note."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
PLAIN_WIDTH = 240
PLAIN_WIDTH_MIN = 20
"""What COLUMNS says below that nobody has set to read by."""
"""The width for output that is not a terminal: nothing may be left out there."""


class Fitted(Table):
    """A plain table that leaves out columns for which there is no room.

    Empty columns go first, then those in `spare`, in its order. If the rest still does not fit, all columns but the
    first, which names the row, are folded; with `one_line` they are cut instead.
    """

    def __init__(self, *, spare: Sequence[str] = (), one_line: bool = False) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        self.spare = tuple(spare)
        self.one_line = one_line

    def column(self, head: str, justify: str = "left") -> None:
        """Add a column."""
        first = not self.columns
        self.add_column(
            head,
            justify="right" if justify == "right" else "left",
            overflow="ellipsis" if self.one_line else "fold",
            no_wrap=self.one_line or first,
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, with the columns that fit."""
        left_out: list[str] = []
        fitting = self
        for head in (*self._empty(), *self.spare) if options.max_width < PLAIN_WIDTH else ():
            if fitting._wide(console, options) <= options.max_width:
                break
            if head not in left_out:
                left_out.append(head)
                fitting = self._without(left_out)
        yield from Table.__rich_console__(fitting, console, options)
        told = [head for head in left_out if head and head not in self._empty()]
        if told and not self.one_line:
            yield Text(f"no room for {', '.join(told)}: widen the terminal, or see --json", style="bright_black")

    def _empty(self) -> list[str]:
        """Empty columns, except the first."""
        return [
            str(column.header)
            for column in self.columns[1:]
            if not any(str(cell) if isinstance(cell, (str, Text)) else cell for cell in column.cells)
        ]

    def _wide(self, console: Console, options: ConsoleOptions) -> int:
        """Its full width, without folding."""
        whole = Measurement.get(console, options.update(max_width=10_000), self)
        return whole.maximum

    def _without(self, left_out: Sequence[str]) -> Fitted:
        made = Fitted(one_line=self.one_line)
        made.caption = self.caption
        kept = [column for column in self.columns if str(column.header) not in left_out]
        for column in kept:
            made.column(str(column.header), column.justify)
            made.columns[-1].min_width = column.min_width
        for cells in zip(*(column.cells for column in kept), strict=True):
            made.add_row(*cells)
        return made


def table(
    *columns: str | tuple[str, str],
    rows: Iterable[Sequence[RenderableType]] = (),
    one_line: bool = False,
    spare: Sequence[str] = (),
) -> Fitted:
    """A table. A column is its head, or its head and alignment; `spare` names the columns to leave out first."""
    made = Fitted(spare=spare, one_line=one_line)
    for column in columns:
        made.column(*((column,) if isinstance(column, str) else column))
    for row in rows:
        made.add_row(*row)
    return made


def table_of(
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], RenderableType]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    one_line: bool = False,
) -> Fitted:
    """A table with a line for each item: what stands under each head. `right`: heads of what is aligned by its end."""
    heads = [(head, "right" if head in right else "left") for head in columns]
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return table(*heads, rows=rows, one_line=one_line, spare=spare)
