/** What is free now, by model: the totals of the pool. */
import type { JSX } from "preact";
import type { PoolTotals, Status } from "../api/types";
import { Bar, Name, Waiting } from "../ui/basics";
import { Table } from "../ui/table";
import { bytes, count, share, vendorTitle } from "../ui/words";
import { t } from "../texts";

export function Free(props: { pool: Status | undefined; onChoose?: (model: string) => void }): JSX.Element {
  const totals = props.pool?.pools;
  if (!totals) return <Waiting what={t.free.countingWhatIsFree} />;
  const several = (of: "vendor" | "pool"): boolean => new Set(totals.map((row) => row[of])).size > 1;
  const vendor = { title: t.free.vendor, cell: (row: PoolTotals) => vendorTitle(row.vendor ?? ""), sort: (row: PoolTotals) => row.vendor ?? "" };
  const columns = [
    ...(several("vendor") ? [vendor] : []),
    {
      title: t.common.model,
      cell: (row: PoolTotals) =>
        props.onChoose ? (
          <button type="button" class="plain link" onClick={() => props.onChoose?.(row.model)}>
            {row.model}
          </button>
        ) : (
          row.model
        ),
      sort: (row: PoolTotals) => row.model,
    },
    ...(several("pool") ? [{ title: t.common.pool, cell: (row: PoolTotals) => <Name text={row.pool} fallback="–" />, minor: true }] : []),
    { title: t.common.devices, cell: (row: PoolTotals) => count(row.devices), sort: (row: PoolTotals) => row.devices, right: true },
    {
      title: t.common.free,
      cell: (row: PoolTotals) => share(row.capacity_share_milli - row.leased_share_milli),
      sort: (row: PoolTotals) => row.capacity_share_milli - row.leased_share_milli,
      right: true,
    },
    {
      title: t.free.memoryFree,
      cell: (row: PoolTotals) => bytes(row.capacity_memory_bytes - row.leased_memory_bytes),
      sort: (row: PoolTotals) => row.capacity_memory_bytes - row.leased_memory_bytes,
      right: true,
    },
    {
      title: t.common.inUse,
      cell: (row: PoolTotals) => {
        const milli = row.capacity_share_milli ? Math.round((1000 * row.leased_share_milli) / row.capacity_share_milli) : 0;
        return <Bar label={t.free.percentInUse(Math.round(milli / 10))} parts={[{ milli, kind: "share" }]} />;
      },
      minor: true,
      spare: true,
    },
  ];
  return (
    <section class="card">
      <h2>{t.free.freeNow}</h2>
      <Table
        label={t.free.freeDevicesByModel}
        columns={columns}
        rows={totals}
        keyOf={(row) => `${row.pool} ${row.model}`}
        empty={t.free.noNodeInvite}
      />
    </section>
  );
}
