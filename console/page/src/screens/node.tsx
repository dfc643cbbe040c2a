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
import { ago, bytes, inTime, inWords, moment, share, shortId, UNKNOWN, vendorTitle } from "../ui/words";
import { t } from "../texts";
import { Spark, useHistory } from "../ui/spark";

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
      <Heading title={seen ? <Name text={seen.node.name || id} /> : t.common.node}>
        {seen && operates.value && <Care seen={seen} onDone={loaded.reload} />}
      </Heading>
      <Shown of={loaded} what={t.node.readingNode}>
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
          label={t.node.openAgain}
          title={t.node.placeLeasesHereAgain}
          call={() => ({ method: "POST", path: `${path}:uncordon` })}
          command={() => command("uncordon", node.name)}
          onDone={props.onDone}
        />
      ) : (
        <Action
          label={t.node.cordon}
          title={t.node.placeNothingNewHere}
          consequences={<p>{t.node.whatRunsStays}</p>}
          reason
          call={(reason) => ({ method: "POST", path: `${path}:cordon`, body: { reason } })}
          command={(reason) => command("cordon", node.name, reason && "--reason", reason)}
          onDone={props.onDone}
        />
      )}
      {!node.draining && (
        <Action
          label={t.node.drain}
          kind="danger"
          title={t.node.drainNode(node.name)}
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
  if (!props.leases.length) return <p>{t.node.nothingRunsHereNobodyIs}</p>;
  return (
    <div>
      <p class="note warn">
        <strong>{t.node.wouldBeEnded(t.counts.leases(props.leases.length))}</strong>
        {t.node.eachWithItsGrace}
      </p>
      <ul class="plain">
        {props.leases.map((lease) => (
          <li key={lease.lease_id}>
            <Link to={leaseAddress(lease.lease_id)}>
              <Name text={lease.name} fallback={shortId(lease.lease_id)} />
            </Link>{" "}
            <span class="dim">
              {t.node.ofTenantBy(<bdi>{lease.tenant}</bdi>, <bdi>{lease.asked_by}</bdi>)}
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
          <Fact name={t.common.state}>
            <State word={node.state} />
            {node.draining ? t.node.draining : node.cordoned ? t.node.cordoned : ""}
          </Fact>
          <Fact name={t.node.lastHeard}>{ago(node.last_heard_ms, now)}</Fact>
          <Fact name={t.common.pool}>
            <Name text={node.pool} fallback={UNKNOWN} />
          </Fact>
          <Fact name={t.node.failureDomain}>
            <Name text={node.failure_domain} fallback={UNKNOWN} />
          </Fact>
          <Fact name={t.node.driver}>{node.driver_version || UNKNOWN}</Fact>
          <Fact name={t.node.agent}>{node.agent_version || UNKNOWN}</Fact>
          <Fact name="CPU">{node.cpu_milli === null ? UNKNOWN : share(node.cpu_milli)}</Fact>
          <Fact name={t.node.hostMemory}>{bytes(node.host_memory_bytes)}</Fact>
          <Fact name={t.common.id}>
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
            {t.node.closedFrom(
              <bdi>{node.closure.window}</bdi>,
              inWords(node.closure.phase),
              moment(node.closure.starts_ms),
              inTime(node.closure.starts_ms, now),
              moment(node.closure.ends_ms),
            )}
          </p>
        )}
      </section>
      <section class="devices" aria-label={t.node.cards}>
        {node.devices.map((device) => (
          <Card key={device.uuid} device={device} leases={leases} reload={props.reload} />
        ))}
      </section>
      {node.cards.map((card) => (
        <p class="dim">
          {t.node.cardIsCutInto(
            <span class="code">{shortId(card.uuid)}</span>,
            card.parts.map((part) => part.profile).join(", ") || t.common.nothing,
          )}
          {card.problem && (
            <>
              : <bdi>{card.problem}</bdi>
            </>
          )}
        </p>
      ))}
      <section class="card">
        <h2>{t.node.leasesHere}</h2>
        <Table
          label={t.node.leasesOnThisNode}
          columns={[
            {
              title: t.common.lease,
              cell: (lease: Lease) => (
                <Link to={leaseAddress(lease.lease_id)}>
                  <Name text={lease.name} fallback={shortId(lease.lease_id)} />
                </Link>
              ),
              sort: (lease: Lease) => lease.name || lease.lease_id,
            },
            { title: t.common.state, cell: (lease: Lease) => <State word={lease.state} />, sort: (lease: Lease) => lease.state },
            { title: t.common.tenant, cell: (lease: Lease) => <Name text={lease.tenant} />, sort: (lease: Lease) => lease.tenant },
            { title: t.common.owner, cell: (lease: Lease) => <Name text={lease.asked_by} />, minor: true },
            { title: t.common.askedFor, cell: (lease: Lease) => <code>{lease.gpu}</code>, minor: true },
            { title: t.common.since, cell: (lease: Lease) => ago(lease.granted_ms, now), right: true },
          ]}
          rows={leases}
          keyOf={(lease) => lease.lease_id}
          empty={t.node.nobodyHoldsAnythingHere}
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
  const busy = readings.gpu_utilisation_percent === null ? UNKNOWN : `${readings.gpu_utilisation_percent} %`;
  const history = useHistory(readings.gpu_utilisation_percent, device.uuid);
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
          <span class="dim">{t.node.share}</span>
          <span>
            {share(device.leased_share_milli)} <span class="dim">{t.common.ofWhole(share(device.compute_milli))}</span>
          </span>
        </span>
        <Bar
          wide
          label={t.node.isLeased(share(device.leased_share_milli), share(device.compute_milli))}
          parts={parts.map((each, at) => ({
            milli: Math.round((1000 * each.part.share_milli) / Math.max(1, device.compute_milli)),
            kind: at % 2 ? "other" : "share",
          }))}
        />
        <span class="row between">
          <span class="dim">{t.node.leased}</span>
          <span>
            <span class="dim">{t.node.memory}</span> {bytes(device.leased_memory_bytes)} <span class="dim">{t.common.ofWhole(bytes(device.memory_total_bytes))}</span>
          </span>
        </span>
        <Bar
          wide
          label={t.node.isLeased(bytes(device.leased_memory_bytes), bytes(device.memory_total_bytes))}
          parts={[
            { milli: milliOf(device.leased_memory_bytes), kind: "memory" },
            { milli: milliOf(device.foreign_bytes), kind: "alert" },
          ]}
        />
        <span class="row between">
          <span class="dim">{t.node.used}</span>
          <span>
            <span class="dim">{t.node.memory}</span> {bytes(readings.memory_used_bytes)}
          </span>
        </span>
        <Bar
          wide
          label={t.node.isUsed(bytes(readings.memory_used_bytes))}
          parts={[{ milli: milliOf(readings.memory_used_bytes ?? 0), kind: "observed" }]}
        />
      </div>
      <Spark values={history} limit={100} label={t.node.busyWhileOpen(busy)} />
      <dl class="facts tight">
        <Fact name={t.common.busy}>{busy}</Fact>
        <Fact name={t.node.temperature}>{readings.temperature_c === null ? UNKNOWN : `${readings.temperature_c} °C`}</Fact>
        <Fact name={t.node.power}>{readings.power_mw === null ? UNKNOWN : `${Math.round(readings.power_mw / 1000)} W`}</Fact>
      </dl>
      {parts.length > 0 && (
        <ul class="plain">
          {parts.map(({ lease, part }) => (
            <li key={part.slice_id}>
              <Link to={leaseAddress(lease.lease_id)}>
                <Name text={lease.name} fallback={shortId(lease.lease_id)} />
              </Link>{" "}
              <span class="dim">
                {[share(part.share_milli), bytes(part.memory_bytes), inWords(part.tier)].join(t.list)}
              </span>
            </li>
          ))}
        </ul>
      )}
      {device.foreign_bytes > 0 && <p class="note warn">{t.node.heldOutside(bytes(device.foreign_bytes))}</p>}
      {device.health_reason && (
        <p class="note bad">
          <bdi>{device.health_reason}</bdi>
        </p>
      )}
      <div class="row between">
        <span class="dim code">{shortId(device.uuid)}</span>
        {device.incident > 0 && <Link to={`/incidents?number=${device.incident}`}>{t.node.incident(device.incident)}</Link>}
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
        label={t.node.return}
        kind="small"
        title={t.node.takeThisCardBackInto}
        reason
        call={(reason) => ({ method: "POST", path: `${path}:return`, body: { reason } })}
        command={(reason) => command("device", "return", uuid, reason && "--reason", reason)}
        onDone={props.onDone}
      />
    );
  }
  return (
    <Action
      label={t.node.quarantine}
      kind="small"
      title={t.node.takeThisCardOutOf}
      consequences={<p>{t.node.itGetsNothingNewUntil}</p>}
      reason
      call={(reason) => ({ method: "POST", path: `${path}:quarantine`, body: { reason, drain: false } })}
      command={(reason) => command("device", "quarantine", uuid, reason && "--reason", reason)}
      onDone={props.onDone}
    />
  );
}
