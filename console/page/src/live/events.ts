/** Changes of leases and nodes as they become durable. */
import type { GpuNode, Lease } from "../api/types";
import { RESYNC, SharedStream, type Message } from "./shared";

export type Change =
  | { kind: "lease"; atMs: number; lease: Lease }
  | { kind: "node"; atMs: number; node: GpuNode }
  | { kind: "resync" };

const shared = new SharedStream(
  "aliquot-events",
  (lastId) => `/api/v1/events?${new URLSearchParams({ nodes: "true", ...(lastId ? { after_seq: lastId } : {}) })}`,
  ["open", "lease", "node", RESYNC],
);

/** Whether changes arrive, and since when. */
export const stream = shared.reading;

export const follow = (): void => shared.start();
/** Nobody is signed in any more. */
export const unfollow = (): void => shared.stop();

/** Hear of changes until the answer is called. */
export function onChanges(listener: (changes: Change[]) => void): () => void {
  return shared.listen((messages) => {
    const changes = messages.map(changeOf).filter((change) => change !== undefined);
    if (changes.length) listener(changes);
  });
}

function changeOf(message: Message): Change | undefined {
  const atMs = Number(message.data.at_ms);
  if (message.kind === "lease") return { kind: "lease", atMs, lease: message.data.lease as Lease };
  if (message.kind === "node") return { kind: "node", atMs, node: message.data.node as GpuNode };
  return message.kind === RESYNC ? { kind: "resync" } : undefined;
}
