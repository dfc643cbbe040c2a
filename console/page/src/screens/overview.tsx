/** *Overview*: how full the pool is, what is mine, what waits and why, and what is wrong. */
import type { ComponentChildren, JSX } from "preact";
import { get } from "../api/client";
import { command } from "../api/commands";
import { compose, parse } from "../api/grammar";
import type { Health, Lease, Page, Status, Tenancy } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { identity, status } from "../live/session";
import { Bar, Elsewhere, Empty, Name, State, Waiting } from "../ui/basics";
import { go, Link, nodeAddress } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Spark, useHistory } from "../ui/spark";
import { Table, type Column } from "../ui/table";
import { ago, count, inWords, percent, share } from "../ui/words";
import { Day } from "./day";
import { Free } from "./free";
import { allLeases, COLUMNS, Why } from "./leases";
import { t } from "../texts";

const FRESH_MS = 10_000;
const SHOWN_MAX = 6;

export function Overview(): JSX.Element {
  const pool = status.value;
  const health = useLoaded((abort) => get<Health>("/health", undefined, abort), [], {
    everyMs: FRESH_MS,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title={t.common.overview}>
        <Link to="/ask" class="button primary">
          {t.overview.askForGpus}
        </Link>
      </Heading>
      {pool ? <Tiles pool={pool} openIncidents={health.value?.open_count} /> : <Waiting what={t.overview.askingPool} />}
      <div class="columns">
        <Use pool={pool} />
        <div class="stack">
          <Wrong health={health.value} />
          <Free pool={pool} onChoose={(model) => go(`/ask?gpu=${encodeURIComponent(compose({ ...parse("0.25"), models: model }))}`)} />
        </div>
      </div>
      <Mine />
      <Waits />
      <Elsewhere call={{ method: "GET", path: "/status" }} command={command("status")} />
    </>
  );
}

const sum = (pool: Status, key: "capacity_share_milli" | "leased_share_milli"): number =>
  pool.pools.reduce((total, row) => total + row[key], 0);

function Tiles(props: { pool: Status; openIncidents: number | undefined }): JSX.Element {
  const { pool, openIncidents } = props;
  const [whole, leased] = [sum(pool, "capacity_share_milli"), sum(pool, "leased_share_milli")];
  const nodes = Object.entries(pool.nodes_by_state);
  const ready = pool.nodes_by_state.READY ?? 0;
  const others = nodes.filter(([state]) => state !== "READY").map(([state, number]) => t.overview.inState(count(number), inWords(state)));
  return (
    <section class="tiles" aria-label={t.overview.poolInNumbers}>
      <Tile to="/fleet" name={t.overview.gpusInUse} number={percent(leased, whole)}>
        <Bar
          label={t.overview.gpusAreInUse(share(leased), share(whole))}
          parts={[{ milli: whole ? Math.round((1000 * leased) / whole) : 0, kind: "share" }]}
          wide
        />
        {t.common.partOf(share(leased), share(whole))}
      </Tile>
      <Tile to="/ask" name={t.common.free} number={share(whole - leased)}>
        {whole ? t.overview.gpusWholeAndInParts : t.overview.noNodeHasJoinedYet}
      </Tile>
      <Tile to="/leases?view=all" name={t.overview.leases} number={count(pool.leases - pool.queued)}>
        {t.overview.holdSomething}
      </Tile>
      <Tile to="/queues" name={t.overview.waiting} number={count(pool.queued)}>
        {t.overview.requests(pool.queued)}
      </Tile>
      <Tile to="/fleet" name={t.overview.nodesReady} number={count(ready)}>
        {others.join(t.list) || t.overview.andNoOthers}
      </Tile>
      <Tile to="/incidents" name={t.common.openIncidents} number={openIncidents === undefined ? "…" : count(openIncidents)}>
        {openIncidents ? t.overview.cardsThatAreOutOr : t.overview.allCardsAreWell}
      </Tile>
    </section>
  );
}

function Tile(props: { to: string; name: string; number: string; children: ComponentChildren }): JSX.Element {
  return (
    <Link to={props.to} class="card tile">
      <span class="dim">{props.name}</span>
      <span class="big-number">{props.number}</span>
      <span class="dim small-text">{props.children}</span>
    </Link>
  );
}

/** As this page saw it, and in the last day as the pool remembers it. */
function Use(props: { pool: Status | undefined }): JSX.Element {
  const { pool } = props;
  const leased = useHistory(pool ? sum(pool, "leased_share_milli") : null, "pool");
  const whole = pool ? sum(pool, "capacity_share_milli") : 0;
  return (
    <section class="card">
      <h2>{t.overview.gpusInUse}</h2>
      <Spark values={leased} limit={whole} label={t.overview.inUseLately(share(whole))} />
      <p class="dim">{t.overview.whilePageIsOpen(share(whole))}</p>
      <Day series="" limit={whole} />
    </section>
  );
}

function Wrong(props: { health: Health | undefined }): JSX.Element {
  const { health } = props;
  const tenancy = useLoaded((abort) => get<Tenancy>("/tenancy", undefined, abort), [], { everyMs: FRESH_MS }).value;
  const alerts = tenancy?.alerts ?? [];
  const slices = health?.unknown_slices.length ?? 0;
  const pool = status.value;
  const silent = Object.entries(pool?.nodes_by_state ?? {}).filter(([state]) => ["SUSPECT", "UNREACHABLE", "LOST"].includes(state));
  const nothing = health && !health.open.length && !alerts.length && !slices && !silent.length;
  return (
    <section class="card">
      <h2>{t.overview.whatIsWrong}</h2>
      {!health && <Waiting what={t.common.askingForHealthOfCards} />}
      {nothing && <p class="state good">{t.overview.nothingThatPoolKnowsOf}</p>}
      <ul class="plain">
        {health?.open.slice(0, SHOWN_MAX).map((incident) => (
          <li key={incident.number}>
            <State word={incident.state} />{" "}
            {t.overview.causeOn(
              <Link to={`/incidents?number=${incident.number}`}>{inWords(incident.cause)}</Link>,
              <Link to={nodeAddress(incident.node_id)}>
                <Name text={incident.node_name} />
              </Link>,
            )}{" "}
            <span class="dim">
              {incident.reason && <>· <bdi>{incident.reason}</bdi> </>}· {ago(incident.opened_ms, nowMs.value)}
            </span>
          </li>
        ))}
        {silent.map(([state, number]) => (
          <li key={state}>
            <State word={state} /> <Link to="/fleet?as=table">{t.counts.nodes(number)}</Link>
          </li>
        ))}
        {slices > 0 && (
          <li>
            {t.overview.slicesUnknown(<Link to="/incidents">{t.counts.slices(slices)}</Link>)}
          </li>
        )}
        {alerts.slice(0, SHOWN_MAX).map((alert) => (
          <li key={alert}>
            <span aria-hidden="true">▲</span> <bdi>{alert}</bdi>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Mine(): JSX.Element {
  const me = identity.value?.principal ?? "";
  const loaded = useLoaded((abort) => allLeases({}, abort, 1), [], {
    everyMs: FRESH_MS,
    on: (change) => change.kind === "lease" && change.lease.asked_by === me,
  });
  return (
    <section class="card">
      <h2>{t.common.myLeases}</h2>
      <Shown of={loaded} what={t.common.listingLeases}>
        {({ leases }) => {
          const mine = leases.filter((lease) => lease.asked_by === me).reverse();
          return (
            <>
              <Table
                label={t.overview.mineLabel}
                columns={COLUMNS}
                rows={mine.slice(0, SHOWN_MAX)}
                keyOf={(lease) => lease.lease_id}
                empty={
                  <Empty>
                    {t.overview.youHoldNothing(<Link to="/ask">{t.common.wouldItRunNow}</Link>)}
                  </Empty>
                }
              />
              {mine.length > SHOWN_MAX && <Link to="/leases">{t.overview.all(count(mine.length))}</Link>}
            </>
          );
        }}
      </Shown>
    </section>
  );
}

/** Of others, too, as far as they may be seen: the first in line, each with what is in its way. */
function Waits(): JSX.Element | null {
  const loaded = useLoaded(
    (abort) => get<Page<Lease>>("/leases", { state: ["QUEUED"], page_size: SHOWN_MAX }, abort),
    [],
    { everyMs: FRESH_MS, on: (change) => change.kind === "lease" },
  );
  if (!loaded.value?.items.length) return null;
  return (
    <section class="card">
      <h2>{t.overview.waitingAndWhy}</h2>
      <Table
        label={t.overview.waitingRequests}
        columns={WAITING}
        rows={loaded.value.items}
        keyOf={(lease) => lease.lease_id}
      />
      {loaded.value.next_token && <Link to="/queues">{t.overview.allThatWaits}</Link>}
    </section>
  );
}

const WAITING: Column<Lease>[] = [
  ...COLUMNS.filter((each) => ["lease", "askedFor", "tenant"].includes(each.key ?? "")),
  { title: t.common.why, cell: (lease) => <Why id={lease.lease_id} />, wide: true },
  { title: t.common.since, cell: (lease) => ago(lease.created_ms, nowMs.value), right: true },
];
