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
import { inTime, inWords, money, share, shortId, span, UNKNOWN } from "../ui/words";
import { byWord, t } from "../texts";

const HOUR_MS = 3_600_000;
const QUIET = ["HELD", "IDLE", "HUNG", "GHOST"];
const EXEMPT_S = 4 * 3600;

const actionOf = (word: string): string => byWord(t.idleness.actions, word) ?? word;

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
        <h2>{t.idleness.whatItMakesOfIt}</h2>
        <Exempt lease={lease} onDone={props.onDone} />
      </div>
      <dl class="facts">
        <Fact name={t.common.state}>
          <Doing use={use} /> {use && use.since_ms > 0 && <span class="dim">{t.idleness.forSpan(span(now - use.since_ms))}</span>}
        </Fact>
        <Fact name={t.idleness.efficiency}>{permille(use?.efficiency_permille ?? null)}</Fact>
        <Fact name={t.idleness.score}>{use ? scored(use) : t.idleness.scoreUnknown}</Fact>
        <Fact name={t.idleness.whatFollows}>{use ? follows(use, now) : t.common.nothing}</Fact>
        {use && use.warned > 0 && (
          <Fact name={t.idleness.warnings}>
            {t.idleness.warned(use.warned, use.told)}
          </Fact>
        )}
      </dl>
      <p class="dim">{byWord(t.idleness.meaning, use?.state ?? "") ?? t.idleness.itWasNotMeasuredFor}</p>
    </section>
  );
}

function follows(use: LeaseUse, now: number): string {
  const told = [];
  if (use.lent) told.push(use.lent_memory ? t.idleness.shareAndMemoryLent : t.idleness.shareLent);
  if (use.act_ms > 0) told.push(t.idleness.actsIn(actionOf(use.action), inTime(use.act_ms, now)));
  if (use.exempt_until_ms > now) told.push(t.idleness.exemptFor(span(use.exempt_until_ms - now), use.exempt_reason || t.idleness.itIsExempt));
  return told.join(t.list) || t.common.nothing;
}

/** The score that dashboards know, and what it is called. */
const scored = (use: LeaseUse): string =>
  use.score_permille === null ? t.idleness.scoreUnknown : `${use.score_permille / 10}${t.list}${inWords(use.utilisation)}`;

const permille = (value: number | null): string => (value === null ? t.idleness.notKnownYet : t.idleness.percent(Math.round(value / 10)));

function Exempt(props: { lease: Lease; onDone: () => void; small?: boolean }): JSX.Element | null {
  const { lease } = props;
  const mine = lease.asked_by === identity.value?.principal;
  if (lease.redacted || (!mine && !may(["MANAGER", "OPERATOR", "ADMIN"], lease.tenant))) return null;
  const ends = (lease.use?.exempt_until_ms ?? 0) > nowMs.value;
  const for_s = ends ? 0 : EXEMPT_S;
  return (
    <Action
      label={ends ? t.idleness.endExemption : t.idleness.leaveItAlone}
      title={ends ? t.idleness.letIdlenessHaveConsequencesAgain : t.idleness.letItsIdlenessHaveNo}
      kind="small"
      reason={!ends}
      consequences={<p>{ends ? t.idleness.warningsBeginAnew : t.idleness.nobodyIsWarnedNothingIs}</p>}
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
      <h2>{t.idleness.heldForNothingNow}</h2>
      <Shown of={loaded} what={t.idleness.lookingWhatIsUsed}>
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
          {t.idleness.wasted(
            <span class="big-number">{hours.toFixed(1)}</span>,
            money(spent, currency),
            t.counts.leases(rows.length + left_out),
          )}
        </p>
      )}
      <Table
        label={t.idleness.leasesThatDoNothing}
        columns={columnsOf(currency, props.onDone)}
        rows={rows}
        keyOf={(row) => row.lease.lease_id}
        empty={t.idleness.asFarAsItIs}
      />
      {left_out > 0 && <p class="dim">{t.idleness.leftOut(t.counts.leases(left_out))}</p>}
    </>
  );
}

const columnsOf = (currency: string, onDone: () => void): Column<UseRow>[] => [
  {
    title: t.common.lease,
    cell: ({ lease }) => (
      <Link to={leaseAddress(lease.lease_id)}>
        {lease.name ? <Name text={lease.name} /> : <span class="code">{shortId(lease.lease_id)}</span>}
      </Link>
    ),
    sort: ({ lease }) => lease.name || lease.lease_id,
  },
  { title: t.common.tenant, cell: ({ lease }) => <Name text={lease.tenant} />, sort: ({ lease }) => lease.tenant, minor: true },
  { title: t.common.owner, cell: ({ lease }) => <Name text={lease.asked_by} />, sort: ({ lease }) => lease.asked_by, minor: true, spare: true },
  { title: t.common.state, cell: ({ lease }) => <Doing use={lease.use} />, sort: ({ lease }) => lease.use?.state ?? "" },
  {
    title: t.idleness.score,
    cell: ({ lease }) => (lease.use ? scored(lease.use) : UNKNOWN),
    sort: ({ lease }) => lease.use?.score_permille ?? 1001,
    right: true,
    minor: true,
    spare: true,
  },
  { title: t.common.for, cell: (row) => span(row.idle_ms), sort: (row) => row.idle_ms, right: true },
  {
    title: t.common.share,
    cell: ({ lease }) => share(lease.slices.reduce((sum, part) => sum + part.share_milli, 0)),
    right: true,
    minor: true,
    spare: true,
  },
  {
    title: t.common.gpuHours,
    cell: (row) => (row.wasted_milli_ms / 1000 / HOUR_MS).toFixed(2),
    sort: (row) => row.wasted_milli_ms,
    right: true,
  },
  {
    title: t.common.cost,
    cell: (row) => <span class="nowrap">{money(row.wasted_micro, currency)}</span>,
    sort: (row) => row.wasted_micro,
    right: true,
    minor: true,
  },
  {
    title: t.idleness.whatFollows,
    cell: (row) => {
      const said = row.lease.use ? follows(row.lease.use, nowMs.value) : t.common.nothing;
      const later = t.idleness.actsAfter(actionOf(row.policy), span(row.policy_after_ms));
      return <span class="dim">{said === t.common.nothing ? later : said}</span>;
    },
    wide: true,
    minor: true,
  },
  { title: "", cell: ({ lease }) => <Exempt lease={lease} onDone={onDone} /> },
];
