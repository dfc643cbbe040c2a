/**
 * A stream of the console, read once for all tabs of this browser: browsers allow six connections to one host, and a seventh
 * tab would hang. The tab that has the lock reads the stream and tells the others; when it goes, another takes over.
 */
import { now } from "./clock";
import { signal, type Signal } from "@preact/signals";
import { get } from "../api/client";

export interface Message {
  kind: string;
  data: Record<string, unknown>;
}

export interface Reading {
  state: "connecting" | "live" | "broken";
  sinceMs: number;
}

type Told = { messages: Message[] } | { reading: Reading } | { asks: true };
type Listener = (messages: Message[]) => void;

/** What arrives is told together, so often: a busy pool must not keep eight tabs busy. */
const EVERY_MS = 150;
const AGAIN_MS = [500, 1000, 2000, 5000, 10_000];
/** The console's word for the end of a stream, with the reason. */
const CLOSED = "closed";
/** Changes were missed. Told to listeners, too, where a stream begins anew without knowing where it was. */
export const RESYNC = "resync";

export class SharedStream {
  readonly reading: Signal<Reading> = signal<Reading>({ state: "connecting", sinceMs: now() });
  private readonly listeners = new Set<Listener>();
  private channel: BroadcastChannel | undefined;
  private stopping: AbortController | undefined;
  private leading = false;
  /** Where to go on. */
  private lastId = "";

  /** `urlOf` makes the address from where to go on; `kinds` are the words of its events. */
  constructor(
    private readonly name: string,
    private readonly urlOf: (lastId: string) => string,
    private readonly kinds: readonly string[],
  ) {}

  /** Hear of messages until the answer is called. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  start(afterId = ""): void {
    if (this.stopping) return;
    const own = (this.stopping = new AbortController());
    this.lastId = afterId;
    this.channel = new BroadcastChannel(this.name);
    this.channel.onmessage = (event: MessageEvent<Told>) => this.hear(event.data);
    this.channel.postMessage({ asks: true } satisfies Told);
    navigator.locks
      .request(this.name, { signal: own.signal }, () => this.lead(own.signal))
      .catch(() => {
        // It was stopped while another tab led.
      });
  }

  stop(): void {
    this.stopping?.abort();
    this.channel?.close();
    this.stopping = this.channel = undefined;
    this.reading.value = { state: "connecting", sinceMs: now() };
  }

  private hear(told: Told): void {
    if ("messages" in told) for (const listener of this.listeners) listener(told.messages);
    else if ("reading" in told) this.reading.value = told.reading;
    else if (this.leading) this.channel?.postMessage({ reading: this.reading.peek() } satisfies Told);
  }

  private tell(told: Told): void {
    this.hear(told);
    this.channel?.postMessage(told);
  }

  private say(state: Reading["state"]): void {
    if (this.reading.peek().state !== state) this.tell({ reading: { state, sinceMs: now() } });
  }

  private async lead(stopping: AbortSignal): Promise<void> {
    this.leading = true;
    let tries = 0;
    try {
      while (!stopping.aborted) {
        if (await this.read(stopping)) tries = 0;
        if (stopping.aborted) return;
        this.say("broken");
        // Whoever has lost their token hears so here: streams don't tell browsers why they are refused.
        await get("/whoami").catch(() => undefined);
        await pause(AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)] ?? 1000, stopping);
        if (!this.lastId) this.tell({ messages: [{ kind: RESYNC, data: {} }] });
      }
    } finally {
      this.leading = false;
    }
  }

  /** One connection, until it breaks; whether anything came by it. */
  private read(stopping: AbortSignal): Promise<boolean> {
    return new Promise((done) => {
      const source = new EventSource(this.urlOf(this.lastId));
      let waiting: Message[] = [];
      let timer = 0;
      let heard = false;
      const flush = (): void => {
        timer = 0;
        const messages = waiting;
        waiting = [];
        if (messages.length) this.tell({ messages });
      };
      const end = (): void => {
        clearTimeout(timer);
        flush();
        source.close();
        stopping.removeEventListener("abort", end);
        done(heard);
      };
      for (const kind of this.kinds) {
        source.addEventListener(kind, (event) => {
          const message = event as MessageEvent<string | undefined>;
          // The browser itself has an event `open`, without a word in it.
          if (message.data === undefined) return;
          if (message.lastEventId) this.lastId = message.lastEventId;
          heard = true;
          this.say("live");
          waiting.push({ kind, data: JSON.parse(message.data) as Record<string, unknown> });
          timer ||= window.setTimeout(flush, EVERY_MS);
        });
      }
      source.addEventListener(CLOSED, end);
      source.onerror = end;
      stopping.addEventListener("abort", end);
    });
  }
}

function pause(ms: number, stopping: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    stopping.addEventListener("abort", () => (clearTimeout(timer), done()));
  });
}
