/** One node: its cards, how they are cut, who holds which part, how warm they are, and what a drain would end. */
import type { JSX } from "preact";
import { get } from "../api/client";
import { command } from "../api/commands";
import type { Device, GpuNode, Lease, Page } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { operates } from "../live/session";
import { Action } from "../ui/action";
import { Bar, Elsewhere, Fact, Name, State } from "../ui/basics";
import { leaseAddress, Link, param } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { ago, bytes, inTime, lower, moment, plural, share, shortId, UNKNOWN, vendorTitle } from "../ui/words";

const FRESH_MS = 4000;

interface Seen {
  node: GpuNode;
  leases: Lease[];
}

export function Node(): JSX.Element {
  const id = param("id");
  const loaded = useLoaded<Seen>(
    async (abort) => {
      const node = await get<GpuNode>(`/nodes/${encodeURIComponent(id)}`, undefined, abort);
      const leases = await get<Page<Lease>>("/leases", { node_id: node.node_id, page_size: 1000 }, abort);
      return { node, leases: leases.items };
    },
    [id],
    {
      everyMs: FRESH_MS,
      on: (change) =>
        (change.kind === "node" && (change.node.node_id === id || change.node.name === id)) ||
        (change.kind === "lease" && change.lease.slices.some((part) => part.node_id === id)),
    },
  );
  const seen = loaded.value;
  return (
    <>
      <Heading title={seen ? <Name text={seen.node.name || id} /> : "Node"}>
        {seen && operates.value && <Care seen={seen} onDone={loaded.reload} />}
      </Heading>
      <Shown of={loaded} what="reading the node">
        {(value) => <Shows seen={value} reload={loaded.reload} />}
      </Shown>
    </>
  );
}

function Care(props: { seen: Seen; onDone: () => void }): JSX.Element {
  const { node, leases } = props.seen;
  const path = `/nodes/${encodeURIComponent(node.node_id)}`;
  const closed = node.cordoned || node.draining;
  return (
    <>
      {closed ? (
        <Action
          label="Open again"
          title="Place leases here again?"
          call={() => ({ method: "POST", path: `${path}:uncordon` })}
          command={() => command("uncordon", node.name)}
          onDone={props.onDone}
        />
      ) : (
        <Action
          label="Cordon"
          title="Place nothing new here?"
          consequences={<p>What runs stays.</p>}
          reason
          call={(reason) => ({ method: "POST", path: `${path}:cordon`, body: { reason } })}
          command={(reason) => command("cordon", node.name, reason && "--reason", reason)}
          onDone={props.onDone}
        />
      )}
      {!node.draining && (
        <Action
          label="Drain"
          kind="danger"
          title={`Drain ${node.name}?`}
          reason
          consequences={<Victims leases={leases} />}
          call={(reason) => ({ method: "POST", path: `${path}:drain`, body: { reason, grace_s: 0 } })}
          command={(reason) => command("drain", node.name, reason && "--reason", reason)}
          onDone={props.onDone}
        />
      )}
    </>
  );
}

