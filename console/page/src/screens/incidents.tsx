/** *Health and incidents*: which cards are out, why, how far their repair is, and how each incident went. */
import type { JSX } from "preact";
import { get } from "../api/client";
import { command } from "../api/commands";
import type { Health, Incident } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { operates, status } from "../live/session";
import { Elsewhere, Empty, Fact, Name, State } from "../ui/basics";
import { Link, nodeAddress, param, setParams } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table, type Column } from "../ui/table";
import { ago, count, lower, moment, plural, shortId, span, UNKNOWN } from "../ui/words";
import { DeviceCare } from "./node";

export function Incidents(): JSX.Element {
  const number = Number(param("number")) || 0;
  const loaded = useLoaded((abort) => get<Health>("/health", { incident: number || undefined }, abort), [number], {
    everyMs: 5000,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title={number ? `Incident ${number}` : "Health and incidents"}>
        {number > 0 && (
          <button type="button" onClick={() => setParams({ number: "" })}>
            All incidents
          </button>
        )}
      </Heading>
      <Shown of={loaded} what="asking for the health of the cards">
        {(health) => (number ? <Story health={health} reload={loaded.reload} /> : <All health={health} />)}
      </Shown>
      <Elsewhere
        call={{ method: "GET", path: "/health", query: { incident: number || undefined } }}
        command={command("health", number || undefined)}
      />
    </>
  );
}

function All(props: { health: Health }): JSX.Element {
  const { health } = props;
  const nodes = Object.entries(status.value?.nodes_by_state ?? {});
  return (
    <>
      <section class="card">
        <dl class="facts">
          <Fact name="Open incidents">
            <span class="big-number">{count(health.open_count)}</span>
          </Fact>
          {nodes.map(([state, number]) => (
            <Fact name={`Nodes ${lower(state)}`}>
              <span class="big-number">{count(number)}</span>
            </Fact>
          ))}
          <Fact name="Mean time to repair">{health.mttr_ms === null ? UNKNOWN : span(health.mttr_ms)}</Fact>
          <Fact name="95 % within">{health.mttr_p95_ms === null ? UNKNOWN : span(health.mttr_p95_ms)}</Fact>
          <Fact name="Between two of one card">{health.mtbf_ms === null ? UNKNOWN : span(health.mtbf_ms)}</Fact>
        </dl>
      </section>
      <section class="card">
        <h2>Open</h2>
        <Table
          label="open incidents"
          columns={OPEN}
          rows={health.open}
          keyOf={(each) => each.number}
          empty={<Empty>No card is out of service, and none on probation.</Empty>}
        />
      </section>
      <section class="card">
        <h2>Over</h2>
        <Table
          label="incidents that are over"
          columns={CLOSED}
          rows={health.closed}
          keyOf={(each) => each.number}
          empty="None yet."
        />
      </section>
      {health.causes.length > 0 && (
        <section class="card">
          <h2>By cause</h2>
          <Table
            label="incidents by cause"
            columns={[
              { title: "Cause", cell: (each) => each.cause, sort: (each) => each.cause },
              { title: "Incidents", cell: (each) => count(each.incidents), sort: (each) => each.incidents, right: true },
              { title: "Cards out for", cell: (each) => span(each.out_ms), sort: (each) => each.out_ms, right: true },
            ]}
            rows={health.causes}
            keyOf={(each) => each.cause}
          />
        </section>
      )}
    </>
  );
}

const number: Column<Incident> = {
  title: "Incident",
  cell: (each) => <Link to={`/incidents?number=${each.number}`}>{each.number}</Link>,
  sort: (each) => each.number,
};
const cause: Column<Incident> = { title: "Cause", cell: (each) => each.cause, sort: (each) => each.cause };
const where: Column<Incident> = {
  title: "Node",
  cell: (each) => (
    <Link to={nodeAddress(each.node_id)}>
      <Name text={each.node_name} fallback={each.node_id} />
    </Link>
  ),
  sort: (each) => each.node_name,
};
const cards: Column<Incident> = {
  title: "Cards",
  cell: (each) => `${each.model} × ${each.uuids.length}`,
  sort: (each) => each.uuids.length,
  minor: true,
};

const OPEN: Column<Incident>[] = [
  number,
  { title: "State", cell: (each) => <State word={each.state} />, sort: (each) => each.state },
  cause,
  where,
  cards,
  { title: "Age", cell: (each) => ago(each.opened_ms, nowMs.value), sort: (each) => -each.opened_ms, right: true },
  { title: "Waits for", cell: (each) => <bdi>{each.waits_for || each.reason}</bdi>, minor: true },
];

const CLOSED: Column<Incident>[] = [
  number,
  cause,
  where,
  cards,
  {
    title: "Out for",
    cell: (each) => (each.back_ms ? span(each.back_ms - each.opened_ms) : UNKNOWN),
    sort: (each) => each.back_ms - each.opened_ms,
    right: true,
  },
  { title: "Over", cell: (each) => ago(each.closed_ms, nowMs.value), sort: (each) => -each.closed_ms, right: true },
  { title: "Outcome", cell: (each) => <bdi>{each.outcome}</bdi> },
];

function Story(props: { health: Health; reload: () => void }): JSX.Element {
  const found = [...props.health.open, ...props.health.closed][0];
  if (!found) return <Empty>There is no such incident, or it is over and was forgotten.</Empty>;
  return (
    <section class="card">
      <dl class="facts">
        <Fact name="State">{found.closed_ms ? "over" : <State word={found.state} />}</Fact>
        <Fact name="Cause">{found.cause}</Fact>
        <Fact name="Severity">{lower(found.severity)}</Fact>
        <Fact name="Reaches">{lower(found.scope === "UNSPECIFIED" ? "the device" : found.scope)}</Fact>
        <Fact name="Remedy">{found.remedy === "UNSPECIFIED" ? "none: it waits for good signs" : lower(found.remedy)}</Fact>
        <Fact name="Node">
          <Link to={nodeAddress(found.node_id)}>
            <Name text={found.node_name} fallback={found.node_id} />
          </Link>
        </Fact>
        <Fact name="Opened">
          {moment(found.opened_ms)}
          {found.opened_by ? ` by ${found.opened_by}` : ""}
        </Fact>
        <Fact name="Cards">{plural(found.uuids.length, "card")}</Fact>
      </dl>
      <p>
        <bdi>{found.reason}</bdi>
      </p>
      {found.waits_for && (
        <p class="note warn">
          It waits for <bdi>{found.waits_for}</bdi>.
        </p>
      )}
      <h3>How it went</h3>
      <ol class="story">
        {found.steps.map((step) => (
          <li>
            <time dateTime={new Date(step.at_ms).toISOString()}>{moment(step.at_ms)}</time>
            {lower(step.state === "UNSPECIFIED" ? "well" : step.state)}: <bdi>{step.text}</bdi>
          </li>
        ))}
      </ol>
      {found.uuids.map((uuid) => (
        <div class="row between" key={uuid}>
          <span class="code">{shortId(uuid)}</span>
          {operates.value && !found.closed_ms && (
            <DeviceCare device={{ uuid, standing: found.state }} onDone={props.reload} />
          )}
        </div>
      ))}
    </section>
  );
}
