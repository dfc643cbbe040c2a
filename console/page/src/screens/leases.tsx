/** *My leases*: what one holds and waits for, and whether it is used. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { command } from "../api/commands";
import { get } from "../api/client";
import type { Explanation, Lease, Page, Slice } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { identity } from "../live/session";
import { Bar, Empty, Elsewhere, Name, State } from "../ui/basics";
import { leaseAddress, Link, param, setParams } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Doing } from "./idleness";
import { Table, type Column } from "../ui/table";
import { bytes, count, inTime, inWords, share, shortId, span, UNKNOWN } from "../ui/words";
import { t } from "../texts";

/** So many pages of 1,000 are fetched: who has more narrows it down by tenant or node. */
const PAGES_MAX = 5;
const FRESH_MS = 6000;

const VIEWS = Object.entries(t.leases.views);

interface Found {
  leases: Lease[];
  cut: boolean;
}

export async function allLeases(
  query: Record<string, string | string[]>,
  abort: AbortSignal,
  pagesMax = PAGES_MAX,
): Promise<Found> {
  const leases: Lease[] = [];
  let token = "";
  for (let page = 0; page < pagesMax; page++) {
    const found: Page<Lease> = await get("/leases", { ...query, page_size: 1000, page_token: token }, abort);
    leases.push(...found.items);
    token = found.next_token;
    if (!token) break;
  }
  return { leases, cut: token !== "" };
}

export function Leases(): JSX.Element {
  const view = param("view");
  const tenant = param("tenant");
  const words = param("q").toLowerCase();
  const me = identity.value?.principal ?? "";
  const mine = view !== "all";
  const query = { tenant, ...(view === "ended" ? { state: ["ENDED"] } : {}) };
  const loaded = useLoaded((abort) => allLeases(query, abort), [view, tenant], {
    everyMs: FRESH_MS,
    on: (change) => change.kind === "lease" && (!mine || change.lease.asked_by === me),
  });
  return (
    <>
      <Heading title={t.common.myLeases}>
        <Link to="/ask" class="button primary">
          {t.leases.askForOne}
        </Link>
      </Heading>
      <div class="row">
        <div class="tabs" role="group" aria-label={t.leases.whichLeases}>
          {VIEWS.map(([name, title]) => (
            <button type="button" aria-pressed={view === name} onClick={() => setParams({ view: name })}>
              {title}
            </button>
          ))}
        </div>
        <input
          class="grow"
          type="search"
          aria-label={t.leases.searchByNameIdNode}
          placeholder={t.leases.nameIdNodeModel}
          value={param("q")}
          onInput={(event) => setParams({ q: event.currentTarget.value })}
        />
      </div>
      <Shown of={loaded} what={t.common.listingLeases}>
        {(found) => <List found={found} mine={mine} me={me} words={words} ended={view === "ended"} />}
      </Shown>
      <Elsewhere
        call={{ method: "GET", path: "/leases", query }}
        command={command("ls", tenant && "--tenant", tenant, view === "ended" && "--all")}
      />
    </>
  );
}

function List(props: { found: Found; mine: boolean; me: string; words: string; ended: boolean }): JSX.Element {
  const rows = useMemo(
    () =>
      props.found.leases
        .filter((lease) => !props.mine || lease.asked_by === props.me)
        .filter((lease) => !props.words || textOf(lease).includes(props.words))
        .reverse(),
    [props.found, props.mine, props.me, props.words],
  );
  const shown = props.ended ? COLUMNS.filter((each) => each.key !== "used" && each.key !== "activity") : COLUMNS;
  return (
    <>
      {props.found.cut && <p class="stale">{t.leases.onlyTheFirst(count(props.found.leases.length))}</p>}
      <Table
        label={t.leases.leases}
        columns={shown}
        rows={rows}
        keyOf={(lease) => lease.lease_id}
        empty={
          props.words ? (
            t.leases.noLeaseHasTheseWords
          ) : props.ended ? (
            t.leases.noneOfYoursHasEnded
          ) : (
            <Empty>
              {t.leases.nothingHeld(<Link to="/ask">{t.common.wouldItRunNow}</Link>)}
            </Empty>
          )
        }
      />
    </>
  );
}

const textOf = (lease: Lease): string =>
  [lease.lease_id, lease.name, lease.tenant, lease.gpu, lease.state]
    .concat(lease.slices.flatMap((part) => [part.node_name, part.device_model]))
    .join(" ")
    .toLowerCase();

