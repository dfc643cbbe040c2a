/** *Queues and tenants*: what each may count on, what is borrowed, who is next and why; settings, editable where allowed. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { ask, get, type Call } from "../api/client";
import { command } from "../api/commands";
import type { Amount, Lease, Tenancy } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { administers, may, status } from "../live/session";
import { Bar, Dialog, Elsewhere, Field, Name, Problem, valueOf } from "../ui/basics";
import { leaseAddress, Link } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { ago, bytes, count, inWords, moment, share, shortId, UNKNOWN } from "../ui/words";
import { allLeases, Why } from "./leases";
import { t } from "../texts";

type Tenant = Tenancy["tenants"][number];
type Queue = Tenancy["queues"][number];

const WAITING_SHOWN = 50;

export function Queues(): JSX.Element {
  const tenancy = useLoaded((abort) => get<Tenancy>("/tenancy", undefined, abort), [], { everyMs: 8000, on: () => true });
  const waiting = useLoaded((abort) => allLeases({ state: ["QUEUED"] }, abort, 1), [], {
    everyMs: 8000,
    on: (change) => change.kind === "lease",
  });
  return (
    <>
      <Heading title={t.common.queuesAndTenants} />
      <Shown of={tenancy} what={t.queues.readingWhatIsDeclared}>
        {(value) => <Declared tenancy={value} reload={tenancy.reload} />}
      </Shown>
      <section class="card">
        <h2>{t.queues.whoIsNext}</h2>
        <Shown of={waiting} what={t.queues.listingWhoWaits}>
          {(found) => <Line leases={found.leases} />}
        </Shown>
      </section>
      <Elsewhere call={{ method: "GET", path: "/tenancy" }} command={command("tenants")} />
    </>
  );
}

function Declared(props: { tenancy: Tenancy; reload: () => void }): JSX.Element {
  const { tenancy } = props;
  const capacity = (status.value?.pools ?? []).reduce((sum, pool) => sum + pool.capacity_share_milli, 0);
  const most = Math.max(1, capacity, ...tenancy.tenants.map((each) => each.use.share_milli));
  const holders = undeclared(tenancy);
  return (
    <>
      {tenancy.alerts.map((alert) => (
        <p class="note warn">
          <bdi>{alert}</bdi>
        </p>
      ))}
      <section class="card">
        <h2>{t.queues.tenantsTitle}</h2>
        <p class="legend">
          <span>
            <span class="swatch share" /> {t.queues.withinGuarantee}
          </span>
          <span>
            <span class="swatch memory" /> {t.queues.borrowedPart}
          </span>
          <span>{t.queues.ofDevices(share(capacity))}</span>
        </p>
        <Table
          label={t.queues.tenants}
          columns={[
            { title: t.common.tenant, cell: (each: Tenant) => <Name text={each.spec.name} />, sort: (each) => each.spec.name },
            { title: t.queues.holds, cell: (each: Tenant) => <Holds tenant={each} whole={most} />, sort: (each) => each.use.share_milli },
            { title: t.queues.guaranteed, cell: (each: Tenant) => amount(inForce(each).guaranteed), sort: (each) => inForce(each).guaranteed.share_milli ?? 0, right: true },
            { title: t.queues.borrowed, cell: (each: Tenant) => share(borrowed(each)), sort: borrowed, right: true },
            { title: t.queues.limit, cell: (each: Tenant) => <Limit of={each} />, minor: true, right: true },
            { title: t.queues.weight, cell: (each: Tenant) => each.spec.quota.weight, sort: (each) => each.spec.quota.weight, minor: true, right: true },
            { title: t.queues.budgetUsed, cell: (each: Tenant) => (each.spec.budget ? `${each.budget_permille / 10} %` : UNKNOWN), minor: true, right: true },
            { title: t.queues.wait, cell: (each: Tenant) => count(each.use.waiting), sort: (each) => each.use.waiting, right: true },
            {
              title: "",
              cell: (each: Tenant) => may(["MANAGER", "ADMIN"], parentOf(each.spec.name)) && <Edit kind="tenants" item={each} onDone={props.reload} />,
            },
          ]}
          rows={tenancy.tenants}
          keyOf={(each) => each.spec.name}
          empty={
            <>{t.queues.noTenant(<code>aliquot apply -f pool.yaml</code>)}</>
          }
        />
        {holders.length > 0 && (
          <p class="dim">
            {t.queues.notDeclared(
              holders.map((each) => t.queues.holderHolds(each.tenant, share(each.leased_share_milli))).join(t.list),
            )}
          </p>
        )}
      </section>
      <section class="card">
        <h2>{t.queues.queuesTitle}</h2>
        <Table
          label={t.queues.queues}
          columns={[
            { title: t.common.queue, cell: (each: Queue) => <Name text={each.spec.name} />, sort: (each) => each.spec.name },
            { title: t.queues.parent, cell: (each: Queue) => <Name text={each.spec.parent} fallback={UNKNOWN} />, minor: true },
            { title: t.queues.order, cell: (each: Queue) => inWords(each.spec.policy || "priority") },
            { title: t.common.inUse, cell: (each: Queue) => share(each.use.share_milli), sort: (each) => each.use.share_milli, right: true },
            { title: t.queues.guaranteed, cell: (each: Queue) => amount(inForce(each).guaranteed), right: true, minor: true },
            { title: t.queues.limit, cell: (each: Queue) => <Limit of={each} />, right: true },
            { title: t.queues.weight, cell: (each: Queue) => each.spec.quota.weight, right: true, minor: true },
            { title: t.queues.wait, cell: (each: Queue) => count(each.use.waiting), sort: (each) => each.use.waiting, right: true },
            { title: "", cell: (each: Queue) => administers.value && <Edit kind="queues" item={each} onDone={props.reload} /> },
          ]}
          rows={tenancy.queues}
          keyOf={(each) => each.spec.name}
          empty={t.queues.noQueueIsDeclaredRequests}
        />
      </section>
      {tenancy.holds.length > 0 && (
        <section class="card">
          <h2>{t.queues.keptForSomebody}</h2>
          <Table
            label={t.queues.capacityThatIsKept}
            columns={[
              { title: t.queues.for, cell: (each) => <Link to={leaseAddress(each.owner)}>{shortId(each.owner)}</Link> },
              { title: t.common.why, cell: (each) => inWords(each.kind) },
              { title: t.common.devices, cell: (each) => count(each.device_uuids.length), right: true },
              { title: t.queues.leasesThatGo, cell: (each) => count(each.victims.length), right: true },
            ]}
            rows={tenancy.holds}
            keyOf={(each) => `${each.owner} ${each.kind}`}
          />
        </section>
      )}
    </>
  );
}

const undeclared = (tenancy: Tenancy): { tenant: string; leased_share_milli: number }[] =>
  (status.value?.tenants ?? []).filter(
    (each) => each.leased_share_milli > 0 && !tenancy.tenants.some((known) => known.spec.name === each.tenant),
  );

const parentOf = (name: string): string => name.slice(0, Math.max(0, name.lastIndexOf("/")));

const borrowed = (each: Tenant): number =>
  Math.max(0, each.use.share_milli - (each.use.guaranteed_now.share_milli ?? 0));

function amount(value: Amount): ComponentChildren {
  const words = [
    value.share_milli !== null && share(value.share_milli),
    value.memory_bytes !== null && bytes(value.memory_bytes),
  ].filter(Boolean);
  return words.join(", ") || UNKNOWN;
}

/** As windows of the quota have it now. */
const inForce = (each: Tenant | Queue): Tenant["spec"]["quota"] => each.use.windows?.in_force ?? each.spec.quota;

