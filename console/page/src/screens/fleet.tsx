/** *Fleet*: every device of the pool at one glance, live; and the same as a table. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { command } from "../api/commands";
import { STATES, UNKNOWN_USE, type Columns, type FleetNode } from "../live/fleet";
import { useFleet } from "../live/fleet_stream";
import { status } from "../live/session";
import { Elsewhere, Empty, Fact, Field, Name, Problem, valueOf, Waiting } from "../ui/basics";
import { FleetMap, type Shown } from "../ui/fleet_map";
import { go, Link, nodeAddress, param, setParams } from "../ui/router";
import { Heading } from "../ui/screen";
import { Table, type Column } from "../ui/table";
import { count, inWords, moment, share, UNKNOWN } from "../ui/words";
import { t } from "../texts";

/** Which column the picture shows. */
const VIEWS = Object.entries(t.fleet.views);

export function Fleet(): JSX.Element {
  const { columns, version, error, atMs, awayMs, live } = useFleet();
  const view = param("view");
  const filters = { pool: param("pool"), model: param("model"), state: param("state"), words: param("q").toLowerCase() };
  const shown = useMemo(
    () => chosen(columns, filters),
    // A state that is filtered by changes with the devices; else only the layout counts.
    [columns, columns.layout, filters.state ? version : 0, JSON.stringify(filters)],
  );
  return (
    <>
      <Heading title={t.common.fleet}>
        <div class="tabs" role="group" aria-label={t.fleet.asPictureOrAsTable}>
          <button type="button" aria-pressed={param("as") === ""} onClick={() => setParams({ as: "" })}>
            {t.fleet.picture}
          </button>
          <button type="button" aria-pressed={param("as") === "table"} onClick={() => setParams({ as: "table" })}>
            {t.fleet.table}
          </button>
        </div>
      </Heading>
      {error !== null && <Problem error={error} />}
      {(!live || awayMs > 0) && atMs > 0 && (
        <p class="stale" role="status">
          {awayMs ? t.fleet.noCoordinator(moment(atMs), moment(awayMs)) : t.fleet.streamBroke(moment(atMs))}
        </p>
      )}
      {!columns.size && !error && (atMs ? <Empty>{t.fleet.noNodeHasJoinedYet}</Empty> : <Waiting what={t.fleet.receivingFleet} />)}
      {columns.size > 0 && (
        <>
          <Totals columns={columns} version={version} />
          <Filters columns={columns} />
          {param("as") === "table" ? (
            <AsTable columns={columns} version={version} shown={shown} />
          ) : (
            <section class="card">
              <div class="row between">
                <div class="tabs" role="group" aria-label={t.fleet.whatColourSays}>
                  {VIEWS.map(([name, title]) => (
                    <button type="button" aria-pressed={view === name} onClick={() => setParams({ view: name })}>
                      {title}
                    </button>
                  ))}
                </div>
                <span class="dim">
                  {t.fleet.devicesOnNodes(t.counts.devices(shown.devices), t.counts.nodes(shown.nodes.length))}
                </span>
              </div>
              <FleetMap
                columns={columns}
                version={version}
                shown={shown}
                column={view === "memory" ? columns.memory : view === "use" ? columns.use : columns.shares}
                onOpen={(node) => go(nodeAddress(node.node_id))}
                describe={(node, at) => describe(columns, node, at)}
              />
            </section>
          )}
        </>
      )}
      <Elsewhere call={{ method: "GET", path: "/devices", query: { page_size: 1000 } }} command={command("nodes")} />
    </>
  );
}

interface Wanted {
  pool: string;
  model: string;
  state: string;
  words: string;
}

function chosen(columns: Columns, wanted: Wanted): Shown {
  const state = STATES.indexOf(wanted.state as (typeof STATES)[number]);
  const nodes: FleetNode[] = [];
  let devices = 0;
  for (const node of columns.nodes.values()) {
    if (wanted.pool && node.pool !== wanted.pool) continue;
    if (wanted.model && !node.models.includes(wanted.model)) continue;
    if (wanted.words && !`${node.name} ${node.node_id}`.toLowerCase().includes(wanted.words)) continue;
    let here = 0;
    let fits = state < 0;
    for (let at = node.first; at < node.first + node.devices; at++) {
      if (columns.states[at] !== 0) here++;
      fits ||= columns.states[at] === state;
    }
    if (!here || !fits) continue;
    nodes.push(node);
    devices += here;
  }
  // Nodes of one pool and model stand together, in the order of their names: node-9 before node-10.
  const keys = new Map(nodes.map((node) => [node, keyOf(node)]));
  const key = (node: FleetNode): string => keys.get(node) ?? "";
  nodes.sort((a, b) => (key(a) < key(b) ? -1 : 1));
  return { nodes, devices };
}

const keyOf = (node: FleetNode): string =>
  `${node.pool}\u0000${node.models[0] ?? ""}\u0000${node.name.replace(/\d+/g, (digits) => digits.padStart(10, "0"))}`;

const stateOf = (state: number | undefined): string => inWords(STATES[state ?? 0] ?? t.fleet.unknown);

function describe(columns: Columns, node: FleetNode, at: number): string {
  const number = node.first + at;
  const use = columns.use[number] ?? UNKNOWN_USE;
  return [
    t.fleet.deviceIs(node.name, at, columns.modelOf(node, at), stateOf(columns.states[number])),
    t.fleet.percentLeased(columns.shares[number] ?? 0),
    t.fleet.memoryPercentLeased(columns.memory[number] ?? 0),
    use === UNKNOWN_USE ? t.fleet.useUnknown : t.fleet.percentBusy(use),
  ].join(t.list);
}

