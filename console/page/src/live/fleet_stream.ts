/** The fleet as it is received: for now by pages of the list of devices. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api/client";
import type { Device, GpuNode, Page } from "../api/types";
import { Columns, UNKNOWN_USE, type FleetNode } from "./fleet";
import { onChanges } from "./events";

export interface Received {
  columns: Columns;
  version: number;
  error: unknown;
  atMs: number;
  live: boolean;
}

export function useFleet(): Received {
  const columns = useMemo(() => new Columns(), []);
  const state = useSignal({ version: 0, error: null as unknown, atMs: 0, live: true });
  useEffect(() => {
    const abort = new AbortController();
    const load = async (): Promise<void> => {
      try {
        await read(columns, abort.signal);
        state.value = { version: state.peek().version + 1, error: null, atMs: Date.now(), live: true };
      } catch (error) {
        if (!abort.signal.aborted) state.value = { ...state.peek(), error, live: false };
      }
    };
    void load();
    const timer = setInterval(load, 5000);
    const off = onChanges(() => void 0);
    return () => {
      abort.abort();
      clearInterval(timer);
      off();
    };
  }, []);
  return { columns, ...state.value };
}

async function read(columns: Columns, abort: AbortSignal): Promise<void> {
  const nodes: GpuNode[] = [];
  let token = "";
  do {
    const page: Page<GpuNode> = await get("/nodes", { devices: true, page_size: 200, page_token: token }, abort);
    nodes.push(...page.items);
    token = page.next_token;
  } while (token);
  const devices: Device[] = nodes.flatMap((node) => node.devices);
  let first = 0;
  const listed: FleetNode[] = nodes.map((node) => {
    const models = node.devices.map((device) => device.model);
    const one = new Set(models).size === 1 ? models.slice(0, 1) : models;
    const found = { node_id: node.node_id, name: node.name, pool: node.pool, first, devices: node.devices.length, models: one };
    first += node.devices.length;
    return found;
  });
  const stateOf = (device: Device, node: GpuNode): number => {
    if (node.state === "LOST") return 6;
    if (node.state === "SUSPECT") return 5;
    if (node.state === "DECLARED" && !node.agentless) return 4;
    if (!device.healthy) return 3;
    return node.cordoned || node.draining ? 2 : 1;
  };
  columns.apply({
    resets: true,
    nodes: listed,
    index: undefined,
    first: 0,
    states: Uint8Array.from(nodes.flatMap((node) => node.devices.map((device) => stateOf(device, node)))),
    shares: Uint8Array.from(devices, (device) => percent(device.leased_share_milli, device.compute_milli)),
    memory: Uint8Array.from(devices, (device) => percent(device.leased_memory_bytes, device.memory_total_bytes)),
    useIndex: undefined,
    use: Uint8Array.from(devices, (device) => device.telemetry.gpu_utilisation_percent ?? UNKNOWN_USE),
  });
}

const percent = (part: number, whole: number): number => {
  const found = whole ? Math.round((100 * part) / whole) : 0;
  return part && part < whole ? Math.min(99, Math.max(1, found)) : found;
};
