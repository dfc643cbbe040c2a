/** Addresses within the page. What is shown is in the address: it can be sent to somebody, and opened again. */
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";

const read = (): URL => new URL(location.href);

export const here = signal(read());

addEventListener("popstate", () => (here.value = read()));

export function go(address: string, options: { replace?: boolean } = {}): void {
  if (options.replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  const moved = here.peek().pathname !== read().pathname;
  here.value = read();
  if (moved) scrollTo(0, 0);
}

/** A name in the query of the address. */
export const param = (name: string, fallback = ""): string => here.value.searchParams.get(name) ?? fallback;

/** Change names in the query; empty takes one out. */
export function setParams(changed: Record<string, string>): void {
  const url = read();
  for (const [name, value] of Object.entries(changed)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  go(url.pathname + url.search, { replace: true });
}

interface LinkProps {
  to: string;
  class?: string;
  current?: boolean;
  label?: string;
  children: ComponentChildren;
}

export function Link(props: LinkProps): JSX.Element {
  const follow = (event: MouseEvent): void => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(props.to);
  };
  return (
    <a
      href={props.to}
      class={props.class}
      aria-current={props.current ? "page" : undefined}
      aria-label={props.label}
      onClick={follow}
    >
      {props.children}
    </a>
  );
}

export const leaseAddress = (id: string): string => `/lease?id=${encodeURIComponent(id)}`;
export const nodeAddress = (id: string): string => `/node?id=${encodeURIComponent(id)}`;