export const COLUMNS: Column<Lease>[] = [
  {
    key: "lease",
    title: t.common.lease,
    cell: (lease) => (
      <Link to={leaseAddress(lease.lease_id)}>
        {lease.name ? <Name text={lease.name} /> : <span class="code">{shortId(lease.lease_id)}</span>}
      </Link>
    ),
    sort: (lease) => lease.name || lease.lease_id,
  },
  { title: t.common.state, cell: (lease) => <State word={lease.state} />, sort: (lease) => lease.state },
  { key: "askedFor", title: t.common.askedFor, cell: (lease) => <span class="code">{lease.gpu}</span>, sort: (lease) => lease.gpu, minor: true, spare: true },
  { title: t.leases.whereOrWhyNot, cell: (lease) => <Where lease={lease} />, wide: true },
  { key: "used", title: t.leases.used, cell: (lease) => <Used slices={lease.slices} />, sort: (lease) => observed(lease.slices) ?? -1 },
  { key: "activity", title: t.leases.activity, cell: (lease) => <Doing use={lease.use} />, sort: (lease) => lease.use?.state ?? "", minor: true },
  { title: t.leases.tier, cell: (lease) => tiers(lease.slices), sort: (lease) => tiers(lease.slices), minor: true, spare: true },
  { key: "tenant", title: t.common.tenant, cell: (lease) => <Name text={lease.tenant} fallback={UNKNOWN} />, sort: (lease) => lease.tenant, minor: true },
  {
    title: t.common.for,
    cell: (lease) => span((lease.ended_ms || nowMs.value) - (lease.granted_ms || lease.created_ms)),
    sort: (lease) => -(lease.granted_ms || lease.created_ms),
    right: true,
  },
];

function Where(props: { lease: Lease }): JSX.Element {
  const { lease } = props;
  if (lease.state === "ENDED") return <span class="dim">{inWords(lease.end_reason)}</span>;
  if (lease.state === "QUEUED") return <Why id={lease.lease_id} />;
  const nodes = [...new Set(lease.slices.map((part) => part.node_name))];
  return (
    <span>
      <Name text={nodes.slice(0, 3).join(", ")} />
      {nodes.length > 3 ? t.leases.andMore(nodes.length - 3) : ""}{" "}
      <span class="dim">{[...new Set(lease.slices.map((part) => part.device_model))].join(", ")}</span>
    </span>
  );
}

/** Why it waits: lists don't say it, so it is asked for each that is in sight. */
export function Why(props: { id: string }): JSX.Element {
  const path = `/leases/${encodeURIComponent(props.id)}/explanation`;
  const why = useLoaded((abort) => get<Explanation>(path, undefined, abort), [props.id], { everyMs: 15_000 }).value;
  if (!why) return <span class="dim">…</span>;
  const start = why.expected_start_ms;
  return (
    <span class="two-lines">
      {start ? (
        <strong>
          {why.earliest_start_ms && why.latest_start_ms
            ? t.leases.startsBetween(
                inTime(start, nowMs.value),
                inTime(why.earliest_start_ms, nowMs.value),
                inTime(why.latest_start_ms, nowMs.value),
              )
            : t.leases.starts(inTime(start, nowMs.value))}
        </strong>
      ) : (
        ""
      )}
      <bdi class="dim">{why.missing[0]?.detail || why.summary}</bdi>
    </span>
  );
}

export function observed(slices: readonly Slice[]): number | null {
  const known = slices.filter((part) => part.observed_bytes !== null);
  return known.length ? known.reduce((sum, part) => sum + (part.observed_bytes ?? 0), 0) : null;
}

/** Reserved against observed. */
function Used(props: { slices: readonly Slice[] }): JSX.Element {
  const reserved = props.slices.reduce((sum, part) => sum + part.memory_bytes, 0);
  const used = observed(props.slices);
  if (!reserved) return <span class="dim">{UNKNOWN}</span>;
  if (used === null) return <span class="dim">{t.leases.useUnknown(bytes(reserved))}</span>;
  const milli = Math.round((1000 * used) / reserved);
  return (
    <span class="nowrap">
      <Bar label={t.leases.usedOf(bytes(used), bytes(reserved))} parts={[{ milli, kind: milli > 1000 ? "alert" : "observed" }]} />{" "}
      {bytes(used)} <span class="dim">{t.common.ofWhole(bytes(reserved))}</span>
    </span>
  );
}

const tiers = (slices: readonly Slice[]): string =>
  [...new Set(slices.map((part) => part.tier))].filter((tier) => tier !== "UNSPECIFIED").map(inWords).join(t.list) || UNKNOWN;

export const sharesOf = (lease: Lease): string => share(lease.slices.reduce((sum, part) => sum + part.share_milli, 0));
