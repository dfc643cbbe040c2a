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
import { count, moment, share, UNKNOWN } from "../ui/words";

/** Which column the picture shows. */
const VIEWS: [string, string][] = [
  ["", "leased share"],
  ["memory", "leased memory"],
  ["use", "measured use"],
];

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
      <Heading title="Fleet">
        <div class="tabs" role="group" aria-label="as a picture or as a table">
          <button type="button" aria-pressed={param("as") === ""} onClick={() => setParams({ as: "" })}>
            picture
          </button>
          <button type="button" aria-pressed={param("as") === "table"} onClick={() => setParams({ as: "table" })}>
            table
          </button>
        </div>
      </Heading>
      {error !== null && <Problem error={error} />}
      {(!live || awayMs > 0) && atMs > 0 && (
        <p class="stale" role="status">
          As of {moment(atMs)}: {awayMs ? `no coordinator answers since ${moment(awayMs)}` : "the stream broke"}. It goes on
          by itself.
        </p>
      )}
      {!columns.size && !error && (atMs ? <Empty>No node has joined yet.</Empty> : <Waiting what="receiving the fleet" />)}
      {columns.size > 0 && (
        <>
          <Totals columns={columns} version={version} />
          <Filters columns={columns} />
          {param("as") === "table" ? (
            <AsTable columns={columns} version={version} shown={shown} />
          ) : (
            <section class="card">
              <div class="row between">
                <div class="tabs" role="group" aria-label="what the colour says">
                  {VIEWS.map(([name, title]) => (
                    <button type="button" aria-pressed={view === name} onClick={() => setParams({ view: name })}>
                      {title}
                    </button>
                  ))}
                </div>
                <span class="dim">
                  {count(shown.devices)} devices on {count(shown.nodes.length)} nodes
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

function describe(columns: Columns, node: FleetNode, at: number): string {
  const number = node.first + at;
  const use = columns.use[number] ?? UNKNOWN_USE;
  return [
    `${node.name}, device ${at}, ${columns.modelOf(node, at)}: ${STATES[columns.states[number] ?? 0] ?? "unknown"}`,
    `${columns.shares[number] ?? 0} % leased`,
    `memory ${columns.memory[number] ?? 0} % leased`,
    use === UNKNOWN_USE ? "use unknown" : `${use} % busy`,
  ].join("; ");
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
      <dl class="facts">
        <Fact name="Devices">
          <span class="big-number">{count(devices)}</span>
        </Fact>
        <Fact name="Leased">
          <span class="big-number">{devices ? `${Math.round(leased / devices)} %` : UNKNOWN}</span>
        </Fact>
        <Fact name="Wholly free">
          <span class="big-number">{count(free)}</span>
        </Fact>
        <Fact name="Busy, of those measured">
          <span class="big-number">{measured ? `${Math.round(busy / measured)} %` : UNKNOWN}</span>
        </Fact>
        {[...byState.entries()].filter(([state, number]) => state > 1 && number > 0).map(([state, number]) => (
          <Fact name={(STATES[state] ?? "unknown").replace(/^./, (letter) => letter.toUpperCase())}>
            <button type="button" class="plain link big-number" onClick={() => setParams({ state: STATES[state] ?? "" })}>
              {count(number)}
            </button>
          </Fact>
        ))}
        <Fact name="Requests that wait">
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
  const select = (name: string, label: string, options: readonly string[]): JSX.Element => (
    <Field label={label}>
      <select value={param(name)} onChange={(event) => setParams({ [name]: valueOf(event) })}>
        <option value="">all</option>
        {options.map((option) => (
          <option value={option}>{option}</option>
        ))}
      </select>
    </Field>
  );
  return (
    <div class="grid">
      <Field label="Node">
        <input type="search" placeholder="name or id" value={param("q")} onInput={(event) => setParams({ q: valueOf(event) })} />
      </Field>
      {select("model", "Model", models)}
      {select("pool", "Pool", pools)}
      {select("state", "State", STATES.slice(1))}
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
      title: "Node",
      cell: ({ node }) => (
        <Link to={nodeAddress(node.node_id)}>
          <Name text={node.name} />
        </Link>
      ),
      sort: ({ node }) => node.name,
    },
    { title: "Device", cell: ({ at }) => at, sort: ({ at }) => at, right: true },
    { title: "Model", cell: ({ node, at }) => columns.modelOf(node, at), sort: ({ node, at }) => columns.modelOf(node, at) },
    { title: "State", cell: (row) => STATES[columns.states[number(row)] ?? 0], sort: (row) => columns.states[number(row)] ?? 0 },
    {
      title: "Leased",
      cell: (row) => share(10 * (columns.shares[number(row)] ?? 0)),
      sort: (row) => columns.shares[number(row)] ?? 0,
      right: true,
    },
    {
      title: "Memory leased",
      cell: (row) => `${columns.memory[number(row)] ?? 0} %`,
      sort: (row) => columns.memory[number(row)] ?? 0,
      right: true,
    },
    {
      title: "Busy",
      cell: (row) => {
        const use = columns.use[number(row)] ?? UNKNOWN_USE;
        return use === UNKNOWN_USE ? UNKNOWN : `${use} %`;
      },
      sort: (row) => ((columns.use[number(row)] ?? UNKNOWN_USE) + 1) % 256,
      right: true,
    },
    { title: "Pool", cell: ({ node }) => <Name text={node.pool} />, sort: ({ node }) => node.pool, minor: true },
  ];
  return (
    <>
      <p class="dim" role="status">
        {count(made.value.length)} devices
      </p>
      <Table
        label="devices"
        columns={table}
        rows={made.value}
        keyOf={(row) => row.node.first + row.at}
        empty="No device is like this."
      />
    </>
  );
}
