/** *What if*: the same requests on the pool as it is, with more nodes, under another policy; side by side. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { ask, type Call } from "../api/client";
import { command } from "../api/commands";
import type { Lease, Plan } from "../api/types";
import { allLeases } from "./leases";
import { Bar, Elsewhere, Field, Problem, valueOf } from "../ui/basics";
import { Heading } from "../ui/screen";
import { Table, type Column } from "../ui/table";
import { count, span, UNKNOWN } from "../ui/words";
import { t } from "../texts";

const POLICIES = Object.entries(t.whatif.policiesDo);
type Outcome = Plan["outcomes"][number];

/** A line of requests: `times` of one kind. */
interface Line {
  times: number;
  gpu: string;
}

/** A plan is given a minute. */
const PATIENCE_MS = 75_000;
const FIRST = "8 x 0.5,16Gi\n4 x 1\n2 x 4x1";

export function WhatIf(): JSX.Element {
  const text = useSignal(FIRST);
  const more = useSignal("1");
  const policies = useSignal<string[]>(["price", "binpack"]);
  const outcomes = useSignal<Outcome[] | null>(null);
  const error = useSignal<unknown>(null);
  const busy = useSignal(false);
  const lines = readLines(text.value);
  const body = {
    requests: lines.flatMap((line) => Array.from({ length: line.times }, () => ({ gpu: line.gpu }))),
    policies: policies.value,
    more_nodes: Number(more.value) || 0,
  };
  const call: Call = { method: "POST", path: "/plans", body, patienceMs: PATIENCE_MS };
  const run = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    try {
      outcomes.value = (await ask<Plan>(call)).outcomes;
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  const take = async (): Promise<void> => {
    const { leases } = await allLeases({}, new AbortController().signal, 5);
    text.value = asLines(leases) || FIRST;
  };
  const turn = (name: string): void => {
    const now = policies.value;
    policies.value = now.includes(name) ? now.filter((each) => each !== name) : [...now, name];
  };
  return (
    <>
      <Heading title={t.common.whatIf} />
      <p class="dim">
        {t.whatif.requestsBelowArePlacedOne}
      </p>
      <form class="card" onSubmit={run}>
        <div class="columns">
          <div>
            <Field label={t.whatif.requestsLineForEachKind} hint={t.whatif.howManyXWhat8}>
              <textarea value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} spellcheck={false} />
            </Field>
            <button type="button" class="small" onClick={take}>
              {t.whatif.takeWhatIsHeldAnd}
            </button>
          </div>
          <div class="card">
            <Field label={t.whatif.moreNodesLikeMostFrequent}>
              <input type="number" min="0" max="1000" value={more.value} onInput={(event) => (more.value = valueOf(event))} />
            </Field>
            <fieldset>
              <legend>{t.whatif.policies}</legend>
              <div class="row">
                {POLICIES.map(([name, does]) => (
                  <label class="check">
                    <input type="checkbox" checked={policies.value.includes(name)} onChange={() => turn(name)} />
                    <span>
                      {name} <small class="dim">{does}</small>
                    </span>
                  </label>
                ))}
              </div>
            </fieldset>
            <button class="primary" aria-disabled={busy.value} disabled={!body.requests.length || !policies.value.length}>
              {busy.value ? t.whatif.placing : t.whatif.place(t.counts.requests(body.requests.length))}
            </button>
          </div>
        </div>
      </form>
      <Problem error={error.value} />
      {outcomes.value && (
        <section class="card">
          <h2>{t.whatif.sideBySide}</h2>
          <Table label={t.whatif.outcomes} columns={COLUMNS} rows={outcomes.value} keyOf={(each) => each.label} />
        </section>
      )}
      <Elsewhere
        call={call}
        command={command(
          "plan", "--nodes", "nodes.json", "--trace", "requests.csv", ...policies.value.flatMap((name) => ["-P", name]),
          "--more", body.more_nodes,
        )}
      />
    </>
  );
}

const COLUMNS: Column<Outcome>[] = [
  { title: t.whatif.policyAndPool, cell: (each) => each.label, sort: (each) => each.label },
  { title: t.common.devices, cell: (each) => count(each.devices), sort: (each) => each.devices, right: true },
  {
    title: t.whatif.placed,
    cell: (each) => (
      <span>
        <Bar
          label={t.whatif.placedOf(each.placed, each.requests)}
          parts={[{ milli: Math.round((1000 * each.placed) / Math.max(1, each.requests)), kind: "share" }]}
        />{" "}
        {count(each.placed)} <span class="dim">{t.common.ofWhole(count(each.requests))}</span>
      </span>
    ),
    sort: (each) => each.placed,
  },
  { title: t.whatif.allocated, cell: (each) => `${each.allocated_percent.toFixed(1)} %`, sort: (each) => each.allocated_percent, right: true },
  {
    title: t.whatif.idleOfNoUseTo,
    cell: (each) => `${each.fragmented_percent.toFixed(1)} %`,
    sort: (each) => each.fragmented_percent,
    right: true,
    minor: true,
  },
  {
    title: t.whatif.wait95Within,
    cell: (each) => (typeof each.wait_p95_s !== "number" ? UNKNOWN : span(1000 * each.wait_p95_s)),
    right: true,
    minor: true,
  },
];

function readLines(text: string): Line[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => {
      const found = /^(\d+)\s+x\s+(.+)$/.exec(line);
      return found ? { times: Math.min(5000, Number(found[1])), gpu: (found[2] ?? "").trim() } : { times: 1, gpu: line };
    });
}

function asLines(leases: Lease[]): string {
  const times = new Map<string, number>();
  for (const lease of leases) times.set(lease.gpu, (times.get(lease.gpu) ?? 0) + 1);
  return [...times].map(([gpu, number]) => `${number} x ${gpu}`).join("\n");
}
