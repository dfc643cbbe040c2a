/** *Overview*: how full the pool is, what is mine, what waits and why, and what is wrong. */
import type { ComponentChildren, JSX } from "preact";
import { get } from "../api/client";
import { command } from "../api/commands";
import { compose, parse } from "../api/grammar";
import type { Forecast, Health, Lease, Page, Status, Tenancy } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { identity, status } from "../live/session";
import { Bar, Elsewhere, Empty, Name, State, Waiting } from "../ui/basics";
import { go, Link, nodeAddress } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Spark, useHistory } from "../ui/spark";
import { Table, type Column } from "../ui/table";
import { ago, count, lower, percent, plural, share } from "../ui/words";
import { Free } from "./free";
import { allLeases, COLUMNS, Why } from "./leases";

const FRESH_MS = 10_000;
const FORECAST_MS = 300_000;
const SHOWN_MAX = 6;
const HOURS = 24;

export function Overview(): JSX.Element {
  const pool = status.value;
  const health = useLoaded((abort) => get<Health>("/health", undefined, abort), [], {
    everyMs: FRESH_MS,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title="Overview">
        <Link to="/ask" class="button primary">
          Ask for GPUs
        </Link>
      </Heading>
      {pool ? <Tiles pool={pool} openIncidents={health.value?.open_count} /> : <Waiting what="asking the pool" />}
      <div class="columns">
        <Use pool={pool} />
        <Wrong health={health.value} />
      </div>
      <Mine />
      <Waits />
      <Free pool={pool} onChoose={(model) => go(`/ask?gpu=${encodeURIComponent(compose({ ...parse("0.25"), models: model }))}`)} />
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
  const others = nodes.filter(([state]) => state !== "READY").map(([state, number]) => `${count(number)} ${lower(state)}`);
  return (
    <section class="tiles" aria-label="the pool in numbers">
      <Tile to="/fleet" name="GPUs in use" number={percent(leased, whole)}>
        <Bar
          label={`${share(leased)} of ${share(whole)} GPUs are in use`}
          parts={[{ milli: whole ? Math.round((1000 * leased) / whole) : 0, kind: "share" }]}
          wide
        />
        {share(leased)} of {share(whole)}
      </Tile>
      <Tile to="/ask" name="Free" number={share(whole - leased)}>
        {whole ? "GPUs, whole and in parts" : "no node has joined yet"}
      </Tile>
      <Tile to="/leases?view=all" name="Leases" number={count(pool.leases - pool.queued)}>
        hold something
      </Tile>
      <Tile to="/queues" name="Waiting" number={count(pool.queued)}>
        {pool.queued === 1 ? "request" : "requests"}
      </Tile>
      <Tile to="/fleet" name="Nodes ready" number={count(ready)}>
        {others.join(", ") || "and no others"}
      </Tile>
      <Tile to="/incidents" name="Open incidents" number={openIncidents === undefined ? "…" : count(openIncidents)}>
        {openIncidents ? "cards that are out or doubtful" : "all cards are well"}
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

/** In the last minutes as this page saw it, and in the last day as the pool remembers it. */
function Use(props: { pool: Status | undefined }): JSX.Element {
  const { pool } = props;
  const leased = useHistory(pool ? sum(pool, "leased_share_milli") : null, "pool");
  const whole = pool ? sum(pool, "capacity_share_milli") : 0;
  const day = useLoaded((abort) => get<Forecast>("/forecast?series=", undefined, abort), [], { everyMs: FORECAST_MS });
  const past = (day.value?.series[0]?.hours ?? []).filter((hour) => hour.past).slice(-HOURS);
  const demand = past.map((hour) => hour.milli);
  const known = demand.filter((milli) => milli !== null);
  return (
    <section class="card">
      <h2>GPUs in use</h2>
      <Spark values={leased} limit={whole} label={`In use during the last minutes, of ${share(whole)} GPUs`} />
      <p class="dim">While this page is open, up to five minutes. The line is what there is: {share(whole)}.</p>
      <h3>Held or waited for, last {HOURS} hours</h3>
      {known.length > 1 ? (
        <>
          <Spark values={demand} kept={HOURS} limit={whole} label={`Demand by the hour, of ${share(whole)} GPUs`} />
          <p class="dim">
            From {share(Math.min(...known))} to {share(Math.max(...known))} GPUs.{" "}
            <Link to="/calendar">What is expected</Link>
          </p>
        </>
      ) : (
        <p class="dim">Not known yet: the pool adds up each hour once it is over.</p>
      )}
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
      <h2>What is wrong</h2>
      {!health && <Waiting what="asking for the health of the cards" />}
      {nothing && <p class="state good">✓ Nothing that the pool knows of</p>}
      <ul class="plain">
        {health?.open.slice(0, SHOWN_MAX).map((incident) => (
          <li key={incident.number}>
            <State word={incident.state} /> <Link to={`/incidents?number=${incident.number}`}>{lower(incident.cause)}</Link> on{" "}
            <Link to={nodeAddress(incident.node_id)}>
              <Name text={incident.node_name} />
            </Link>{" "}
            <span class="dim">{ago(incident.opened_ms, nowMs.value)}</span>
          </li>
        ))}
        {silent.map(([state, number]) => (
          <li key={state}>
            <State word={state} /> <Link to="/fleet?as=table">{plural(number, "node")}</Link>
          </li>
        ))}
        {slices > 0 && (
          <li>
            <Link to="/incidents">{plural(slices, "slice")}</Link> that the books do not know
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
      <h2>My leases</h2>
      <Shown of={loaded} what="listing leases">
        {({ leases }) => {
          const mine = leases.filter((lease) => lease.asked_by === me).reverse();
          return (
            <>
              <Table
                label="my leases"
                columns={COLUMNS}
                rows={mine.slice(0, SHOWN_MAX)}
                keyOf={(lease) => lease.lease_id}
                empty={
                  <Empty>
                    You hold nothing, and wait for nothing. <Link to="/ask">Would it run now?</Link>
                  </Empty>
                }
              />
              {mine.length > SHOWN_MAX && <Link to="/leases">All {count(mine.length)}</Link>}
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
      <h2>Waiting, and why</h2>
      <Table
        label="waiting requests"
        columns={WAITING}
        rows={loaded.value.items}
        keyOf={(lease) => lease.lease_id}
      />
      {loaded.value.next_token && <Link to="/queues">All that waits</Link>}
    </section>
  );
}

const WAITING: Column<Lease>[] = [
  ...COLUMNS.filter((each) => each.title === "Lease" || each.title === "Asked for" || each.title === "Tenant"),
  { title: "Why", cell: (lease) => <Why id={lease.lease_id} />, wide: true },
  { title: "Since", cell: (lease) => ago(lease.created_ms, nowMs.value), right: true },
];