/** Who would be ended, before it is done. */
function Victims(props: { leases: Lease[] }): JSX.Element {
  if (!props.leases.length) return <p>Nothing runs here: nobody is disturbed.</p>;
  return (
    <div>
      <p class="note warn">
        <strong>{plural(props.leases.length, "lease")} here would be ended</strong>, each with its grace; those that may be
        taken back wait again in their queue.
      </p>
      <ul class="plain">
        {props.leases.map((lease) => (
          <li key={lease.lease_id}>
            <Link to={leaseAddress(lease.lease_id)}>
              <Name text={lease.name} fallback={shortId(lease.lease_id)} />
            </Link>{" "}
            <span class="dim">
              <bdi>{lease.tenant}</bdi>, by <bdi>{lease.asked_by}</bdi>
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Shows(props: { seen: Seen; reload: () => void }): JSX.Element {
  const { node, leases } = props.seen;
  const now = nowMs.value;
  return (
    <>
      <section class="card">
        <dl class="facts">
          <Fact name="State">
            <State word={node.state} />
            {node.draining ? ", draining" : node.cordoned ? ", cordoned" : ""}
          </Fact>
          <Fact name="Last heard">{ago(node.last_heard_ms, now)}</Fact>
          <Fact name="Pool">
            <Name text={node.pool} fallback={UNKNOWN} />
          </Fact>
          <Fact name="Failure domain">
            <Name text={node.failure_domain} fallback={UNKNOWN} />
          </Fact>
          <Fact name="Driver">{node.driver_version || UNKNOWN}</Fact>
          <Fact name="Agent">{node.agent_version || UNKNOWN}</Fact>
          <Fact name="CPU">{node.cpu_milli === null ? UNKNOWN : share(node.cpu_milli)}</Fact>
          <Fact name="Host memory">{bytes(node.host_memory_bytes)}</Fact>
          <Fact name="Id">
            <span class="code">{node.node_id}</span>
          </Fact>
        </dl>
        {node.reason && (
          <p class="note warn">
            <bdi>{node.reason}</bdi>
          </p>
        )}
        {node.closure && (
          <p class="note warn">
            Maintenance <bdi>{node.closure.window}</bdi> {lower(node.closure.phase)}: from {moment(node.closure.starts_ms)},{" "}
            {inTime(node.closure.starts_ms, now)}, until {moment(node.closure.ends_ms)}.
          </p>
        )}
      </section>
      <section class="devices" aria-label="cards">
        {node.devices.map((device) => (
          <Card key={device.uuid} device={device} leases={leases} reload={props.reload} />
        ))}
      </section>
      {node.cards.map((card) => (
        <p class="dim">
          Card <span class="code">{shortId(card.uuid)}</span> is cut into {card.parts.map((part) => part.profile).join(", ") || "nothing"}
          {card.problem && (
            <>
              : <bdi>{card.problem}</bdi>
            </>
          )}
        </p>
      ))}
      <section class="card">
        <h2>Leases here</h2>
        <Table
          label="leases on this node"
          columns={[
            {
              title: "Lease",
              cell: (lease: Lease) => (
                <Link to={leaseAddress(lease.lease_id)}>
                  <Name text={lease.name} fallback={shortId(lease.lease_id)} />
                </Link>
              ),
              sort: (lease: Lease) => lease.name || lease.lease_id,
            },
            { title: "State", cell: (lease: Lease) => <State word={lease.state} />, sort: (lease: Lease) => lease.state },
            { title: "Tenant", cell: (lease: Lease) => <Name text={lease.tenant} />, sort: (lease: Lease) => lease.tenant },
            { title: "By", cell: (lease: Lease) => <Name text={lease.asked_by} />, minor: true },
            { title: "Asked for", cell: (lease: Lease) => <code>{lease.gpu}</code>, minor: true },
            { title: "Since", cell: (lease: Lease) => ago(lease.granted_ms, now), right: true },
          ]}
          rows={leases}
          keyOf={(lease) => lease.lease_id}
          empty="Nobody holds anything here."
        />
      </section>
      <Elsewhere
        call={{ method: "GET", path: `/nodes/${encodeURIComponent(node.node_id)}` }}
        command={command("nodes", node.name)}
      />
    </>
  );
}

function Card(props: { device: Device; leases: Lease[]; reload: () => void }): JSX.Element {
  const { device } = props;
  const parts = props.leases.flatMap((lease) =>
    lease.slices.filter((part) => part.device_uuid === device.uuid).map((part) => ({ lease, part })),
  );
  const readings = device.telemetry;
  const total = Math.max(1, device.memory_total_bytes);
  const milliOf = (count: number): number => Math.round((1000 * count) / total);
  return (
    <article class="card">
      <div class="row between">
        <h2>
          {device.index}: {device.mig_profile || device.model} <span class="dim">{vendorTitle(device.vendor)}</span>
        </h2>
        <State word={device.healthy && device.standing === "UNSPECIFIED" ? "READY" : device.standing === "UNSPECIFIED" ? "FAILED" : device.standing} />
      </div>
      <div class="parts">
        <span class="row between">
          <span class="dim">share</span>
          <span>
            {share(device.leased_share_milli)} <span class="dim">of {share(device.compute_milli)}</span>
          </span>
        </span>
        <Bar
          wide
          label={`${share(device.leased_share_milli)} of ${share(device.compute_milli)} is leased`}
          parts={parts.map((each, at) => ({
            milli: Math.round((1000 * each.part.share_milli) / Math.max(1, device.compute_milli)),
            kind: at % 2 ? "other" : "share",
          }))}
        />
        <span class="row between">
          <span class="dim">leased</span>
          <span>
            <span class="dim">memory</span> {bytes(device.leased_memory_bytes)} <span class="dim">of {bytes(device.memory_total_bytes)}</span>
          </span>
        </span>
        <Bar
          wide
          label={`${bytes(device.leased_memory_bytes)} of ${bytes(device.memory_total_bytes)} is leased`}
          parts={[
            { milli: milliOf(device.leased_memory_bytes), kind: "memory" },
            { milli: milliOf(device.foreign_bytes), kind: "alert" },
          ]}
        />
        <span class="row between">
          <span class="dim">used</span>
          <span>
            <span class="dim">memory</span> {bytes(readings.memory_used_bytes)}
          </span>
        </span>
        <Bar
          wide
          label={`${bytes(readings.memory_used_bytes)} is used`}
          parts={[{ milli: milliOf(readings.memory_used_bytes ?? 0), kind: "observed" }]}
        />
      </div>
      <dl class="facts tight">
        <Fact name="Busy">{readings.gpu_utilisation_percent === null ? UNKNOWN : `${readings.gpu_utilisation_percent} %`}</Fact>
        <Fact name="Temperature">{readings.temperature_c === null ? UNKNOWN : `${readings.temperature_c} °C`}</Fact>
        <Fact name="Power">{readings.power_mw === null ? UNKNOWN : `${Math.round(readings.power_mw / 1000)} W`}</Fact>
      </dl>
      {parts.length > 0 && (
        <ul class="plain">
          {parts.map(({ lease, part }) => (
            <li key={part.slice_id}>
              <Link to={leaseAddress(lease.lease_id)}>
                <Name text={lease.name} fallback={shortId(lease.lease_id)} />
              </Link>{" "}
              <span class="dim">
                {share(part.share_milli)}, {bytes(part.memory_bytes)}, {lower(part.tier)}
              </span>
            </li>
          ))}
        </ul>
      )}
      {device.foreign_bytes > 0 && <p class="note warn">{bytes(device.foreign_bytes)} is held outside any lease.</p>}
      {device.health_reason && (
        <p class="note bad">
          <bdi>{device.health_reason}</bdi>
        </p>
      )}
      <div class="row between">
        <span class="dim code">{shortId(device.uuid)}</span>
        {device.incident > 0 && <Link to={`/incidents?number=${device.incident}`}>incident {device.incident}</Link>}
        {operates.value && <DeviceCare device={device} onDone={props.reload} />}
      </div>
    </article>
  );
}

export function DeviceCare(props: { device: { uuid: string; standing: string }; onDone: () => void }): JSX.Element {
  const { uuid, standing } = props.device;
  const path = `/devices/${encodeURIComponent(uuid)}`;
  if (standing !== "UNSPECIFIED" && standing !== "PROBATION") {
    return (
      <Action
        label="Return"
        kind="small"
        title="Take this card back into service?"
        reason
        call={(reason) => ({ method: "POST", path: `${path}:return`, body: { reason } })}
        command={(reason) => command("device", "return", uuid, reason && "--reason", reason)}
        onDone={props.onDone}
      />
    );
  }
  return (
    <Action
      label="Quarantine"
      kind="small"
      title="Take this card out of service?"
      consequences={<p>It gets nothing new until it is returned. What runs on it goes on.</p>}
      reason
      call={(reason) => ({ method: "POST", path: `${path}:quarantine`, body: { reason, drain: false } })}
      command={(reason) => command("device", "quarantine", uuid, reason && "--reason", reason)}
      onDone={props.onDone}
    />
  );
}