/** The limit that is in force, and where windows change it: when, and what then. */
function Limit(props: { of: Tenant | Queue }): JSX.Element {
  const windows = props.of.use.windows;
  return (
    <span title={windows ? windows.window || t.queues.outsideOfItsWindows : undefined}>
      {amount(inForce(props.of).limit)}
      {windows && windows.until_ms > 0 && windows.next && (
        <span class="dim">
          {t.queues.untilThen(moment(windows.until_ms).slice(0, -3), amount(windows.next.limit))}
        </span>
      )}
    </span>
  );
}

function Holds(props: { tenant: Tenant; whole: number }): JSX.Element {
  const { tenant, whole } = props;
  const own = tenant.use.share_milli - borrowed(tenant);
  const milli = (part: number): number => Math.round((1000 * part) / whole);
  return (
    <span>
      <Bar
        label={t.queues.ownAndBorrowed(share(own), share(borrowed(tenant)))}
        parts={[
          { milli: milli(own), kind: "share" },
          { milli: milli(borrowed(tenant)), kind: "memory" },
        ]}
      />{" "}
      {share(tenant.use.share_milli)}
    </span>
  );
}

function Line(props: { leases: Lease[] }): JSX.Element {
  const rows = [...props.leases].sort((a, b) => b.priority - a.priority || a.created_ms - b.created_ms);
  return (
    <>
      <Table
        label={t.queues.requestsThatWait}
        columns={[
          {
            title: t.queues.request,
            cell: (each: Lease) => (
              <Link to={leaseAddress(each.lease_id)}>
                <Name text={each.name} fallback={shortId(each.lease_id)} />
              </Link>
            ),
          },
          { title: t.queues.asksFor, cell: (each: Lease) => <code>{each.gpu}</code> },
          { title: t.common.tenant, cell: (each: Lease) => <Name text={each.tenant} fallback={UNKNOWN} />, sort: (each) => each.tenant },
          { title: t.common.queue, cell: (each: Lease) => <Name text={each.queue} fallback={UNKNOWN} />, sort: (each) => each.queue, minor: true },
          { title: t.queues.priority, cell: (each: Lease) => each.priority, sort: (each) => each.priority, right: true, minor: true },
          { title: t.common.since, cell: (each: Lease) => ago(each.created_ms, nowMs.value), sort: (each) => each.created_ms, right: true },
          { title: t.common.whyItWaits, cell: (each: Lease) => (each.redacted ? UNKNOWN : <Why id={each.lease_id} />), wide: true },
        ]}
        rows={rows.slice(0, WAITING_SHOWN)}
        keyOf={(each) => each.lease_id}
        empty={t.queues.nobodyWaits}
      />
      {rows.length > WAITING_SHOWN && <p class="dim">{t.queues.andMore(count(rows.length - WAITING_SHOWN))}</p>}
    </>
  );
}

