/** Small parts that every screen is made of. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { curl } from "../api/commands";
import { Refusal, type Call } from "../api/client";
import { inWords } from "./words";
import { t } from "../texts";

/** Text that somebody else wrote, such as a name: kept in its own direction, so that it can't turn what stands around it. */
export function Name(props: { text: string; fallback?: string }): JSX.Element {
  return (
    <bdi class="name" title={props.text}>
      {props.text || props.fallback || ""}
    </bdi>
  );
}

type Look = "good" | "calm" | "wait" | "warn" | "bad" | "none";

const MARKS: Record<string, [Look, string]> = {
  ACTIVE: ["good", "●"],
  READY: ["good", "●"],
  GRANTED: ["calm", "◐"],
  QUEUED: ["wait", "◔"],
  RECONCILING: ["calm", "◐"],
  PREEMPTING: ["warn", "▲"],
  RELEASING: ["calm", "◌"],
  SUSPECT: ["warn", "▲"],
  UNREACHABLE: ["bad", "✕"],
  LOST: ["bad", "✕"],
  FAILED: ["bad", "✕"],
  QUARANTINED: ["bad", "✕"],
  SERVICE: ["bad", "✕"],
  DRAINED: ["warn", "▲"],
  REPAIRING: ["calm", "◐"],
  VERIFYING: ["calm", "◐"],
  PROBATION: ["warn", "▲"],
  CORDONED: ["warn", "▲"],
  DRAINING: ["warn", "▲"],
  HELD: ["warn", "○"],
  IDLE: ["warn", "◌"],
  HUNG: ["bad", "▲"],
  GHOST: ["bad", "▲"],
};

/** A state: a word, a sign and a colour; never the colour alone. */
export function State(props: { word: string }): JSX.Element {
  const [kind, mark] = MARKS[props.word] ?? ["none", "○"];
  return (
    <span class={`state ${kind}`}>
      <span aria-hidden="true">{mark}</span> {inWords(props.word)}
    </span>
  );
}

/** How much of a whole is used: `parts` from left to right, each in thousandths of the whole. */
export function Bar(props: { label: string; parts: { milli: number; kind: string }[]; wide?: boolean }): JSX.Element {
  let left = 0;
  return (
    <svg class={`bar${props.wide ? " wide" : ""}`} viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label={props.label}>
      <rect class="track" width="1000" height="10" />
      {props.parts.map((part) => {
        const width = Math.max(0, Math.min(part.milli, 1000 - left));
        const x = left;
        left += width;
        return <rect class={`part ${part.kind}`} x={x} width={width} height="10" />;
      })}
    </svg>
  );
}

export function Problem(props: { error: unknown }): JSX.Element | null {
  if (!props.error) return null;
  const refusal = props.error instanceof Refusal ? props.error : undefined;
  const text = props.error instanceof Error ? props.error.message : String(props.error);
  return (
    <div class="note bad" role="alert">
      <strong>
        <bdi>{text}</bdi>
      </strong>
      {refusal?.problem.smallest_change && (
        <p>
          {t.basics.smallestChange} <bdi>{refusal.problem.smallest_change}</bdi>
        </p>
      )}
      {refusal?.hint && (
        <p>
          <bdi>{refusal.hint}</bdi>
        </p>
      )}
      {refusal && <p class="dim">{refusal.problem.reason}</p>}
    </div>
  );
}

export function Copyable(props: { label: string; text: string }): JSX.Element {
  const done = useSignal("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(props.text);
      done.value = t.basics.copied;
    } catch {
      done.value = t.basics.selectByHand;
    }
    setTimeout(() => (done.value = ""), 2000);
  };
  return (
    <div class="copyable">
      <div class="row between">
        <span class="dim">{props.label}</span>
        <button type="button" class="small" onClick={copy} aria-label={t.basics.copyOf(props.label)}>
          {done.value || t.basics.copy}
        </button>
      </div>
      <pre tabIndex={0} role="region" aria-label={props.label}>
        {props.text}
      </pre>
    </div>
  );
}

/** The same action elsewhere. */
export function Elsewhere(props: { call: Call; command: string }): JSX.Element {
  return (
    <details class="elsewhere">
      <summary>{t.basics.asCommand}</summary>
      <Copyable label={t.common.commandLine} text={props.command} />
      <Copyable label="curl" text={curl(props.call)} />
    </details>
  );
}

/** A question over the page. Escape closes it, and the focus goes back to where it was. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }): JSX.Element {
  const own = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = own.current;
    dialog?.showModal();
    // Also where it goes because what was asked is done: only a dialog that is closed while it is there gives the focus back.
    return () => dialog?.close();
  }, []);
  // Told at once: the browser's own word that it has closed comes a moment later, when the button that opened it has the
  // focus again, and would close what that button has opened meanwhile.
  const cancel = (event: Event): void => {
    event.preventDefault();
    props.onClose();
  };
  return (
    <dialog ref={own} onCancel={cancel} onClose={() => own.current && props.onClose()} aria-labelledby="dialog-title">
      <div class="row between">
        <h2 id="dialog-title">{props.title}</h2>
        <button type="button" class="small" onClick={props.onClose}>
          {t.basics.close}
        </button>
      </div>
      {props.children}
    </dialog>
  );
}

/** Nothing to show, and what to do about it. */
export function Empty(props: { children: ComponentChildren }): JSX.Element {
  return <div class="empty">{props.children}</div>;
}

export function Waiting(props: { what: string }): JSX.Element {
  return (
    <p class="dim waiting" role="status">
      {props.what} …
    </p>
  );
}

export function Fact(props: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class="fact">
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

export function Field(props: { label: string; hint?: string; children: ComponentChildren }): JSX.Element {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small class="dim">{props.hint}</small>}
    </label>
  );
}

/** A picture to point at, and the same as words for who can't see it. */
export const valueOf = (event: Event): string => (event.currentTarget as HTMLInputElement | HTMLSelectElement).value;
