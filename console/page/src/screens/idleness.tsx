/** What leases make of what they hold: of one, and of all that do nothing with it. */
import type { JSX } from "preact";
import { get } from "../api/client";
import { command } from "../api/commands";
import type { Lease, UseReport, UseRow } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { identity, may } from "../live/session";
import { Action } from "../ui/action";
import { Elsewhere, Fact, Name, State } from "../ui/basics";
import { leaseAddress, Link } from "../ui/router";
import { Shown } from "../ui/screen";
import { Table, type Column } from "../ui/table";
import { inTime, money, plural, share, shortId, span, UNKNOWN } from "../ui/words";

const HOUR_MS = 3_600_000;
const QUIET = ["HELD", "IDLE", "HUNG", "GHOST"];
const EXEMPT_S = 4 * 3600;

const MEANING: Record<string, string> = {
  ACTIVE: "Its programs do something.",
  HELD: "No process of it is there.",
  IDLE: "Processes are there, and none has done anything.",
  HUNG: "It is busy without a pause, at the power of a device that does nothing: perhaps it waits for another.",
  GHOST: "No process of it is there, and its device says that it is busy.",
};

const FOLLOWS: Record<string, string> = {
  notify: "its holder is told",
  lend: "its share is lent",
  suspend: "it goes back to its queue",
  release: "it is ended",
};

type LeaseUse = NonNullable<Lease["use"]>;

/** One word, with a sign; unknown is never called idle. */
export function Doing(props: { use: Lease["use"] }): JSX.Element {
  const { use } = props;
  return use && use.state !== "UNSPECIFIED" ? <State word={use.state} /> : <span class="dim">{UNKNOWN}</span>;
}

/** Of one lease: what it does, what was said about it, what follows. */
export function Idleness(props: { lease: Lease; onDone: () => void }): JSX.Element | null {
  const { lease } = props;
  const { use } = lease;
  if (lease.redacted || !lease.active_ms || lease.state === "QUEUED") return null;
  const now = nowMs.value;
  return (
    <section class="card">
      <div class="row between">
        <h2>What it makes of it</h2>
        <Exempt lease={lease} onDone={props.onDone} />
      </div>
      <dl class="facts">
        <Fact name="State">
          <Doing use={use} /> {use && use.since_ms > 0 && <span class="dim">for {span(now - use.since_ms)}</span>}
        </Fact>
        <Fact name="Efficiency">{permille(use?.efficiency_permille ?? null)}</Fact>
        <Fact name="Score">{use ? scored(use) : "unknown"}</Fact>
        <Fact name="What follows">{use ? follows(use, now) : "nothing"}</Fact>
        {use && use.warned > 0 && (
          <Fact name="Warnings">
            {use.warned}, of which {use.told} reached somebody
          </Fact>
        )}
      </dl>
      <p class="dim">{MEANING[use?.state ?? ""] ?? "It was not measured for long enough, or can’t be: nothing follows from that."}</p>
    </section>
  );
}

function follows(use: LeaseUse, now: number): string {
  const told = [];
  if (use.lent) told.push(use.lent_memory ? "its share and memory are lent meanwhile" : "its share is lent meanwhile");
  if (use.act_ms > 0) told.push(`${FOLLOWS[use.action] ?? use.action} ${inTime(use.act_ms, now)}`);
  if (use.exempt_until_ms > now) told.push(`nothing for ${span(use.exempt_until_ms - now)}: ${use.exempt_reason || "it is exempt"}`);
  return told.join("; ") || "nothing";
}

/** The score that dashboards know, and what it is called. */
const scored = (use: LeaseUse): string =>
  use.score_permille === null ? "unknown" : `${use.score_permille / 10}, ${use.utilisation}`;

const permille = (value: number | null): string => (value === null ? "not known yet" : `${Math.round(value / 10)} %`);

function Exempt(props: { lease: Lease; onDone: () => void; small?: boolean }): JSX.Element | null {
  const { lease } = props;
  const mine = lease.asked_by === identity.value?.principal;
  if (lease.redacted || (!mine && !may(["MANAGER", "OPERATOR", "ADMIN"], lease.tenant))) return null;
  const ends = (lease.use?.exempt_until_ms ?? 0) > nowMs.value;
  const for_s = ends ? 0 : EXEMPT_S;
  return (
    <Action
      label={ends ? "End exemption" : "Leave it alone"}
      title={ends ? "Let idleness have consequences again?" : "Let its idleness have no consequences for four hours?"}
      kind="small"
      reason={!ends}
      consequences={<p>{ends ? "Warnings begin anew." : "Nobody is warned, nothing is lent or ended; it is paid for all the same."}</p>}
      call={(reason) => ({ method: "POST", path: `/leases/${encodeURIComponent(lease.lease_id)}:exempt`, body: { for_s, reason } })}
      command={(reason) =>
        command("exempt", lease.lease_id, ...(ends ? ["--end"] : ["--for", "4h"]), reason && "--reason", reason)
      }
      onDone={props.onDone}
    />
  );
}

