/** *Use and money*: what a tenant held, what of that was used, what it costs. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { get, Refusal } from "../api/client";
import { command } from "../api/commands";
import type { Invoice, Tenancy } from "../api/types";
import { useLoaded } from "../live/loading";
import { identity, may, status } from "../live/session";
import { Bar, Elsewhere, Empty, Fact, Field, Name, valueOf } from "../ui/basics";
import { param, setParams } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table, type Column } from "../ui/table";
import { money, percent, UNKNOWN } from "../ui/words";
import { Free } from "./free";
import { Waste } from "./idleness";

const HOUR_MS = 3_600_000;
const READS_BILLS = ["MANAGER", "OPERATOR", "ADMIN", "VIEWER", "USER"];

export function Use(): JSX.Element {
  const month = param("month") || thisMonth();
  const tenancy = useLoaded((abort) => get<Tenancy>("/tenancy", undefined, abort), []);
  const names = tenantsOf(tenancy.value);
  const tenant = param("tenant") || names[0] || "";
  const { from_ms, to_ms } = edges(month);
  const path = `/invoices/${tenant.split("/").map(encodeURIComponent).join("/")}`;
  const loaded = useLoaded<Invoice | null>(
    async (abort) => (tenant ? get<Invoice>(path, { from_ms, to_ms }, abort) : null),
    [tenant, month],
    { everyMs: 30_000 },
  );
  return (
    <>
      <Heading title="Use and money" />
      <div class="row">
        <Field label="Tenant">
          <input list="payers" value={tenant} onChange={(event) => setParams({ tenant: valueOf(event) })} />
        </Field>
        <Field label="Month">
          <input type="month" value={month} max={thisMonth()} onChange={(event) => setParams({ month: valueOf(event) })} />
        </Field>
        <datalist id="payers">
          {names.map((name) => (
            <option value={name} />
          ))}
        </datalist>
      </div>
      {!tenant ? (
        <Empty>Name a tenant to see its bill.</Empty>
      ) : loaded.error instanceof Refusal && loaded.error.status === 403 ? (
        <Empty>
          Bills of <Name text={tenant} /> are not for you to see: <bdi>{loaded.error.message}</bdi>
        </Empty>
      ) : (
        <Shown of={loaded} what="adding up">
          {(invoice) => (invoice ? <Bill invoice={invoice} /> : null)}
        </Shown>
      )}
      <Waste tenant={tenant} />
      <Free pool={status.value} />
      {tenant && (
        <Elsewhere
          call={{ method: "GET", path, query: { from_ms, to_ms } }}
          command={command("invoice", tenant, "--month", month)}
        />
      )}
    </>
  );
}

function tenantsOf(tenancy: Tenancy | undefined): string[] {
  const seen = new Set([
    ...(identity.value?.grants ?? []).map((grant) => grant.scope),
    ...(tenancy?.tenants ?? []).map((each) => each.spec.name),
    ...(status.value?.tenants ?? []).map((each) => each.tenant),
  ]);
  return [...seen].filter((name) => name && may(READS_BILLS, name)).sort();
}

function thisMonth(): string {
  return new Date().toISOString().slice(0, 7);
}

function edges(month: string): { from_ms: number; to_ms: number } {
  const [year, number] = month.split("-").map(Number);
  return { from_ms: Date.UTC(year ?? 1970, (number ?? 1) - 1), to_ms: Date.UTC(year ?? 1970, number ?? 1) };
}

type Line = Invoice["lines"][number];

const hours = (milliMs: string | number): number => Number(milliMs) / 1000 / HOUR_MS;

function Bill(props: { invoice: Invoice }): JSX.Element {
  const { invoice } = props;
  const held = invoice.lines.reduce((sum, line) => sum + Number(line.share_milli_ms), 0);
  const heldBytes = invoice.lines.reduce((sum, line) => sum + Number(line.memory_byte_ms), 0);
  const busy = Number(invoice.observed_busy_milli_ms);
  const usedBytes = Number(invoice.observed_memory_byte_ms);
  const watched = Number(invoice.observed_interval_ms) > 0;
  const columns = useSignal<Column<Line>[]>(columnsOf(invoice.currency)).value;
  return (
    <>
      <section class="card">
        <dl class="facts">
          <Fact name="To pay">
            <span class="big-number">{money(invoice.total_micro, invoice.currency)}</span>
          </Fact>
          <Fact name="Paid">
            <span class="big-number">{money(invoice.paid_micro, invoice.currency)}</span>
          </Fact>
          <Fact name="GPU hours held">
            <span class="big-number">{hours(held).toFixed(2)}</span>
          </Fact>
          <Fact name="of these busy">
            <span class="big-number">{watched ? hours(busy).toFixed(2) : UNKNOWN}</span>
          </Fact>
        </dl>
        <div class="parts">
          <span class="row between">
            <span class="dim">time that was held, and used</span>
            <span>{watched ? percent(busy, held) : "not known"}</span>
          </span>
          <Bar wide label="part of the time held that was used" parts={[{ milli: permille(busy, held), kind: "observed" }]} />
          <span class="row between">
            <span class="dim">memory that was held, and used</span>
            <span>{watched ? percent(usedBytes, heldBytes) : "not known"}</span>
          </span>
          <Bar wide label="part of the memory held that was used" parts={[{ milli: permille(usedBytes, heldBytes), kind: "observed" }]} />
        </div>
        {invoice.notes.map((note) => (
          <p class="dim">
            <bdi>{note}</bdi>
          </p>
        ))}
      </section>
      <section class="card">
        <h2>Lines</h2>
        <Table
          label="lines of the invoice"
          columns={columns}
          rows={invoice.lines}
          keyOf={(line) => `${line.queue} ${line.model} ${line.gpu_hour_micro} ${line.gib_hour_micro}`}
          empty="Nothing was held in this month."
        />
        {invoice.discounts.map((discount) => (
          <p class="row between">
            <span class="dim">discount of {discount.discount_permille / 10} %</span>
            <span>−{money(discount.discount_micro, invoice.currency)}</span>
          </p>
        ))}
      </section>
    </>
  );
}

const permille = (part: number, whole: number): number => (whole > 0 ? Math.round((1000 * part) / whole) : 0);

const columnsOf = (currency: string): Column<Line>[] => [
  { title: "Queue", cell: (line) => <Name text={line.queue} />, sort: (line) => line.queue },
  { title: "Model", cell: (line) => line.model, sort: (line) => line.model },
  { title: "GPU hours", cell: (line) => hours(line.share_milli_ms).toFixed(2), sort: (line) => Number(line.share_milli_ms), right: true },
  {
    title: "Memory, GiB hours",
    cell: (line) => (Number(line.memory_byte_ms) / 2 ** 30 / HOUR_MS).toFixed(1),
    sort: (line) => Number(line.memory_byte_ms),
    right: true,
    minor: true,
  },
  {
    title: "Price of an hour",
    cell: (line) => (line.priced ? `${money(line.gpu_hour_micro, currency)} + ${money(line.gib_hour_micro, currency)} a GiB` : "none"),
    minor: true,
  },
  { title: "Amount", cell: (line) => money(line.amount_micro, currency), sort: (line) => Number(line.amount_micro), right: true },
];

