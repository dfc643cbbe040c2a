/** One lease: why it waits or where it is, what it was promised and what it uses, and the log of its life. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { get } from "../api/client";
import { asExec, asTunnel, command } from "../api/commands";
import type { Asked, Explanation, Lease as LeaseValue, Slice, Timeline } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { secrets } from "../live/secrets";
import { identity, may } from "../live/session";
import { Action } from "../ui/action";
import { Bar, Copyable, Elsewhere, Fact, Name, State } from "../ui/basics";
import { leaseAddress, Link, nodeAddress, param } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { ago, bytes, inTime, inWords, moment, share, shortId, span, UNKNOWN } from "../ui/words";
import { Spark, useHistory } from "../ui/spark";
import { Instead } from "./ask";
import { endOf, Extend } from "./extending";
import { Idleness } from "./idleness";
import { observed, sharesOf } from "./leases";
import { t } from "../texts";

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
      <Heading title={lease?.name ? <Name text={lease.name} /> : t.lease.leaseId(shortId(id))}>
        {lease && (
          <div class="row">
            <Extend lease={lease} onDone={loaded.reload} />
            <Ending lease={lease} onDone={loaded.reload} />
          </div>
        )}
      </Heading>
      <Shown of={loaded} what={t.lease.readingLease}>
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
      label={waits ? t.common.withdraw : t.lease.release}
      title={waits ? t.lease.stopWaiting : t.lease.releaseThisLease}
      kind="danger"
      reason
      consequences={
        <p>
          {waits
            ? t.lease.itGivesUpItsPlace
            : t.lease.whatRunsIsStopped(sharesOf(lease))}
          {!mine && (
            <strong>{t.lease.itIsOf(<bdi>{lease.asked_by || t.lease.somebodyElse}</bdi>)}</strong>
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
          <Fact name={t.common.state}>
            <State word={lease.state} />
          </Fact>
          <Fact name={t.common.askedFor}>
            <code>{lease.gpu}</code>
            {lease.gang_size > 1 ? t.lease.ofMembers(t.counts.members(lease.gang_size)) : ""}
            {lease.max_count > 0 && t.lease.elastic(lease.min_count, t.counts.slices(lease.max_count))}
          </Fact>
          <Fact name={t.common.owner}>
            <Name text={lease.asked_by} fallback={UNKNOWN} />
          </Fact>
          <Fact name={t.common.tenant}>
            <Name text={lease.tenant} fallback={UNKNOWN} />
          </Fact>
          <Fact name={t.common.queue}>
            <Name text={lease.queue} fallback={UNKNOWN} />
            {lease.priority ? t.lease.withPriority(lease.priority) : ""}
          </Fact>
          <Fact name={t.lease.asked}>{ago(lease.created_ms, now)}</Fact>
          <Fact name={lease.ended_ms ? t.lease.held : t.lease.heldFor}>
            {lease.granted_ms ? span((lease.ended_ms || now) - lease.granted_ms) : UNKNOWN}
          </Fact>
          {lease.state !== "ENDED" && !lease.redacted && <Fact name={t.common.ends}>{endOf(lease, now)}</Fact>}
          <Fact name={t.common.id}>
            <span class="code">{lease.lease_id}</span>
          </Fact>
        </dl>
        {lease.redacted && <p class="dim">{t.lease.itIsAnotherTenantsOnly}</p>}
        {lease.end_reason && (
          <p class="note bad">
            <strong>{t.lease.endedFor(inWords(lease.end_reason))}</strong> <bdi>{lease.end_detail}</bdi>
            {lease.exit_code != null && t.lease.exitCode(lease.exit_code)}
          </p>
        )}
        {limited && lease.state !== "ENDED" && (
          <p class="note warn" role="alert">
            {t.lease.partWillBeStopped(inTime(Math.max(...lease.slices.map((part) => part.deadline_ms)), now))}{" "}
            <bdi>{lease.slices.find((part) => part.deadline_ms)?.reason}</bdi>
          </p>
        )}
        {lease.warnings.map((warning, at) => (
          <p class="note warn" key={at}>
            <bdi>{warning}</bdi>
          </p>
        ))}
      </section>
      <Replaced lease={lease} />
      {lease.state === "QUEUED" && lease.waiting && <Waits why={lease.waiting} lease={lease} />}
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

/** Of a request that was sent instead of one that waited: what has become of that. */
function Replaced(props: { lease: LeaseValue }): JSX.Element | null {
  const [replaced, beside] = [param("replaced"), param("beside")];
  const other = <Link to={leaseAddress(replaced || beside)}>{shortId(replaced || beside)}</Link>;
  if (replaced) return <p class="note good">{t.lease.tookThePlace(other)}</p>;
  if (!beside) return null;
  return <p class="note warn">{props.lease.state === "QUEUED" ? t.lease.bothWait(other) : t.lease.bothStand(other)}</p>;
}

