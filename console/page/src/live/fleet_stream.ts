/** The fleet as it is received: a snapshot of it, then what changes. */
import { now } from "./clock";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { getBytes } from "../api/client";
import { Columns } from "./fleet";
import { eventOf, eventsOf, type FleetEvent } from "./fleet_event";
import { RESYNC, SharedStream } from "./shared";

export interface Received {
  columns: Columns;
  /** Rises with every change. */
  version: number;
  error: unknown;
  /** Of the last change; 0: there is none yet. */
  atMs: number;
  /** Since when no coordinator answers; 0: one does. */
  awayMs: number;
  live: boolean;
}

const AGAIN_MS = 2000;
const shared = new SharedStream(
  "aliquot-fleet",
  (lastId) => `/api/v1/fleet/events?${new URLSearchParams(lastId ? { after: lastId } : {})}`,
  ["open", "change", "pool", RESYNC],
);

export function useFleet(): Received {
  const columns = useMemo(() => new Columns(), []);
  const state = useSignal({ version: 0, error: null as unknown, atMs: 0, awayMs: 0 });
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    /** The last that is shown; undefined while a snapshot is on its way. */
    let shown: FleetEvent | undefined;
    /** What comes meanwhile: of that, what is later than the snapshot is put down after it. */
    let kept: FleetEvent[] = [];
    const apply = (event: FleetEvent): number => {
      if (event.layout !== shown?.layout || event.version <= shown.version) return 0;
      columns.apply(event);
      shown = event;
      return event.atMs;
    };
    const load = async (): Promise<void> => {
      timer = 0;
      shown = undefined;
      kept = [];
      try {
        const snapshot = [...eventsOf(await getBytes("/fleet", abort.signal))];
        columns.undrawnMs ||= performance.now();
        for (const part of snapshot) columns.apply(part);
        const last = (shown = snapshot.at(-1) ?? eventOf(new Uint8Array()));
        kept.forEach(apply);
        kept = [];
        state.value = { ...state.peek(), version: state.peek().version + 1, error: null, atMs: last.atMs };
        shared.start(`${last.layout}.${last.version}`);
      } catch (error) {
        if (abort.signal.aborted) return;
        state.value = { ...state.peek(), error };
        timer = window.setTimeout(load, AGAIN_MS);
      }
    };
    const off = shared.listen((messages) => {
      let atMs = 0;
      const cameMs = performance.now();
      for (const message of messages) {
        if (message.kind === RESYNC) {
          if (!timer && shown) void load();
        } else if (message.kind === "pool") {
          const sinceMs = Number(message.data.since_ms ?? 0);
          state.value = { ...state.peek(), awayMs: message.data.reachable === false ? sinceMs || now() : 0 };
        } else if (message.kind === "change") {
          const event = eventOf(base64(String(message.data.event)));
          columns.undrawnMs ||= cameMs;
          if (shown) atMs = apply(event) || atMs;
          else kept.push(event);
        }
      }
      if (!atMs) return;
      state.value = { ...state.peek(), version: state.peek().version + 1, error: null, atMs };
    });
    void load();
    return () => {
      abort.abort();
      clearTimeout(timer);
      off();
      shared.stop();
    };
  }, []);
  return { columns, ...state.value, live: shared.reading.value.state !== "broken" };
}

function base64(text: string): Uint8Array {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}
