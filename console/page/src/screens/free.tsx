/** What is free now, by model: the totals of the pool. */
import type { JSX } from "preact";
import type { PoolTotals, Status } from "../api/types";
import { Bar, Name, Waiting } from "../ui/basics";
import { Table } from "../ui/table";
import { bytes, count, share, vendorTitle } from "../ui/words";

export function Free(props: { pool: Status | undefined; onChoose?: (model: string) => void }): JSX.Element {
  const totals = props.pool?.pools;
  if (!totals) return <Waiting what="counting what is free" />;
  const several = new Set(totals.map((row) => row.vendor)).size > 1;
  const vendor = { title: "Vendor", cell: (row: PoolTotals) => vendorTitle(row.vendor ?? ""), sort: (row: PoolTotals) => row.vendor ?? "" };
  const columns = [
    ...(several ? [vendor] : []),
    {
      title: "Model",
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
    { title: "Pool", cell: (row: PoolTotals) => <Name text={row.pool} fallback="–" />, minor: true },
    { title: "Devices", cell: (row: PoolTotals) => count(row.devices), sort: (row: PoolTotals) => row.devices, right: true },
    {
      title: "Free",
      cell: (row: PoolTotals) => share(row.capacity_share_milli - row.leased_share_milli),
      sort: (row: PoolTotals) => row.capacity_share_milli - row.leased_share_milli,
      right: true,
    },
    {
      title: "Memory free",
      cell: (row: PoolTotals) => bytes(row.capacity_memory_bytes - row.leased_memory_bytes),
      sort: (row: PoolTotals) => row.capacity_memory_bytes - row.leased_memory_bytes,
      right: true,
    },
    {
      title: "In use",
      cell: (row: PoolTotals) => {
        const milli = row.capacity_share_milli ? Math.round((1000 * row.leased_share_milli) / row.capacity_share_milli) : 0;
        return <Bar label={`${Math.round(milli / 10)} % in use`} parts={[{ milli, kind: "share" }]} />;
      },
      minor: true,
    },
  ];
  return (
    <section class="card">
      <h2>Free now</h2>
      <Table
        label="free devices by model"
        columns={columns}
        rows={totals}
        keyOf={(row) => `${row.pool} ${row.model}`}
        empty="No node has joined yet: `aliquot node invite` lets one in."
      />
    </section>
  );
}
