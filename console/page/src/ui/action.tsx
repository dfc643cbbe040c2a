/** An action: asked once more where it can't be undone, shown as a command, sent once however often it is clicked. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";
import { ask, type Call } from "../api/client";
import { Dialog, Elsewhere, Field, Problem, valueOf } from "./basics";
import { t } from "../texts";

interface Props<T> {
  label: string;
  title?: string;
  kind?: "danger" | "primary" | "small";
  /** What will happen, in words; a function is asked when the question is opened. */
  consequences?: ComponentChildren;
  /** Whether to ask for a reason. */
  reason?: boolean;
  disabled?: boolean;
  call: (reason: string) => Call;
  command: (reason: string) => string;
  onDone?: (answer: T) => void;
}

export function Action<T>(props: Props<T>): JSX.Element {
  const open = useSignal(false);
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const reason = useSignal("");
  // What somebody is about to answer is what they were asked, whatever live data makes of the button meanwhile.
  const asked = useRef(props);
  if (!open.value) asked.current = props;
  const question = asked.current;
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    try {
      const answer = await ask<T>(question.call(reason.value));
      open.value = false;
      props.onDone?.(answer);
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  return (
    <>
      <button type="button" class={props.kind ?? ""} disabled={props.disabled} onClick={() => (open.value = true)}>
        {props.label}
      </button>
      {open.value && (
        <Dialog title={question.title ?? question.label} onClose={() => (open.value = false)}>
          <form onSubmit={send}>
            {props.consequences}
            {question.reason && (
              <Field label={t.common.reasonForPeople}>
                <input value={reason.value} onInput={(event) => (reason.value = valueOf(event))} maxLength={500} />
              </Field>
            )}
            <Problem error={error.value} />
            <div class="row end">
              <button class={question.kind === "danger" ? "danger" : "primary"} aria-disabled={busy.value}>
                {busy.value ? t.action.sending : question.label}
              </button>
            </div>
            <Elsewhere call={question.call(reason.value)} command={question.command(reason.value)} />
          </form>
        </Dialog>
      )}
    </>
  );
}
