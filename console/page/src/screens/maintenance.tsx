/** *Maintenance*: windows in which nodes are drained, announced beforehand. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { ask, get, type Call } from "../api/client";
import { command } from "../api/commands";
import type { Maintenance as Window } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { operates } from "../live/session";
import { Action } from "../ui/action";
import { Elsewhere, Field, Name, Problem, State, valueOf } from "../ui/basics";
import { Link, nodeAddress } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { inTime, lower, moment, plural, span } from "../ui/words";

export function Maintenance(): JSX.Element {
  const loaded = useLoaded((abort) => get<Window[]>("/maintenance", undefined, abort), [], {
    everyMs: 10_000,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title="Maintenance" />
      <Shown of={loaded} what="listing windows">
        {(windows) => (
          <Table
            label="maintenance windows"
            columns={[
              { title: "Window", cell: (each: Window) => <Name text={each.window.name} />, sort: (each: Window) => each.window.name },
              { title: "Phase", cell: (each: Window) => <Phase word={each.phase} />, sort: (each: Window) => each.phase },
              {
                title: "Begins",
                cell: (each: Window) => (
                  <span>
                    {moment(each.starts_ms)} <span class="dim">({inTime(each.starts_ms, nowMs.value)})</span>
                  </span>
                ),
                sort: (each: Window) => each.starts_ms,
              },
              { title: "For", cell: (each: Window) => span(each.ends_ms - each.starts_ms), right: true, minor: true },
              { title: "Nodes", cell: (each: Window) => <Nodes window={each} />, sort: (each: Window) => each.nodes },
              { title: "Runs there", cell: (each: Window) => plural(each.slices, "part"), right: true },
              { title: "Reason", cell: (each: Window) => <Name text={each.window.reason} />, minor: true },
              {
                title: "",
                cell: (each: Window) =>
                  operates.value && (
                    <Action
                      label="Withdraw"
                      kind="small"
                      title={`Withdraw ${each.window.name}?`}
                      consequences={<p>Its nodes are open again, and nothing is ended for it.</p>}
                      call={() => ({ method: "DELETE", path: `/maintenance/${encodeURIComponent(each.window.name)}` })}
                      command={() => command("maintenance", "rm", each.window.name)}
                      onDone={loaded.reload}
                    />
                  ),
              },
            ]}
            rows={windows}
            keyOf={(each) => each.window.name}
            empty="No window is planned."
          />
        )}
      </Shown>
      {operates.value && <NewWindow onDone={loaded.reload} />}
      <Elsewhere call={{ method: "GET", path: "/maintenance" }} command={command("maintenance", "ls")} />
    </>
  );
}

const Phase = (props: { word: string }): JSX.Element =>
  props.word === "CLOSED" || props.word === "DRAINING" ? <State word={props.word} /> : <span>{lower(props.word)}</span>;

function Nodes(props: { window: Window }): JSX.Element {
  const ids = props.window.node_ids;
  return (
    <span>
      {ids.slice(0, 2).map((id) => (
        <span key={id}>
          <Link to={nodeAddress(id)}>
            <Name text={id} />
          </Link>{" "}
        </span>
      ))}
      {props.window.nodes > Math.min(2, ids.length) && `and ${props.window.nodes - Math.min(2, ids.length)} more`}
    </span>
  );
}

const FIELDS = { name: "", start: "", end: "", nodes: "", reason: "" };

function NewWindow(props: { onDone: () => void }): JSX.Element {
  const form = useSignal(FIELDS);
  const error = useSignal<unknown>(null);
  const busy = useSignal(false);
  const { name, start, end, nodes, reason } = form.value;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const ids = nodes.split(/[\s,]+/).filter(Boolean);
  const call: Call = { method: "PUT", path: "/maintenance", body: { name, start, end, zone, node_ids: ids, reason } };
  const words = ["maintenance", "add", name || "NAME", "--start", start || "TIME", "--end", end || "TIME", "--zone", zone];
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    try {
      await ask(call);
      form.value = FIELDS;
      error.value = null;
      props.onDone();
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  const set = (field: keyof typeof FIELDS) => (event: Event) =>
    void (form.value = { ...form.value, [field]: valueOf(event) });
  return (
    <section class="card">
      <h2>A new window</h2>
      <form onSubmit={send}>
        <div class="grid">
          <Field label="Name">
            <input required value={name} onInput={set("name")} />
          </Field>
          <Field label={`Begins (${zone})`}>
            <input type="datetime-local" required value={start} onInput={set("start")} />
          </Field>
          <Field label="Ends">
            <input type="datetime-local" required value={end} onInput={set("end")} />
          </Field>
          <Field label="Nodes, by id or name">
            <input required value={nodes} onInput={set("nodes")} />
          </Field>
          <Field label="Reason, for people">
            <input value={reason} onInput={set("reason")} />
          </Field>
          <button class="primary" aria-disabled={busy.value}>
            Declare
          </button>
        </div>
      </form>
      <Problem error={error.value} />
      <Elsewhere
        call={call}
        command={command(...words, ...ids.flatMap((id) => ["--node", id]), reason && "--reason", reason)}
      />
    </section>
  );
}
