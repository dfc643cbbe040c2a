/** Tables: sorted by any column; of many rows only those in sight exist. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { t } from "../texts";

export interface Column<T> {
  /** What code calls it, whichever language its title is in. */
  key?: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  /** What to sort by; without it the column can't be sorted. */
  sort?: (row: T) => number | string;
  right?: boolean;
  /** Has text that may take two lines. */
  wide?: boolean;
  /** Left out where the window is narrow. */
  minor?: boolean;
  /** Left out unless the window is wide. */
  spare?: boolean;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string | number;
  empty?: ComponentChildren;
}

const ROW_PX = 34;
/** Beyond so many rows, only those in sight are made. */
const WINDOWED_FROM = 200;
const SEEN_PX = 560;

export function Table<T>(props: Props<T>): JSX.Element {
  const by = useSignal<{ column: number; down: boolean } | null>(null);
  const top = useSignal(0);
  const sorting = by.value && props.columns[by.value.column]?.sort;
  const rows = useMemo(() => {
    if (!sorting) return props.rows;
    const sorted = [...props.rows].sort((a, b) => {
      const [x, y] = [sorting(a), sorting(b)];
      return typeof x === "string" ? x.localeCompare(String(y)) : Number(x) - Number(y);
    });
    return by.value?.down ? sorted.reverse() : sorted;
  }, [props.rows, sorting, by.value?.down]);
  if (!props.rows.length) return <div class="empty">{props.empty ?? t.common.nothing}</div>;
  const windowed = rows.length > WINDOWED_FROM;
  const first = windowed ? Math.max(0, Math.floor(top.value / ROW_PX) - 10) : 0;
  const last = windowed ? Math.min(rows.length, first + Math.ceil(SEEN_PX / ROW_PX) + 20) : rows.length;
  const turn = (column: number): void => {
    const now = by.value;
    by.value = now?.column !== column ? { column, down: false } : now.down ? null : { column, down: true };
  };
  return (
    <div
      class={`table${windowed ? " windowed" : ""}`}
      tabIndex={0}
      role="region"
      aria-label={props.label}
      onScroll={windowed ? (event) => (top.value = (event.currentTarget as HTMLElement).scrollTop) : undefined}
    >
      <table aria-rowcount={rows.length + 1}>
        <thead>
          <tr>
            {props.columns.map((column, index) => {
              const now = by.value?.column === index ? (by.value.down ? "descending" : "ascending") : "none";
              const mark = now === "none" ? "" : now === "ascending" ? " ↑" : " ↓";
              return (
                <th
                  scope="col"
                  class={classes(column)}
                  aria-sort={column.sort ? now : undefined}
                >
                  {column.sort ? (
                    <button type="button" class="plain" onClick={() => turn(index)}>
                      {column.title}
                      {mark}
                    </button>
                  ) : (
                    column.title
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <Gap rows={first} columns={props.columns.length} />}
          {rows.slice(first, last).map((row, index) => (
            <tr key={props.keyOf(row)} aria-rowindex={first + index + 2}>
              {props.columns.map((column) => (
                <td class={classes(column)}>{column.cell(row)}</td>
              ))}
            </tr>
          ))}
          {last < rows.length && <Gap rows={rows.length - last} columns={props.columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

const classes = (column: { right?: boolean; minor?: boolean; wide?: boolean; spare?: boolean }): string =>
  [column.right && "right", column.minor && "minor", column.wide && "wide", column.spare && "spare"].filter(Boolean).join(" ");

/** The height of rows that are not made. An attribute, because the page's policy allows no style in its markup. */
function Gap(props: { rows: number; columns: number }): JSX.Element {
  return (
    <tr aria-hidden="true">
      <td colSpan={props.columns} ref={(cell) => {
          if (cell) cell.style.height = `${props.rows * ROW_PX}px`;
        }} class="gap" />
    </tr>
  );
}
