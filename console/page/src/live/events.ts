/**
 * Changes as they happen, by one stream for all tabs of this browser: browsers allow six connections to one host, and a
 * seventh tab would hang. The tab that has the lock reads the stream, and tells the others; when it goes, another takes over.
 */
import { signal } from "@preact/signals";
import type { GpuNode, Lease } from "../api/types";
import { get } from "../api/client";

export type Change =
  | { kind: "lease"; atMs: number; lease: Lease }
  | { kind: "node"; atMs: number; node: GpuNode }
  | { kind: "resync" };

/** Whether changes arrive, and since when. */
export const stream = signal<{ state: "connecting" | "live" | "broken"; sinceMs: number }>({
  state: "connecting",
  sinceMs: Date.now(),
});

type Listener = (changes: Change[]) => void;
type Told = { changes: Change[] } | { state: "connecting" | "live" | "broken"; sinceMs: number } | { who: true };

const NAME = "aliquot-events";
/** Changes are told together, so often: a busy pool must not keep eight tabs busy. */
const EVERY_MS = 150;
const AGAIN_MS = [500, 1000, 2000, 5000, 10_000];

const listeners = new Set<Listener>();
let channel: BroadcastChannel | undefined;
let stop: AbortController | undefined;

/** Hear of changes until the answer is called. */
export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export function follow(): void {
  if (stop) return;
  const own = (stop = new AbortController());
  channel = new BroadcastChannel(NAME);
  channel.onmessage = (event: MessageEvent<Told>) => hear(event.data);
  channel.postMessage({ who: true } satisfies Told);
  navigator.locks
    .request(NAME, { signal: own.signal }, () => lead(own.signal))
    .catch(() => {
      /* this page was signed out while another one led */
    });
}

/** Nobody is signed in any more. */
export function unfollow(): void {
  stop?.abort();
  channel?.close();
  stop = channel = undefined;
}

function hear(told: Told): void {
  if ("changes" in told) for (const listener of listeners) listener(told.changes);
  else if ("state" in told) stream.value = { state: told.state, sinceMs: told.sinceMs };
  else if (leading) channel?.postMessage(stream.peek());
}

let leading = false;

function tell(told: Told): void {
  hear(told);
  channel?.postMessage(told);
}

function say(state: "connecting" | "live" | "broken"): void {
  if (stream.peek().state !== state) tell({ state, sinceMs: Date.now() });
}

async function lead(signal: AbortSignal): Promise<void> {
  leading = true;
  let seq = "";
  let tries = 0;
  try {
    while (!signal.aborted) {
      const opened = await read(signal, seq, (id) => {
        seq = id;
        tries = 0;
      });
      if (signal.aborted) return;
      say("broken");
      // Whoever has lost their token hears so here: streams of browsers don't say why they ended.
      if (!opened) await get("/whoami").catch(() => undefined);
      await pause(AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)] ?? 1000, signal);
      // What was missed is listed again.
      if (!seq) tell({ changes: [{ kind: "resync" }] });
    }
  } finally {
    leading = false;
  }
}

/** One connection, until it breaks; whether it was ever open. */
function read(signal: AbortSignal, afterSeq: string, onId: (id: string) => void): Promise<boolean> {
  return new Promise((done) => {
    const query = new URLSearchParams({ nodes: "true", ...(afterSeq ? { after_seq: afterSeq } : {}) });
    const source = new EventSource(`/api/v1/events?${query}`);
    let waiting: Change[] = [];
    let timer = 0;
    let opened = false;
    const flush = (): void => {
      timer = 0;
      const changes = waiting;
      waiting = [];
      if (changes.length) tell({ changes });
    };
    const add = (change: Change): void => {
      waiting.push(change);
      timer ||= window.setTimeout(flush, EVERY_MS);
    };
    const on = (kind: string, take: (document: Record<string, unknown>) => void): void =>
      source.addEventListener(kind, (event) => {
        const message = event as MessageEvent<string | undefined>;
        // The browser itself has an event `open`, without a word in it.
        if (message.data === undefined) return;
        if (message.lastEventId) onId(message.lastEventId);
        take(JSON.parse(message.data) as Record<string, unknown>);
      });
    const end = (): void => {
      clearTimeout(timer);
      flush();
      source.close();
      signal.removeEventListener("abort", end);
      done(opened);
    };
    on("open", () => {
      opened = true;
      say("live");
    });
    on("lease", (found) => add({ kind: "lease", atMs: Number(found.at_ms), lease: found.lease as Lease }));
    on("node", (found) => add({ kind: "node", atMs: Number(found.at_ms), node: found.node as GpuNode }));
    on("resync", () => add({ kind: "resync" }));
    on("closed", () => {
      opened = false;
      end();
    });
    source.onerror = end;
    signal.addEventListener("abort", end);
  });
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()));
  });
}
