/** Answers that a screen shows, kept fresh: asked again when something changed, and from time to time. */
import { now } from "./clock";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { onChanges, type Change } from "./events";

export interface Loaded<T> {
  value: T | undefined;
  error: unknown;
  /** When the value came; 0: not yet. */
  atMs: number;
  reload: () => void;
}

interface Options {
  /** Ask again so often, in milliseconds, while somebody looks; 0: never. */
  everyMs?: number;
  /** Ask again after such a change. */
  on?: (change: Change) => boolean;
}

/** An answer may be asked for again after this many times as long as it took: a slow pool is not asked faster. */
const REST_FACTOR = 4;
const REST_MIN_MS = 300;

/** `inputs` say what `load` asks for: when they change, what was shown is dropped and it is asked anew. */
export function useLoaded<T>(load: (abort: AbortSignal) => Promise<T>, inputs: unknown[], options: Options = {}): Loaded<T> {
  const state = useSignal<{ value: T | undefined; error: unknown; atMs: number }>({ value: undefined, error: null, atMs: 0 });
  const latest = useRef({ load, options });
  latest.current = { load, options };
  const loader = useMemo(() => {
    let abort = new AbortController();
    let timer = 0;
    let running = false;
    let again = false;
    let restMs = REST_MIN_MS;
    const run = async (): Promise<void> => {
      timer = 0;
      if (running) {
        again = true;
        return;
      }
      running = true;
      again = false;
      const own = abort;
      const started = performance.now();
      try {
        const value = await latest.current.load(own.signal);
        if (!own.signal.aborted) state.value = { value, error: null, atMs: now() };
      } catch (error) {
        if (!own.signal.aborted) state.value = { ...state.peek(), error };
      }
      if (own !== abort) return;
      restMs = Math.max(REST_MIN_MS, REST_FACTOR * (performance.now() - started));
      running = false;
      if (again) soon();
    };
    const soon = (): void => {
      if (!timer && !document.hidden) timer = window.setTimeout(run, restMs);
    };
    return {
      run,
      soon,
      start(): void {
        abort = new AbortController();
        running = again = false;
        state.value = { value: undefined, error: null, atMs: 0 };
        void run();
      },
      stop(): void {
        clearTimeout(timer);
        timer = 0;
        abort.abort();
      },
    };
  }, []);
  useEffect(() => {
    loader.start();
    return loader.stop;
  }, inputs);
  useEffect(() => {
    const off = onChanges((changes) => {
      const wanted = latest.current.options.on;
      if (wanted && changes.some((change) => change.kind === "resync" || wanted(change))) loader.soon();
    });
    const everyMs = options.everyMs ?? 0;
    const timer = everyMs ? window.setInterval(() => document.hidden || void loader.run(), everyMs) : 0;
    const shown = (): void => {
      if (!document.hidden && everyMs) void loader.run();
    };
    document.addEventListener("visibilitychange", shown);
    return () => {
      off();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, []);
  return { ...state.value, reload: () => void loader.run() };
}
