/** All devices of the pool as columns of bytes: a few bytes a device, so that 80,000 of them are a third of a megabyte. */

/** The contract's numbers. */
export const STATES = ["gone", "ready", "closed", "sick", "away", "suspect", "lost"] as const;
export const UNKNOWN_USE = 255;

export interface FleetNode {
  node_id: string;
  name: string;
  pool: string;
  /** The number of its first device; the others follow. */
  first: number;
  devices: number;
  /** Of each device; a single one: all are of that model. */
  models: string[];
}

/** What a stream tells: a part of a snapshot, or what has changed. */
export interface FleetChange {
  resets: boolean;
  nodes: FleetNode[];
  /** Which devices the bytes are about; undefined: those from `first` on. */
  index: Uint32Array | undefined;
  first: number;
  states: Uint8Array;
  shares: Uint8Array;
  memory: Uint8Array;
  useIndex: Uint32Array | undefined;
  use: Uint8Array;
}

/** Beyond so many changes a picture is drawn as a whole. */
const TOUCHED_MAX = 20_000;

export class Columns {
  /** So many devices have numbers. */
  size = 0;
  nodes = new Map<string, FleetNode>();
  states = new Uint8Array(0);
  shares = new Uint8Array(0);
  memory = new Uint8Array(0);
  use = new Uint8Array(0);
  /** Rises when nodes come, go, or are called otherwise: what is laid out must be laid out anew. */
  layout = 0;
  /** When the first change came that is not drawn yet, on the page's own clock, in milliseconds; 0: all is drawn. */
  undrawnMs = 0;
  /** Which devices have changed since the last drawing; undefined: too many to name. */
  touched: number[] | undefined;

  apply(change: FleetChange): void {
    if (change.resets) {
      this.nodes = new Map();
      this.size = 0;
      this.layout++;
    }
    for (const node of change.nodes) {
      // What is at the end of the numbering comes last, whether it was there before or not.
      if (this.nodes.get(node.node_id)?.first !== node.first) this.nodes.delete(node.node_id);
      this.nodes.set(node.node_id, node);
      this.grow(node.first + node.devices);
      this.layout++;
    }
    this.touch(change);
    if (change.index) {
      change.index.forEach((number, at) => {
        const state = change.states[at] ?? 0;
        if ((this.states[number] === 0) !== (state === 0)) this.layout++;
        this.states[number] = state;
        this.shares[number] = change.shares[at] ?? 0;
        this.memory[number] = change.memory[at] ?? 0;
      });
    } else if (change.states.length) {
      this.grow(change.first + change.states.length);
      this.states.set(change.states, change.first);
      this.shares.set(change.shares, change.first);
      this.memory.set(change.memory, change.first);
      if (change.use.length) this.use.set(change.use, change.first);
    }
    change.useIndex?.forEach((number, at) => (this.use[number] = change.use[at] ?? UNKNOWN_USE));
  }

  modelOf(node: FleetNode, at: number): string {
    return node.models.length === 1 ? (node.models[0] ?? "") : (node.models[at] ?? "");
  }

  private touch(change: FleetChange): void {
    const whole = change.resets || change.nodes.length > 0 || (!change.index && change.states.length > 0);
    if (whole) this.touched = undefined;
    for (const index of [change.index, change.useIndex]) {
      if (index) for (const number of index) this.touched?.push(number);
    }
    if (this.touched && this.touched.length > TOUCHED_MAX) this.touched = undefined;
  }

  private grow(size: number): void {
    if (size > this.states.length) {
      const room = Math.max(size, 2 * this.states.length, 64);
      for (const name of ["states", "shares", "memory", "use"] as const) {
        const larger = new Uint8Array(room);
        if (name === "use") larger.fill(UNKNOWN_USE);
        larger.set(this[name]);
        this[name] = larger;
      }
    }
    this.size = Math.max(this.size, size);
  }
}
