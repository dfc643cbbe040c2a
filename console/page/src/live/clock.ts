/** Now, by the console's clock, as a signal that ticks each second while somebody looks. */
import { signal } from "@preact/signals";

/** How far this browser's clock must be from the console's before it is not believed: answers take time, and say whole seconds. */
const OFF_MS = 5000;
let skewMs = 0;

/** Milliseconds since the Unix epoch, as those who say when something happened count them. */
export const now = (): number => Date.now() + skewMs;

export const nowMs = signal(now());

/** An answer says what time it is there: some browsers' clocks are minutes off. */
export function hearTime(date: string | null): void {
  const there = Date.parse(date ?? "");
  if (Number.isNaN(there)) return;
  const off = there + 500 - Date.now();
  if (Math.abs(off - skewMs) < OFF_MS) return;
  skewMs = Math.abs(off) < OFF_MS ? 0 : off;
  nowMs.value = now();
}

setInterval(() => {
  if (!document.hidden) nowMs.value = now();
}, 1000);
document.addEventListener("visibilitychange", () => (nowMs.value = now()));
