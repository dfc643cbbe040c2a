/** One lease: why it waits or where it is, what it was promised and what it uses, and the log of its life. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { get } from "../api/client";
import { command, shell } from "../api/commands";
import type { Explanation, Lease as LeaseValue, Slice, Timeline } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { secrets } from "../live/secrets";
import { identity, may } from "../live/session";
import { Action } from "../ui/action";
import { Bar, Copyable, Elsewhere, Fact, Name, State } from "../ui/basics";
import { Link, nodeAddress, param } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { ago, bytes, inTime, lower, moment, plural, share, shortId, span, UNKNOWN } from "../ui/words";
import { Spark, useHistory } from "../ui/spark";
import { endOf, Extend } from "./extending";
import { Idleness } from "./idleness";
import { observed, sharesOf } from "./leases";

const FRESH_MS = 3000;

export function Lease(): JSX.Element {
  const id = param("id");
  const loaded = useLoaded((abort) => get<LeaseValue>(`/leases/${encodeURIComponent(id)}`, undefined, abort), [id], {
    everyMs: FRESH_MS,
    on: (change) => change.kind === "lease" && change.lease.lease_id === id,
  });
  const lease = loaded.value;
  return (
    <>
      <Heading title={lease?.name ? <Name text={lease.name} /> : `Lease ${shortId(id)}`}>
        {lease && (
          <div class="row">
            <Extend lease={lease} onDone={loaded.reload} />
            <Ending lease={lease} onDone={loaded.reload} />
          </div>
        )}
      </Heading>
      <Shown of={loaded} what="reading the lease">
        {(value) => <Shows key={id} lease={value} reload={loaded.reload} />}
      </Shown>
    </>
  );
}

function Ending(props: { lease: LeaseValue; onDone: () => void }): JSX.Element | null {
  const { lease } = props;
  if (lease.state === "ENDED" || lease.state === "RELEASING") return null;
  const mine = lease.asked_by === identity.value?.principal;
  if (!mine && !may(["MANAGER", "OPERATOR", "ADMIN"], lease.tenant)) return null;
  const path = `/leases/${encodeURIComponent(lease.lease_id)}:release`;
  const waits = lease.state === "QUEUED";
  return (
    <Action
      label={waits ? "Withdraw" : "Release"}
      title={waits ? "Stop waiting?" : "Release this lease?"}
      kind="danger"
      reason
      consequences={
        <p>
          {waits
            ? "It gives up its place in line."
            : `What runs in it is stopped: first SIGTERM, then SIGKILL. It holds ${sharesOf(lease)} of a device.`}
          {!mine && (
            <strong>
              {" "}
              It is <bdi>{lease.asked_by || "somebody else"}</bdi>’s.
            </strong>
          )}
        </p>
      }
      call={(reason) => ({ method: "POST", path, body: { reason } })}
      command={(reason) => command("release", lease.lease_id, reason && "--reason", reason)}
      onDone={props.onDone}
    />
  );
}

function Shows(props: { lease: LeaseValue; reload: () => void }): JSX.Element {
  const { lease } = props;
  const now = nowMs.value;
  const limited = lease.slices.some((part) => part.deadline_ms > 0);
  return (
    <>
      <section class="card">
        <dl class="facts">
          <Fact name="State">
            <State word={lease.state} />
          </Fact>
          <Fact name="Asked for">
            <code>{lease.gpu}</code>
            {lease.gang_size > 1 ? `, ${lease.gang_size} members` : ""}
          </Fact>
          <Fact name="By">
            <Name text={lease.asked_by} fallback={UNKNOWN} />
          </Fact>
          <Fact name="Tenant">
            <Name text={lease.tenant} fallback={UNKNOWN} />
          </Fact>
          <Fact name="Queue">
            <Name text={lease.queue} fallback={UNKNOWN} />
            {lease.priority ? `, priority ${lease.priority}` : ""}
          </Fact>
          <Fact name="Asked">{ago(lease.created_ms, now)}</Fact>
          <Fact name={lease.ended_ms ? "Held" : "Held for"}>
            {lease.granted_ms ? span((lease.ended_ms || now) - lease.granted_ms) : UNKNOWN}
          </Fact>
          {lease.state !== "ENDED" && !lease.redacted && <Fact name="Ends">{endOf(lease, now)}</Fact>}
          <Fact name="Id">
            <span class="code">{lease.lease_id}</span>
          </Fact>
        </dl>
        {lease.redacted && <p class="dim">It is another tenant’s: only what sums and places need is shown.</p>}
        {lease.end_reason && (
          <p class="note bad">
            <strong>Ended: {lower(lease.end_reason)}.</strong> <bdi>{lease.end_detail}</bdi>
            {lease.exit_code != null && ` Exit code ${lease.exit_code}.`}
          </p>
        )}
        {limited && lease.state !== "ENDED" && (
          <p class="note warn" role="alert">
            Part of it will be stopped {inTime(Math.max(...lease.slices.map((part) => part.deadline_ms)), now)}:{" "}
            <bdi>{lease.slices.find((part) => part.deadline_ms)?.reason}</bdi>
          </p>
        )}
        {lease.warnings.map((warning, at) => (
          <p class="note warn" key={at}>
            <bdi>{warning}</bdi>
          </p>
        ))}
      </section>
      {lease.state === "QUEUED" && lease.waiting && <Waits why={lease.waiting} />}
      {lease.slices.length > 0 && lease.state !== "ENDED" && <Parts lease={lease} />}
      {lease.state !== "ENDED" && <Idleness lease={lease} onDone={props.reload} />}
      {lease.state !== "ENDED" && !lease.redacted && <Using lease={lease} />}
      <Life lease={lease} />
      <Elsewhere
        call={{ method: "GET", path: `/leases/${encodeURIComponent(lease.lease_id)}` }}
        command={command("get", lease.lease_id)}
      />
    </>
  );
}

function Waits(props: { why: Explanation }): JSX.Element {
  const { why } = props;
  return (
    <section class="card">
      <h2>Why it waits</h2>
      <p>
        <bdi>{why.summary}</bdi>
      </p>
      <dl class="facts">
        <Fact name="Expected start">
          {why.expected_start_ms
            ? `${inTime(why.expected_start_ms, nowMs.value)}, ${moment(why.expected_start_ms)}`
            : why.start_unknown || "not known"}
        </Fact>
        <Fact name="Nine times of ten">
          {why.earliest_start_ms && why.latest_start_ms
            ? `${inTime(why.earliest_start_ms, nowMs.value)} to ${inTime(why.latest_start_ms, nowMs.value)}`
            : "not known yet: too few waits have ended"}
        </Fact>
        <Fact name="Place in line">{why.queue_position ? `${why.queue_position} of ${why.queue_length}` : UNKNOWN}</Fact>
      </dl>
      <ul class="plain changes">
        {why.missing.map((each) => (
          <li>
            <strong>
              <bdi>{each.smallest_change || "nothing smaller helps"}</bdi>
            </strong>{" "}
            <span class="dim">
              – {each.device_class}: <bdi>{each.detail}</bdi>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Parts(props: { lease: LeaseValue }): JSX.Element {
  const { slices } = props.lease;
  const reserved = slices.reduce((sum, part) => sum + part.memory_bytes, 0);
  const used = observed(slices);
  const history = useHistory(used, props.lease.lease_id);
  return (
    <section class="card">
      <h2>What it holds, and what it uses</h2>
      <p class="row between">
        <span>
          <span class="big-number">{bytes(used)}</span> <span class="dim">used of {bytes(reserved)} reserved</span>
        </span>
        <span class="dim">while this page is open</span>
      </p>
      <Spark values={history} limit={reserved} label={`memory used, ${bytes(used)} of ${bytes(reserved)}`} />
      <Table label="parts of the lease" columns={PARTS} rows={slices} keyOf={(part) => part.slice_id} />
      {[...new Set(slices.flatMap((part) => part.tier_notes))].map((note) => (
        <p class="dim">
          <bdi>{note}</bdi>
        </p>
      ))}
    </section>
  );
}

const PARTS = [
  {
    title: "Node",
    cell: (part: Slice) => (
      <Link to={nodeAddress(part.node_id)}>
        <Name text={part.node_name} />
      </Link>
    ),
    sort: (part: Slice) => part.node_name,
  },
  {
    title: "Device",
    cell: (part: Slice) => (
      <span>
        {part.mig_profile || part.device_model} <span class="code dim">{shortId(part.device_uuid)}</span>
      </span>
    ),
    minor: true,
  },
  { title: "State", cell: (part: Slice) => <State word={part.state} /> },
  { title: "Share", cell: (part: Slice) => share(part.share_milli), right: true },
  {
    title: "Memory",
    cell: (part: Slice) => (
      <span>
        <Bar
          label={`${bytes(part.observed_bytes)} of ${bytes(part.memory_bytes)}`}
          parts={[
            {
              milli: Math.round((1000 * (part.observed_bytes ?? 0)) / Math.max(1, part.memory_bytes)),
              kind: (part.observed_bytes ?? 0) > part.memory_bytes ? "alert" : "observed",
            },
          ]}
        />{" "}
        {bytes(part.observed_bytes)} <span class="dim">of {bytes(part.memory_bytes)}</span>
      </span>
    ),
  },
  {
    title: "Busy",
    cell: (part: Slice) =>
      part.observed_utilisation_percent === null ? UNKNOWN : `${part.observed_utilisation_percent} %`,
    right: true,
  },
  { title: "Limit held by", cell: (part: Slice) => lower(part.tier === "UNSPECIFIED" ? "not known yet" : part.tier) },
];

function Using(props: { lease: LeaseValue }): JSX.Element {
  const id = props.lease.lease_id;
  const secret = secrets.get(id);
  const endpoints = [...new Set(props.lease.slices.map((part) => part.endpoint).filter(Boolean))];
  const nodes = [...new Set(props.lease.slices.map((part) => part.node_name))];
  return (
    <section class="card">
      <h2>How to use it</h2>
      {secret && (
        <p class="note warn">
          The secret below is told once, to whoever asked for the lease: this tab forgets it when it is closed.
        </p>
      )}
      {nodes.length > 0 && endpoints.length === 0 && (
        <p>
          Programs start on <Name text={nodes.slice(0, 4).join(", ")} />:
        </p>
      )}
      <Copyable
        label="command line"
        text={`${secret ? `export ALIQUOT_LEASE_SECRET=${shell(secret)}\n` : ""}aliquot exec --lease ${shell(id)} -- python train.py`}
      />
      {endpoints.map((endpoint) => (
        <p>
          It is served at <code>{endpoint}</code>.
        </p>
      ))}
    </section>
  );
}

interface Step {
  atMs: number;
  text: string;
}

/** From the pool's facts; of what an older coordinator doesn't tell, what the lease itself remembers. */
function Life(props: { lease: LeaseValue }): JSX.Element {
  const { lease } = props;
  const path = `/leases/${encodeURIComponent(lease.lease_id)}/timeline`;
  const loaded = useLoaded((abort) => get<Timeline>(path, undefined, abort), [lease.lease_id, lease.seq]);
  const facts = loaded.value?.steps.map((step) => ({
    atMs: step.at_ms,
    text: step.detail ? `${lower(step.what)}: ${step.detail}` : lower(step.what),
  }));
  const shown = useSignal<Step[]>([]);
  useEffect(() => {
    if (facts) shown.value = facts;
  }, [loaded.value]);
  const steps = shown.value.length ? shown.value : known(lease);
  return (
    <section class="card">
      <h2>Log of its life</h2>
      <ol class="story">
        {steps.map((step) => (
          <li>
            <time dateTime={new Date(step.atMs).toISOString()}>{moment(step.atMs)}</time>
            <bdi>{step.text}</bdi>
          </li>
        ))}
      </ol>
      {loaded.value && !loaded.value.complete && <p class="dim">Earlier facts were compacted away.</p>}
    </section>
  );
}

function known(lease: LeaseValue): Step[] {
  const steps: Step[] = [{ atMs: lease.created_ms, text: `asked for by ${lease.asked_by || "somebody"}` }];
  if (lease.granted_ms) {
    const waited = span(lease.granted_ms - lease.created_ms);
    const again = lease.requeues ? `, after it went back to its queue ${plural(lease.requeues, "time")}` : "";
    steps.push({ atMs: lease.granted_ms, text: `granted, after ${waited}${again}` });
  }
  if (lease.active_ms) steps.push({ atMs: lease.active_ms, text: "became active" });
  for (const part of lease.slices) {
    if (part.reason) steps.push({ atMs: part.since_ms, text: `${part.node_name}: ${lower(part.state)}: ${part.reason}` });
  }
  if (lease.ended_ms) {
    const by = lease.ended_by ? ` by ${lease.ended_by}` : "";
    steps.push({ atMs: lease.ended_ms, text: `ended${by}: ${lower(lease.end_reason)} ${lease.end_detail}`.trim() });
  }
  return steps.sort((a, b) => a.atMs - b.atMs);
}
