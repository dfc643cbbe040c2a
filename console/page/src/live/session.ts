/** Who is signed in, and the few answers that several screens need: the status and the tenancy of the pool. */
import { now } from "./clock";
import { computed, effect, signal } from "@preact/signals";
import { ask, get, reach, Refusal, signedOut } from "../api/client";
import type { Identity, Status } from "../api/types";
import { follow, unfollow } from "./events";
import { forget } from "./seen";

/** undefined: not known yet; null: nobody. */
export const identity = signal<Identity | null | undefined>(undefined);
export const status = signal<Status | undefined>(undefined);
/** When the last status came. */
export const statusAtMs = signal(0);
/** A coordinator took the lead while this page was open: when this was noticed; 0: none did. */
export const newLeaderMs = signal(0);
/** Why somebody who was signed in is not any more; empty: nobody was, or they have logged out. */
export const ended = signal("");

const EVERY_MS = 4000;
/** The console tries for longer: a person is told earlier. */
const PATIENCE_MS = 4000;
const EVERY_UNREACHED_MS = 1500;

export async function recognise(): Promise<void> {
  try {
    identity.value = await get<Identity>("/whoami");
    signedOut.value = ended.value = "";
    follow();
    void refresh();
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) identity.value = null;
    // Anything else: the status line says it, and it is tried again.
    else setTimeout(() => void recognise(), EVERY_UNREACHED_MS);
  }
}

export async function signIn(opening: { token: string } | { code: string; principal: string }): Promise<void> {
  await ask<Identity>({ method: "POST", path: "/session", body: opening });
  await recognise();
  tabs.postMessage("in");
}

export async function signOut(): Promise<void> {
  await ask({ method: "DELETE", path: "/session" }).catch(() => undefined);
  leave("");
  tabs.postMessage("out");
}

function leave(reason: string): void {
  unfollow();
  forget();
  identity.value = null;
  status.value = undefined;
  ended.value = reason;
}

/** Other tabs of this browser have the same session. */
const tabs = new BroadcastChannel("aliquot-session");
tabs.onmessage = (event: MessageEvent<string>) => {
  if (event.data === "out") leave("");
  else if (!identity.peek()) void recognise();
};

effect(() => {
  if (signedOut.value && identity.peek()) leave(signedOut.value);
});

async function refresh(): Promise<void> {
  try {
    const found = await ask<Status>({ method: "GET", path: "/status", patienceMs: PATIENCE_MS });
    const before = status.peek();
    if (before && before.leader_epoch !== found.leader_epoch) newLeaderMs.value = now();
    status.value = found;
    statusAtMs.value = now();
  } catch {
    // `reach` says it.
  }
}

export function tendStatus(): void {
  const tick = async (): Promise<void> => {
    if (identity.peek() && !document.hidden) await refresh();
    setTimeout(tick, reach.peek().unreachableMs ? EVERY_UNREACHED_MS : EVERY_MS);
  };
  setTimeout(tick, EVERY_MS);
}

/** Whether the caller has one of these roles, on the whole pool or on this tenant. What the pool refuses it refuses. */
export function may(roles: readonly string[], tenant = ""): boolean {
  return (identity.value?.grants ?? []).some(
    (grant) =>
      roles.includes(grant.role) && (!grant.scope || grant.scope === tenant || tenant.startsWith(`${grant.scope}/`)),
  );
}

export const operates = computed(() => may(["OPERATOR", "ADMIN"]));
export const administers = computed(() => may(["ADMIN"]));
