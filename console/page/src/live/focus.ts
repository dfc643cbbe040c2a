/**
 * The focus stays where somebody works. Live data takes away what they are on: a lease that has ended has no button to release
 * it, a row of a table goes. The browser would put the focus nowhere then; this puts it on what is nearest.
 */

/** What had the focus, and what stood around it, from the inside to the outside. */
let around: Element[] = [];

export function keepFocus(): void {
  document.addEventListener("focusin", (event) => {
    around = [];
    for (let each = event.target as Element | null; each; each = each.parentElement) around.push(each);
  });
  document.addEventListener("focusout", (event) => {
    if (!event.relatedTarget) queueMicrotask(forget);
  });
  new MutationObserver(restore).observe(document.body, { childList: true, subtree: true });
}

/** It was left by a click beside everything: nothing was taken away. */
function forget(): void {
  if (around[0]?.isConnected && document.activeElement === document.body) around = [];
}

function restore(): void {
  const lost = around[0];
  if (!lost || lost.isConnected || document.activeElement !== document.body) return;
  const place = around.find((each) => each.isConnected && each !== document.body && each.hasAttribute("tabindex"));
  const next = place && place.id !== "content" ? place : (document.querySelector("main h1") ?? place);
  around = [];
  (next as HTMLElement | null | undefined)?.focus({ preventScroll: true });
}