function Totals(props: { columns: Columns; version: number }): JSX.Element {
  const { columns } = props;
  const byState = new Uint32Array(256);
  let leased = 0;
  let free = 0;
  let busy = 0;
  let measured = 0;
  for (let at = 0; at < columns.size; at++) {
    const state = columns.states[at] ?? 0;
    if (!state) continue;
    byState[state] = (byState[state] ?? 0) + 1;
    leased += columns.shares[at] ?? 0;
    if (state === 1 && !columns.shares[at]) free++;
    const use = columns.use[at] ?? UNKNOWN_USE;
    if (use !== UNKNOWN_USE) {
      busy += use;
      measured++;
    }
  }
  const devices = byState.reduce((sum, number) => sum + number, 0);
  return (
    <section class="card">
      <dl class="tiles">
        <Fact name={t.common.devices}>
          <span class="big-number">{count(devices)}</span>
        </Fact>
        <Fact name={t.fleet.leased}>
          <span class="big-number">{devices ? `${Math.round(leased / devices)} %` : UNKNOWN}</span>
        </Fact>
        <Fact name={t.fleet.whollyFree}>
          <span class="big-number">{count(free)}</span>
        </Fact>
        <Fact name={t.fleet.busyOfThoseMeasured}>
          <span class="big-number">{measured ? `${Math.round(busy / measured)} %` : UNKNOWN}</span>
        </Fact>
        {[...byState.entries()].filter(([state, number]) => state > 1 && number > 0).map(([state, number]) => (
          <Fact name={stateOf(state).replace(/^./, (letter) => letter.toUpperCase())}>
            <button type="button" class="plain link big-number" onClick={() => setParams({ state: STATES[state] ?? "" })}>
              {count(number)}
            </button>
          </Fact>
        ))}
        <Fact name={t.fleet.requestsThatWait}>
          <span class="big-number">{status.value ? count(status.value.queued) : UNKNOWN}</span>
        </Fact>
      </dl>
    </section>
  );
}

function Filters(props: { columns: Columns }): JSX.Element {
  const { pools, models } = useMemo(() => {
    const nodes = [...props.columns.nodes.values()];
    return {
      pools: [...new Set(nodes.map((node) => node.pool))].sort(),
      models: [...new Set(nodes.flatMap((node) => node.models))].sort(),
    };
  }, [props.columns, props.columns.layout]);
  const select = (name: string, label: string, options: readonly string[], titleOf = (option: string) => option): JSX.Element => (
    <Field label={label}>
      <select value={param(name)} onChange={(event) => setParams({ [name]: valueOf(event) })}>
        <option value="">{t.fleet.all}</option>
        {options.map((option) => (
          <option value={option}>{titleOf(option)}</option>
        ))}
      </select>
    </Field>
  );
  return (
    <div class="grid">
      <Field label={t.common.node}>
        <input type="search" placeholder={t.fleet.nameOrId} value={param("q")} onInput={(event) => setParams({ q: valueOf(event) })} />
      </Field>
      {select("model", t.common.model, models)}
      {select("pool", t.common.pool, pools)}
      {select("state", t.common.state, STATES.slice(1), inWords)}
    </div>
  );
}

interface Row {
  node: FleetNode;
  at: number;
}

function AsTable(props: { columns: Columns; version: number; shown: Shown }): JSX.Element {
  const { columns, shown } = props;
  const state = STATES.indexOf(param("state") as (typeof STATES)[number]);
  const made = useSignal<Row[]>([]);
  useMemo(() => {
    const rows: Row[] = [];
    for (const node of shown.nodes) {
      for (let at = 0; at < node.devices; at++) {
        const now = columns.states[node.first + at];
        if (now && (state < 0 || now === state)) rows.push({ node, at });
      }
    }
    made.value = rows;
  }, [shown, state]);
  const number = (row: Row): number => row.node.first + row.at;
  const table: Column<Row>[] = [
    {
      title: t.common.node,
      cell: ({ node }) => (
        <Link to={nodeAddress(node.node_id)}>
          <Name text={node.name} />
        </Link>
      ),
      sort: ({ node }) => node.name,
    },
    { title: t.common.device, cell: ({ at }) => at, sort: ({ at }) => at, right: true },
    { title: t.common.model, cell: ({ node, at }) => columns.modelOf(node, at), sort: ({ node, at }) => columns.modelOf(node, at) },
    { title: t.common.state, cell: (row) => stateOf(columns.states[number(row)]), sort: (row) => columns.states[number(row)] ?? 0 },
    {
      title: t.fleet.leased,
      cell: (row) => share(10 * (columns.shares[number(row)] ?? 0)),
      sort: (row) => columns.shares[number(row)] ?? 0,
      right: true,
    },
    {
      title: t.fleet.memoryLeased,
      cell: (row) => `${columns.memory[number(row)] ?? 0} %`,
      sort: (row) => columns.memory[number(row)] ?? 0,
      right: true,
    },
    {
      title: t.common.busy,
      cell: (row) => {
        const use = columns.use[number(row)] ?? UNKNOWN_USE;
        return use === UNKNOWN_USE ? UNKNOWN : `${use} %`;
      },
      sort: (row) => ((columns.use[number(row)] ?? UNKNOWN_USE) + 1) % 256,
      right: true,
    },
    { title: t.common.pool, cell: ({ node }) => <Name text={node.pool} />, sort: ({ node }) => node.pool, minor: true },
  ];
  return (
    <>
      <p class="dim" role="status">
        {t.counts.devices(made.value.length)}
      </p>
      <Table
        label={t.fleet.devices}
        columns={table}
        rows={made.value}
        keyOf={(row) => row.node.first + row.at}
        empty={t.fleet.noDeviceIsLikeThis}
      />
    </>
  );
}
