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
import { ago, count, inWords, moment, shortId, span, UNKNOWN } from "../ui/words";
import { DeviceCare } from "./node";
import { t } from "../texts";

export function Incidents(): JSX.Element {
  const number = Number(param("number")) || 0;
  const loaded = useLoaded((abort) => get<Health>("/health", { incident: number || undefined }, abort), [number], {
    everyMs: 5000,
    on: (change) => change.kind === "node",
  });
  return (
    <>
      <Heading title={number ? t.incidents.number(number) : t.common.healthAndIncidents}>
        {number > 0 && (
          <button type="button" onClick={() => setParams({ number: "" })}>
            {t.incidents.allIncidents}
          </button>
        )}
      </Heading>
      <Shown of={loaded} what={t.common.askingForHealthOfCards}>
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
          <Fact name={t.common.openIncidents}>
            <span class="big-number">{count(health.open_count)}</span>
          </Fact>
          {nodes.map(([state, number]) => (
            <Fact name={t.incidents.nodesIn(inWords(state))}>
              <span class="big-number">{count(number)}</span>
            </Fact>
          ))}
          <Fact name={t.incidents.meanTimeToRepair}>{health.mttr_ms === null ? UNKNOWN : span(health.mttr_ms)}</Fact>
          <Fact name={t.incidents.n95Within}>{health.mttr_p95_ms === null ? UNKNOWN : span(health.mttr_p95_ms)}</Fact>
          <Fact name={t.incidents.betweenTwoOfOneCard}>{health.mtbf_ms === null ? UNKNOWN : span(health.mtbf_ms)}</Fact>
        </dl>
      </section>
      <section class="card">
        <h2>{t.incidents.open}</h2>
        <Table
          label={t.incidents.openLabel}
          columns={OPEN}
          rows={health.open}
          keyOf={(each) => each.number}
          empty={<Empty>{t.incidents.noCardIsOutOf}</Empty>}
        />
      </section>
      <section class="card">
        <h2>{t.incidents.resolved}</h2>
        <Table
          label={t.incidents.resolvedLabel}
          columns={CLOSED}
          rows={health.closed}
          keyOf={(each) => each.number}
          empty={t.incidents.noneYet}
        />
      </section>
      {health.causes.length > 0 && (
        <section class="card">
          <h2>{t.incidents.byCause}</h2>
          <Table
            label={t.incidents.incidentsByCause}
            columns={[
              { title: t.incidents.cause, cell: (each) => each.cause, sort: (each) => each.cause },
              { title: t.incidents.incidents, cell: (each) => count(each.incidents), sort: (each) => each.incidents, right: true },
              { title: t.incidents.cardsOutFor, cell: (each) => span(each.out_ms), sort: (each) => each.out_ms, right: true },
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
  title: t.incidents.incident,
  cell: (each) => <Link to={`/incidents?number=${each.number}`}>{each.number}</Link>,
  sort: (each) => each.number,
};
const cause: Column<Incident> = { title: t.incidents.cause, cell: (each) => each.cause, sort: (each) => each.cause };
const where: Column<Incident> = {
  title: t.common.node,
  cell: (each) => (
    <Link to={nodeAddress(each.node_id)}>
      <Name text={each.node_name} fallback={each.node_id} />
    </Link>
  ),
  sort: (each) => each.node_name,
};
const cards: Column<Incident> = {
  title: t.incidents.cards,
  cell: (each) => `${each.model} × ${each.uuids.length}`,
  sort: (each) => each.uuids.length,
  minor: true,
};

const OPEN: Column<Incident>[] = [
  number,
  { title: t.common.state, cell: (each) => <State word={each.state} />, sort: (each) => each.state },
  cause,
  where,
  cards,
  { title: t.incidents.age, cell: (each) => ago(each.opened_ms, nowMs.value), sort: (each) => -each.opened_ms, right: true },
  { title: t.incidents.waitsFor, cell: (each) => <bdi>{each.waits_for || each.reason}</bdi>, minor: true },
];

const CLOSED: Column<Incident>[] = [
  number,
  cause,
  where,
  cards,
  {
    title: t.incidents.outForTitle,
    cell: (each) => (each.back_ms ? span(each.back_ms - each.opened_ms) : UNKNOWN),
    sort: (each) => each.back_ms - each.opened_ms,
    right: true,
  },
  { title: t.incidents.resolved, cell: (each) => ago(each.closed_ms, nowMs.value), sort: (each) => -each.closed_ms, right: true },
  { title: t.incidents.outcome, cell: (each) => <bdi>{each.outcome}</bdi> },
];

function Story(props: { health: Health; reload: () => void }): JSX.Element {
  const found = [...props.health.open, ...props.health.closed][0];
  if (!found) return <Empty>{t.incidents.thereIsNoSuchIncident}</Empty>;
  return (
    <section class="card">
      <dl class="facts">
        <Fact name={t.common.state}>{found.closed_ms ? t.incidents.isResolved : <State word={found.state} />}</Fact>
        <Fact name={t.incidents.cause}>{found.cause}</Fact>
        <Fact name={t.incidents.severity}>{inWords(found.severity)}</Fact>
        <Fact name={t.incidents.reaches}>{found.scope === "UNSPECIFIED" ? t.incidents.theDevice : inWords(found.scope)}</Fact>
        <Fact name={t.incidents.remedy}>{found.remedy === "UNSPECIFIED" ? t.incidents.noneItWaitsForGood : inWords(found.remedy)}</Fact>
        <Fact name={t.common.node}>
          <Link to={nodeAddress(found.node_id)}>
            <Name text={found.node_name} fallback={found.node_id} />
          </Link>
        </Fact>
        <Fact name={t.incidents.opened}>
          {found.opened_by ? t.incidents.openedBy(moment(found.opened_ms), found.opened_by) : moment(found.opened_ms)}
        </Fact>
        <Fact name={t.incidents.cards}>{t.counts.cards(found.uuids.length)}</Fact>
      </dl>
      <p>
        <bdi>{found.reason}</bdi>
      </p>
      {found.waits_for && (
        <p class="note warn">
          {t.incidents.itWaitsFor(<bdi>{found.waits_for}</bdi>)}
        </p>
      )}
      <h3>{t.incidents.howItWent}</h3>
      <ol class="story">
        {found.steps.map((step) => (
          <li>
            <time dateTime={new Date(step.at_ms).toISOString()}>{moment(step.at_ms)}</time>
            {step.state === "UNSPECIFIED" ? t.incidents.well : inWords(step.state)}: <bdi>{step.text}</bdi>
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