/** What is changed is tried first: the pool says what it would refuse before anything is declared. */
function Edit(props: { kind: "tenants" | "queues"; item: Tenant | Queue; onDone: () => void }): JSX.Element {
  const open = useSignal(false);
  const { spec } = props.item;
  const form = useSignal({ weight: "", guaranteed: "", limit: "" });
  const error = useSignal<unknown>(null);
  const tried = useSignal(false);
  const begin = (): void => {
    const text = (value: number | null): string => (value === null ? "" : share(value));
    form.value = {
      weight: String(spec.quota.weight),
      guaranteed: text(spec.quota.guaranteed.share_milli),
      limit: text(spec.quota.limit.share_milli),
    };
    error.value = null;
    tried.value = false;
    open.value = true;
  };
  const milli = (text: string): number | null => (text.trim() === "" ? null : Math.round(Number(text) * 1000));
  const call = (): Call => {
    const quota = {
      ...spec.quota,
      weight: Number(form.value.weight),
      guaranteed: { ...spec.quota.guaranteed, share_milli: milli(form.value.guaranteed) },
      limit: { ...spec.quota.limit, share_milli: milli(form.value.limit) },
    };
    return { method: "PUT", path: "/tenancy", body: { [props.kind]: [{ ...spec, quota }] } };
  };
  const words = (text: string, memory: number | null): string =>
    memory === null ? text.trim() || t.common.none : `${text.trim()},${memory}`;
  const asCommand = (): string =>
    command(
      "quota", props.kind === "tenants" ? "tenant" : "queue", spec.name,
      "--weight", form.value.weight,
      "--guaranteed", words(form.value.guaranteed, spec.quota.guaranteed.memory_bytes),
      "--limit", words(form.value.limit, spec.quota.limit.memory_bytes),
    );
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    error.value = null;
    try {
      await ask({ ...call(), query: { dry_run: !tried.value } });
      if (tried.value) {
        open.value = false;
        props.onDone();
      } else tried.value = true;
    } catch (caught) {
      error.value = caught;
    }
  };
  const set = (field: "weight" | "guaranteed" | "limit") => (event: Event) => {
    form.value = { ...form.value, [field]: valueOf(event) };
    tried.value = false;
  };
  return (
    <>
      <button type="button" class="small" onClick={begin} aria-label={t.queues.editName(spec.name)}>
        {t.queues.edit}
      </button>
      {open.value && (
        <Dialog title={t.queues.whatItMayUse(spec.name)} onClose={() => (open.value = false)}>
          <form onSubmit={send}>
            <div class="grid">
              <Field label={t.queues.guaranteedDevices}>
                <input type="number" min="0" step="any" value={form.value.guaranteed} onInput={set("guaranteed")} placeholder={t.common.nothing} />
              </Field>
              <Field label={t.queues.limitDevices}>
                <input type="number" min="0" step="any" value={form.value.limit} onInput={set("limit")} placeholder={t.common.none} />
              </Field>
              <Field label={t.queues.weight}>
                <input type="number" min="1" step="1" required value={form.value.weight} onInput={set("weight")} />
              </Field>
            </div>
            <Problem error={error.value} />
            {tried.value && <p class="note good">{t.queues.poolWouldTakeItDeclare}</p>}
            <div class="row end">
              <button class="primary">{tried.value ? t.common.declare : t.queues.try}</button>
            </div>
            {spec.quota.windows.length > 0 && (
              <p class="dim">
                {t.queues.outsideWindows(<bdi>{spec.quota.windows.map((each) => each.when).join("; ")}</bdi>)}
              </p>
            )}
            <Elsewhere call={call()} command={asCommand()} />
          </form>
        </Dialog>
      )}
    </>
  );
}