function Waits(props: { why: Explanation; lease: LeaseValue }): JSX.Element {
  const { why, lease } = props;
  const mine = lease.asked_by === identity.value?.principal;
  return (
    <section class="card">
      <h2>{t.common.whyItWaits}</h2>
      <p>
        <bdi>{why.summary}</bdi>
      </p>
      <dl class="facts">
        <Fact name={t.common.expectedStart}>
          {why.expected_start_ms
            ? t.ask.startsAt(inTime(why.expected_start_ms, nowMs.value), moment(why.expected_start_ms))
            : why.start_unknown || t.common.notKnown}
        </Fact>
        <Fact name={t.lease.nineTimesOfTen}>
          {why.earliest_start_ms && why.latest_start_ms
            ? t.lease.fromTo(inTime(why.earliest_start_ms, nowMs.value), inTime(why.latest_start_ms, nowMs.value))
            : t.lease.notKnownYetTooFew}
        </Fact>
        <Fact name={t.common.placeInLine}>{why.queue_position ? t.ask.placeOf(why.queue_position, why.queue_length) : UNKNOWN}</Fact>
      </dl>
      {why.instead && mine && <Instead request={why.instead as unknown as Asked} of={lease.lease_id} />}
      <ul class="plain changes">
        {why.missing.map((each) => (
          <li>
            <strong>
              <bdi>{each.smallest_change || t.lease.nothingSmallerHelps}</bdi>
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
      <h2>{t.lease.whatItHoldsAndWhat}</h2>
      <p class="row between">
        <span>
          <span class="big-number">{bytes(used)}</span> <span class="dim">{t.lease.usedOf(bytes(reserved))}</span>
        </span>
        <span class="dim">{t.lease.whilePageIsOpen}</span>
      </p>
      <Spark values={history} limit={reserved} label={t.lease.memoryUsed(bytes(used), bytes(reserved))} />
      <Table label={t.lease.partsOfLease} columns={PARTS} rows={slices} keyOf={(part) => part.slice_id} />
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
    title: t.common.node,
    cell: (part: Slice) => (
      <Link to={nodeAddress(part.node_id)}>
        <Name text={part.node_name} />
      </Link>
    ),
    sort: (part: Slice) => part.node_name,
  },
  {
    title: t.common.device,
    cell: (part: Slice) => (
      <span>
        {part.mig_profile || part.device_model} <span class="code dim">{shortId(part.device_uuid)}</span>
      </span>
    ),
    minor: true,
  },
  { title: t.common.state, cell: (part: Slice) => <State word={part.state} /> },
  { title: t.common.share, cell: (part: Slice) => share(part.share_milli), right: true },
  {
    title: t.lease.memory,
    cell: (part: Slice) => (
      <span>
        <Bar
          label={t.common.partOf(bytes(part.observed_bytes), bytes(part.memory_bytes))}
          parts={[
            {
              milli: Math.round((1000 * (part.observed_bytes ?? 0)) / Math.max(1, part.memory_bytes)),
              kind: (part.observed_bytes ?? 0) > part.memory_bytes ? "alert" : "observed",
            },
          ]}
        />{" "}
        {bytes(part.observed_bytes)} <span class="dim">{t.common.ofWhole(bytes(part.memory_bytes))}</span>
      </span>
    ),
  },
  {
    title: t.common.busy,
    cell: (part: Slice) =>
      part.observed_utilisation_percent === null ? UNKNOWN : `${part.observed_utilisation_percent} %`,
    right: true,
  },
  { title: t.lease.limitHeldBy, cell: (part: Slice) => part.tier === "UNSPECIFIED" ? t.idleness.notKnownYet : inWords(part.tier) },
];

function Using(props: { lease: LeaseValue }): JSX.Element {
  const id = props.lease.lease_id;
  const secret = secrets.get(id);
  const endpoints = [...new Set(props.lease.slices.map((part) => part.endpoint).filter(Boolean))];
  const nodes = [...new Set(props.lease.slices.map((part) => part.node_name))];
  return (
    <section class="card">
      <h2>{t.common.howToUseIt}</h2>
      {secret && (
        <p class="note warn">
          {t.lease.secretBelowIsToldOnce}
        </p>
      )}
      {nodes.length > 0 && endpoints.length === 0 && (
        <p>
          {t.lease.programsStartOn(<Name text={nodes.slice(0, 4).join(", ")} />)}
        </p>
      )}
      <Copyable
        label={t.common.commandLine}
        text={asExec(id, secret)}
      />
      <Served lease={props.lease} />
      {endpoints.map((endpoint) => (
        <p>
          {t.lease.servedAt(<code>{endpoint}</code>)}
        </p>
      ))}
    </section>
  );
}

/** What a program of it serves on its node, such as a notebook: how to reach it from one's own machine. */
function Served(props: { lease: LeaseValue }): JSX.Element | null {
  const port = Number(props.lease.labels["port"]);
  const node = props.lease.slices[0]?.node_name;
  // Anybody may write anything into a label.
  if (!node || !Number.isInteger(port) || port < 1 || port > 65_535) return null;
  const address = `http://127.0.0.1:${port}`;
  return (
    <>
      <Copyable label={t.lease.toReachPort(port)} text={asTunnel(port, node)} />
      <p>
        {t.lease.thenOpen(
          <a href={address} target="_blank" rel="noopener noreferrer">
            {address}
          </a>,
          <code>{command("logs", props.lease.lease_id)}</code>,
        )}
      </p>
    </>
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
    text: step.detail ? t.lease.stepOf(inWords(step.what), step.detail) : inWords(step.what),
  }));
  const shown = useSignal<Step[]>([]);
  useEffect(() => {
    if (facts) shown.value = facts;
  }, [loaded.value]);
  const steps = shown.value.length ? shown.value : known(lease);
  return (
    <section class="card">
      <h2>{t.lease.logOfItsLife}</h2>
      <ol class="story">
        {steps.map((step) => (
          <li>
            <time dateTime={new Date(step.atMs).toISOString()}>{moment(step.atMs)}</time>
            <bdi>{step.text}</bdi>
          </li>
        ))}
      </ol>
      {loaded.value && !loaded.value.complete && <p class="dim">{t.lease.earlierFactsWereCompactedAway}</p>}
    </section>
  );
}

function known(lease: LeaseValue): Step[] {
  const steps: Step[] = [{ atMs: lease.created_ms, text: t.lease.askedForBy(lease.asked_by || t.lease.somebody) }];
  if (lease.granted_ms) {
    const waited = span(lease.granted_ms - lease.created_ms);
    steps.push({ atMs: lease.granted_ms, text: t.lease.grantedAfter(waited, lease.requeues) });
  }
  if (lease.active_ms) steps.push({ atMs: lease.active_ms, text: t.lease.becameActive });
  for (const part of lease.slices) {
    if (part.reason) steps.push({ atMs: part.since_ms, text: t.lease.stepOf(`${part.node_name} ${inWords(part.state)}`, part.reason) });
  }
  if (lease.ended_ms) {
    const why = `${inWords(lease.end_reason)} ${lease.end_detail}`.trim();
    steps.push({ atMs: lease.ended_ms, text: t.lease.endedBy(lease.ended_by, why) });
  }
  return steps.sort((a, b) => a.atMs - b.atMs);
}
