/**
 * Calls of the REST API. The browser's session cookie goes along by itself; this code never sees a token.
 *
 * What was refused is thrown as a `Refusal`; `signedOut` is told when nobody is known any more, and the page asks for a login
 * over the screen that was open, whose address stays.
 */
import { hearTime, now } from "../live/clock";
import { answerBefore, keep, note, seenMs } from "../live/seen";
import { signal } from "@preact/signals";
import type { Problem } from "./types";
import { t } from "../texts";

const BASE = "/api/v1";
/** How long most answers may take before the page says that it does not come, in milliseconds. */
const PATIENCE_MS = 20_000;

export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Problem> & { detail: string; reason: string },
  ) {
    super(problem.detail);
  }

  get hint(): string {
    return this.problem.hint ?? "";
  }
}

export type Method = "GET" | "POST" | "PUT" | "DELETE";

export interface Call {
  method: Method;
  path: string;
  query?: Record<string, string | number | boolean | string[] | undefined>;
  body?: unknown;
  /** Makes sending it twice the same as once. */
  key?: string;
  /** Refused where what it is about has changed since it had this number. */
  ifSeq?: number;
  /** How long its answer may take, in milliseconds. */
  patienceMs?: number;
}

/** When the console last answered, and since when it does not; milliseconds since the Unix epoch, 0: it does. */
export const reach = signal({ heardMs: seenMs, unreachableMs: 0, why: "" });
window.addEventListener("pagehide", () => keep(reach.peek().heardMs));
/** Why nobody is known any more: the reason of the refusal; empty: somebody is, as far as this page was told. */
export const signedOut = signal("");

export function pathOf(call: Call): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(call.query ?? {})) {
    if (value === undefined || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) query.append(name, String(each));
  }
  const text = query.toString();
  return BASE + call.path + (text ? `?${text}` : "");
}

/** Ask, and give back the answer; what was seen before, where this page was loaded while nothing answers. Throws `Refusal`. */
export async function ask<T>(call: Call, abort?: AbortSignal): Promise<T> {
  const question = call.method === "GET" ? pathOf(call) : "";
  let text: string | undefined;
  try {
    text = utf8.decode(await send(call, "application/json", abort));
    if (question) note(question, text);
  } catch (error) {
    if (question && reach.peek().unreachableMs && !abort?.aborted) text = answerBefore(question);
    if (text === undefined) throw error;
  }
  return (text ? JSON.parse(text) : undefined) as T;
}

/** What is no JSON. */
export const getBytes = (path: string, abort?: AbortSignal): Promise<Uint8Array> =>
  send({ method: "GET", path }, "application/x-protobuf", abort);

const utf8 = new TextDecoder();

async function send(call: Call, accept: string, abort: AbortSignal | undefined): Promise<Uint8Array> {
  const headers: Record<string, string> = { Accept: accept, ...GUARD };
  if (call.body !== undefined) headers["Content-Type"] = "application/json";
  if (call.key) headers["Idempotency-Key"] = call.key;
  if (call.ifSeq !== undefined) headers["If-Match"] = `"${call.ifSeq}"`;
  const late = AbortSignal.timeout(call.patienceMs ?? PATIENCE_MS);
  let response: Response;
  let body: Uint8Array;
  try {
    response = await fetch(pathOf(call), {
      method: call.method,
      headers,
      body: call.body === undefined ? null : JSON.stringify(call.body),
      credentials: "same-origin",
      signal: abort ? AbortSignal.any([abort, late]) : late,
    });
    body = new Uint8Array(await response.arrayBuffer());
    hearTime(response.headers.get("Date"));
  } catch (error) {
    if (abort?.aborted) throw error;
    const why = late.aborted ? t.client.notInTime : t.client.notReached;
    const { heardMs, unreachableMs } = reach.peek();
    reach.value = { heardMs, unreachableMs: unreachableMs || now(), why };
    throw new Refusal(0, { reason: "CONSOLE_UNREACHABLE", detail: why, hint: "" });
  }
  if (response.ok) {
    reach.value = { heardMs: now(), unreachableMs: 0, why: "" };
    return body;
  }
  const refusal = new Refusal(response.status, problemOf(response, utf8.decode(body)));
  if (response.status === 401) {
    if (call.path !== "/session") signedOut.value = refusal.problem.reason;
  } else if (response.status === 502 || response.status === 503 || response.status === 504) {
    const { heardMs, unreachableMs } = reach.peek();
    reach.value = { heardMs, unreachableMs: unreachableMs || now(), why: refusal.message };
  } else {
    reach.value = { heardMs: now(), unreachableMs: 0, why: "" };
  }
  throw refusal;
}

/** Requests that change something carry it: a form on a page of somebody else's can't. */
const GUARD = { "X-Aliquot-Console": "1" };

function problemOf(response: Response, text: string): Partial<Problem> & { detail: string; reason: string } {
  try {
    const found = JSON.parse(text) as Partial<Problem>;
    return { ...found, detail: found.detail || response.statusText, reason: found.reason || String(response.status) };
  } catch {
    return { reason: String(response.status), detail: response.statusText || t.client.status(response.status) };
  }
}

export const get = <T>(path: string, query?: Call["query"], abort?: AbortSignal): Promise<T> =>
  ask<T>({ method: "GET", path, ...(query ? { query } : {}) }, abort);

/** A key that no other request has. */
export function newKey(): string {
  return `page-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
}