/** All that is held for nothing, of a tenant and those below it. */
export function Waste(props: { tenant: string }): JSX.Element {
  const query = { tenant: props.tenant, quiet_only: true };
  const loaded = useLoaded((abort) => get<UseReport>("/use", query, abort), [props.tenant], {
    everyMs: 15_000,
    on: (change) => change.kind === "lease" && QUIET.includes(change.lease.use?.state ?? ""),
  });
  return (
    <section class="card">
      <h2>Held for nothing now</h2>
      <Shown of={loaded} what="looking what is used">
        {(report) => <Rows report={report} onDone={loaded.reload} />}
      </Shown>
      <Elsewhere
        call={{ method: "GET", path: "/use", query }}
        command={command("waste", props.tenant && "--tenant", props.tenant)}
      />
    </section>
  );
}

function Rows(props: { report: UseReport; onDone: () => void }): JSX.Element {
  const { rows, currency, left_out } = props.report;
  const hours = rows.reduce((sum, row) => sum + row.wasted_milli_ms, 0) / 1000 / HOUR_MS;
  const spent = rows.reduce((sum, row) => sum + row.wasted_micro, 0);
  return (
    <>
      {rows.length > 0 && (
        <p>
          <span class="big-number">{hours.toFixed(1)}</span> <span class="dim">GPU hours, {money(spent, currency)}, in </span>
          {plural(rows.length + left_out, "lease")}
        </p>
      )}
      <Table
        label="leases that do nothing"
        columns={columnsOf(currency, props.onDone)}
        rows={rows}
        keyOf={(row) => row.lease.lease_id}
        empty="As far as it is measured, everything that is held is used."
      />
      {left_out > 0 && <p class="dim">{plural(left_out, "lease")} that waste less are not shown.</p>}
    </>
  );
}

const columnsOf = (currency: string, onDone: () => void): Column<UseRow>[] => [
  {
    title: "Lease",
    cell: ({ lease }) => (
      <Link to={leaseAddress(lease.lease_id)}>
        {lease.name ? <Name text={lease.name} /> : <span class="code">{shortId(lease.lease_id)}</span>}
      </Link>
    ),
    sort: ({ lease }) => lease.name || lease.lease_id,
  },
  { title: "Tenant", cell: ({ lease }) => <Name text={lease.tenant} />, sort: ({ lease }) => lease.tenant, minor: true },
  { title: "By", cell: ({ lease }) => <Name text={lease.asked_by} />, sort: ({ lease }) => lease.asked_by, minor: true, spare: true },
  { title: "State", cell: ({ lease }) => <Doing use={lease.use} />, sort: ({ lease }) => lease.use?.state ?? "" },
  {
    title: "Score",
    cell: ({ lease }) => (lease.use ? scored(lease.use) : UNKNOWN),
    sort: ({ lease }) => lease.use?.score_permille ?? 1001,
    right: true,
    minor: true,
    spare: true,
  },
  { title: "For", cell: (row) => span(row.idle_ms), sort: (row) => row.idle_ms, right: true },
  {
    title: "Share",
    cell: ({ lease }) => share(lease.slices.reduce((sum, part) => sum + part.share_milli, 0)),
    right: true,
    minor: true,
    spare: true,
  },
  {
    title: "GPU hours",
    cell: (row) => (row.wasted_milli_ms / 1000 / HOUR_MS).toFixed(2),
    sort: (row) => row.wasted_milli_ms,
    right: true,
  },
  {
    title: "Cost",
    cell: (row) => <span class="nowrap">{money(row.wasted_micro, currency)}</span>,
    sort: (row) => row.wasted_micro,
    right: true,
    minor: true,
  },
  {
    title: "What follows",
    cell: (row) => {
      const said = row.lease.use ? follows(row.lease.use, nowMs.value) : "nothing";
      return <span class="dim">{said === "nothing" ? `${FOLLOWS[row.policy] ?? row.policy} after ${span(row.policy_after_ms)}` : said}</span>;
    },
    wide: true,
    minor: true,
  },
  { title: "", cell: ({ lease }) => <Exempt lease={lease} onDone={onDone} /> },
];
