/** Now, as a signal that ticks each second while somebody looks. */
import { signal } from "@preact/signals";

export const nowMs = signal(Date.now());

setInterval(() => {
  if (!document.hidden) nowMs.value = Date.now();
}, 1000);
document.addEventListener("visibilitychange", () => (nowMs.value = Date.now()));
