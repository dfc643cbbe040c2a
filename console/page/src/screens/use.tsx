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
import { t } from "../texts";
import { Day } from "./day";

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
      <Heading title={t.common.useAndMoney} />
      <div class="row">
        <Field label={t.common.tenant}>
          <input list="payers" value={tenant} onChange={(event) => setParams({ tenant: valueOf(event) })} />
        </Field>
        <Field label={t.use.month}>
          <input type="month" value={month} max={thisMonth()} onChange={(event) => setParams({ month: valueOf(event) })} />
        </Field>
        <datalist id="payers">
          {names.map((name) => (
            <option value={name} />
          ))}
        </datalist>
      </div>
      {!tenant ? (
        <Empty>{t.use.nameTenantToSeeIts}</Empty>
      ) : loaded.error instanceof Refusal && loaded.error.status === 403 ? (
        <Empty>
          {t.use.billsHidden(<Name text={tenant} />, <bdi>{loaded.error.message}</bdi>)}
        </Empty>
      ) : (
        <Shown of={loaded} what={t.use.addingUp}>
          {(invoice) => (invoice ? <Bill invoice={invoice} /> : null)}
        </Shown>
      )}
      {tenant && (
        <section class="card">
          <h2>{t.use.lastDayOf(<Name text={tenant} />)}</h2>
          <Day series={`tenant/${tenant}`} />
        </section>
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
          <Fact name={t.use.toPay}>
            <span class="big-number">{money(invoice.total_micro, invoice.currency)}</span>
          </Fact>
          <Fact name={t.use.paid}>
            <span class="big-number">{money(invoice.paid_micro, invoice.currency)}</span>
          </Fact>
          <Fact name={t.use.gpuHoursHeld}>
            <span class="big-number">{hours(held).toFixed(2)}</span>
          </Fact>
          <Fact name={t.use.ofTheseBusy}>
            <span class="big-number">{watched ? hours(busy).toFixed(2) : UNKNOWN}</span>
          </Fact>
        </dl>
        <div class="parts">
          <span class="row between">
            <span class="dim">{t.use.timeThatWasHeldAnd}</span>
            <span>{watched ? percent(busy, held) : t.common.notKnown}</span>
          </span>
          <Bar wide label={t.use.partOfTimeHeldThat} parts={[{ milli: permille(busy, held), kind: "observed" }]} />
          <span class="row between">
            <span class="dim">{t.use.memoryThatWasHeldAnd}</span>
            <span>{watched ? percent(usedBytes, heldBytes) : t.common.notKnown}</span>
          </span>
          <Bar wide label={t.use.partOfMemoryHeldThat} parts={[{ milli: permille(usedBytes, heldBytes), kind: "observed" }]} />
        </div>
        {invoice.notes.map((note) => (
          <p class="dim">
            <bdi>{note}</bdi>
          </p>
        ))}
      </section>
      <section class="card">
        <h2>{t.use.lines}</h2>
        <Table
          label={t.use.linesOfInvoice}
          columns={columns}
          rows={invoice.lines}
          keyOf={(line) => `${line.queue} ${line.model} ${line.gpu_hour_micro} ${line.gib_hour_micro}`}
          empty={t.use.nothingWasHeldInThis}
        />
        {invoice.discounts.map((discount) => (
          <p class="row between">
            <span class="dim">{t.use.discount(discount.discount_permille / 10)}</span>
            <span>−{money(discount.discount_micro, invoice.currency)}</span>
          </p>
        ))}
      </section>
    </>
  );
}

const permille = (part: number, whole: number): number => (whole > 0 ? Math.round((1000 * part) / whole) : 0);

const columnsOf = (currency: string): Column<Line>[] => [
  { title: t.common.queue, cell: (line) => <Name text={line.queue} />, sort: (line) => line.queue },
  { title: t.common.model, cell: (line) => line.model, sort: (line) => line.model },
  { title: t.common.gpuHours, cell: (line) => hours(line.share_milli_ms).toFixed(2), sort: (line) => Number(line.share_milli_ms), right: true },
  {
    title: t.use.memoryGibHours,
    cell: (line) => (Number(line.memory_byte_ms) / 2 ** 30 / HOUR_MS).toFixed(1),
    sort: (line) => Number(line.memory_byte_ms),
    right: true,
    minor: true,
  },
  {
    title: t.use.priceOfHour,
    cell: (line) => (line.priced ? t.use.priceOf(money(line.gpu_hour_micro, currency), money(line.gib_hour_micro, currency)) : t.common.none),
    minor: true,
  },
  { title: t.use.amount, cell: (line) => money(line.amount_micro, currency), sort: (line) => Number(line.amount_micro), right: true },
];

