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
import { inTime, inWords, moment, span } from "../ui/words";
import { t } from "../texts";

export function Maintenance(): JSX.Element {
  const loaded = useLoaded((abort) => get<Window[]>("/maintenance", undefined, abort), [], {
    everyMs: 10_000,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title={t.common.maintenance} />
      <Shown of={loaded} what={t.maintenance.listingWindows}>
        {(windows) => (
          <Table
            label={t.maintenance.windowsLabel}
            columns={[
              { title: t.maintenance.window, cell: (each: Window) => <Name text={each.window.name} />, sort: (each: Window) => each.window.name },
              { title: t.maintenance.phase, cell: (each: Window) => <Phase word={each.phase} />, sort: (each: Window) => each.phase },
              {
                title: t.maintenance.begins,
                cell: (each: Window) => (
                  <span>
                    {moment(each.starts_ms)} <span class="dim">({inTime(each.starts_ms, nowMs.value)})</span>
                  </span>
                ),
                sort: (each: Window) => each.starts_ms,
              },
              { title: t.common.for, cell: (each: Window) => span(each.ends_ms - each.starts_ms), right: true, minor: true },
              { title: t.maintenance.nodes, cell: (each: Window) => <Nodes window={each} />, sort: (each: Window) => each.nodes },
              { title: t.maintenance.runsThere, cell: (each: Window) => t.counts.parts(each.slices), right: true },
              { title: t.common.reason, cell: (each: Window) => <Name text={each.window.reason} />, minor: true },
              {
                title: "",
                cell: (each: Window) =>
                  operates.value && (
                    <Action
                      label={t.common.withdraw}
                      kind="small"
                      title={t.maintenance.withdrawWindow(each.window.name)}
                      consequences={<p>{t.maintenance.itsNodesAreOpenAgain}</p>}
                      call={() => ({ method: "DELETE", path: `/maintenance/${encodeURIComponent(each.window.name)}` })}
                      command={() => command("maintenance", "rm", each.window.name)}
                      onDone={loaded.reload}
                    />
                  ),
              },
            ]}
            rows={windows}
            keyOf={(each) => each.window.name}
            empty={t.maintenance.noWindowIsPlanned}
          />
        )}
      </Shown>
      {operates.value && <NewWindow onDone={loaded.reload} />}
      <Elsewhere call={{ method: "GET", path: "/maintenance" }} command={command("maintenance", "ls")} />
    </>
  );
}

const Phase = (props: { word: string }): JSX.Element =>
  props.word === "CLOSED" || props.word === "DRAINING" ? <State word={props.word} /> : <span>{inWords(props.word)}</span>;

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
      {props.window.nodes > Math.min(2, ids.length) && t.maintenance.andMore(props.window.nodes - Math.min(2, ids.length))}
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
      <h2>{t.maintenance.newWindow}</h2>
      <form onSubmit={send}>
        <div class="grid">
          <Field label={t.common.name}>
            <input required value={name} onInput={set("name")} />
          </Field>
          <Field label={t.maintenance.beginsIn(zone)}>
            <input type="datetime-local" required value={start} onInput={set("start")} />
          </Field>
          <Field label={t.maintenance.ends}>
            <input type="datetime-local" required value={end} onInput={set("end")} />
          </Field>
          <Field label={t.maintenance.nodesByIdOrName}>
            <input required value={nodes} onInput={set("nodes")} />
          </Field>
          <Field label={t.common.reasonForPeople}>
            <input value={reason} onInput={set("reason")} />
          </Field>
          <button class="primary" aria-disabled={busy.value}>
            {t.common.declare}
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
