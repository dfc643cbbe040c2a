/** The fleet as it is received: a picture of it, then what changes. */
import { now } from "./clock";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api/client";
import { Columns, type FleetChange, type FleetNode } from "./fleet";
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

interface Picture {
  id: string;
  at_ms: number;
  size: number;
  nodes: {
    node_id: string[];
    name: string[];
    pool: number[];
    first: number[];
    devices: number[];
    models: (number | number[])[];
    pools: string[];
    model_names: string[];
  };
  states: string;
  shares: string;
  memory: string;
  use: string;
}

interface Changed {
  /** A layout and a number that counts up, with a dot between. */
  version: string;
  at_ms: number;
  nodes?: FleetNode[];
  index?: string;
  states?: string;
  shares?: string;
  memory?: string;
  use_index?: string;
  use?: string;
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
    /** What is shown; empty while a picture is on its way. */
    let shownId = "";
    /** What comes meanwhile: of that, what is later than the picture is put down after it. */
    let kept: Changed[] = [];
    const apply = (changed: Changed): number => {
      if (!isLater(changed.version, shownId)) return 0;
      columns.apply(changeOf(changed));
      shownId = changed.version;
      return changed.at_ms;
    };
    const load = async (): Promise<void> => {
      timer = 0;
      shownId = "";
      kept = [];
      try {
        const picture = await get<Picture>("/fleet", undefined, abort.signal);
        columns.undrawnMs ||= performance.now();
        columns.apply(wholeOf(picture));
        shownId = picture.id;
        kept.forEach(apply);
        kept = [];
        state.value = { ...state.peek(), version: state.peek().version + 1, error: null, atMs: picture.at_ms };
        shared.start(picture.id);
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
          if (!timer && shownId) void load();
        } else if (message.kind === "pool") {
          const sinceMs = Number(message.data.since_ms ?? 0);
          state.value = { ...state.peek(), awayMs: message.data.reachable === false ? sinceMs || now() : 0 };
        } else if (message.kind === "change") {
          const changed = message.data as unknown as Changed;
          columns.undrawnMs ||= cameMs;
          if (shownId) atMs = apply(changed) || atMs;
          else kept.push(changed);
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

function isLater(id: string, than: string): boolean {
  const [layout, version] = id.split(".");
  const [otherLayout, otherVersion] = than.split(".");
  return layout === otherLayout && Number(version) > Number(otherVersion);
}

function wholeOf(picture: Picture): FleetChange {
  const { nodes } = picture;
  const models = (places: number | number[]): string[] =>
    (Array.isArray(places) ? places : [places]).map((place) => nodes.model_names[place] ?? "");
  return {
    ...NOTHING,
    resets: true,
    nodes: nodes.node_id.map((node_id, at) => ({
      node_id,
      name: nodes.name[at] || node_id,
      pool: nodes.pools[nodes.pool[at] ?? -1] ?? "",
      first: nodes.first[at] ?? 0,
      devices: nodes.devices[at] ?? 0,
      models: models(nodes.models[at] ?? []),
    })),
    states: decode(picture.states),
    shares: decode(picture.shares),
    memory: decode(picture.memory),
    use: decode(picture.use),
  };
}

function changeOf(changed: Changed): FleetChange {
  return {
    ...NOTHING,
    nodes: changed.nodes ?? [],
    index: changed.index ? numbers(changed.index) : undefined,
    states: decode(changed.states),
    shares: decode(changed.shares),
    memory: decode(changed.memory),
    useIndex: changed.use_index ? numbers(changed.use_index) : undefined,
    use: decode(changed.use),
  };
}

const NOTHING = {
  resets: false,
  nodes: [],
  index: undefined,
  first: 0,
  states: new Uint8Array(),
  shares: new Uint8Array(),
  memory: new Uint8Array(),
  useIndex: undefined,
  use: new Uint8Array(),
};

function decode(text: string | undefined): Uint8Array {
  if (!text) return NOTHING.states;
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

/** Four bytes each, the lowest first. */
function numbers(text: string): Uint32Array {
  const bytes = decode(text);
  const view = new DataView(bytes.buffer);
  return Uint32Array.from({ length: bytes.length >> 2 }, (_, at) => view.getUint32(4 * at, true));
}

