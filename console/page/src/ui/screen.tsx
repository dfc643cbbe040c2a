/** What every screen begins with: its name, and how old it is where that matters. */
import type { ComponentChildren, JSX } from "preact";
import { nowMs } from "../live/clock";
import type { Loaded } from "../live/loading";
import { Problem, Waiting } from "./basics";
import { ago, moment } from "./words";
import { t } from "../texts";

export function Heading(props: { title: ComponentChildren; children?: ComponentChildren }): JSX.Element {
  return (
    <header class="heading">
      <h1 tabIndex={-1}>{props.title}</h1>
      {props.children}
    </header>
  );
}

/** Says since when what is shown is not fresh. */
export function AsOf<T>(props: { of: Loaded<T>; staleMs?: number }): JSX.Element | null {
  const { atMs, error } = props.of;
  if (!atMs) return null;
  const age = nowMs.value - atMs;
  if (!error && age < (props.staleMs ?? 60_000)) return null;
  return (
    <p class="stale" role="status">
      {t.screen.asOf(moment(atMs), ago(atMs, nowMs.value))}
    </p>
  );
}

/** Shows a value once it is there; before, that it is on its way, or why not. */
export function Shown<T>(props: { of: Loaded<T>; what: string; children: (value: T) => JSX.Element | null }): JSX.Element {
  const { value, error } = props.of;
  return (
    <>
      <AsOf of={props.of} />
      {error !== null && error !== undefined && <Problem error={error} />}
      {value !== undefined ? props.children(value) : !error && <Waiting what={props.what} />}
    </>
  );
}
