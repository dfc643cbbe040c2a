/** The contract's message `FleetEvent` (proto/aliquot/v1/pool.proto), as the coordinator wrote it, read by its numbers. */
import type { FleetChange, FleetNode } from "./fleet";
import { t } from "../texts";

export interface FleetEvent extends FleetChange {
  /** Numbers of devices mean the same in all events of one layout, in which versions count up. */
  layout: number;
  /** 0: the rest of a snapshot follows. */
  version: number;
  atMs: number;
}

const NONE = new Uint8Array();
const utf8 = new TextDecoder();

export function eventOf(message: Uint8Array): FleetEvent {
  const event: FleetEvent = {
    layout: 0, version: 0, atMs: 0, resets: false, nodes: [], index: undefined, first: 0,
    states: NONE, shares: NONE, memory: NONE, useIndex: undefined, use: NONE,
  };
  for (const [field, value] of fieldsOf(message)) {
    if (typeof value === "number") {
      if (field === 1) event.layout = value;
      else if (field === 2) event.version = value;
      else if (field === 3) event.atMs = value;
      else if (field === 4) event.resets = value !== 0;
      else if (field === 7) event.first = value;
    } else if (field === 5) event.nodes.push(nodeOf(value));
    else if (field === 6) event.index = numbers(value);
    else if (field === 8) event.states = value;
    else if (field === 9) event.shares = value;
    else if (field === 10) event.memory = value;
    else if (field === 11) event.useIndex = numbers(value);
    else if (field === 12) event.use = value;
  }
  return event;
}

/** Messages that stand one after the other, each behind its length. */
export function* eventsOf(bytes: Uint8Array): Generator<FleetEvent> {
  const at = { place: 0 };
  while (at.place < bytes.length) yield eventOf(piece(bytes, at));
}

function nodeOf(message: Uint8Array): FleetNode {
  const node: FleetNode = { node_id: "", name: "", pool: "", first: 0, devices: 0, models: [] };
  for (const [field, value] of fieldsOf(message)) {
    if (typeof value === "number") {
      if (field === 4) node.first = value;
      else if (field === 5) node.devices = value;
    } else if (field === 1) node.node_id = utf8.decode(value);
    else if (field === 2) node.name = utf8.decode(value);
    else if (field === 3) node.pool = utf8.decode(value);
    else if (field === 6) node.models.push(utf8.decode(value));
  }
  node.name ||= node.node_id;
  return node;
}

/** Protobuf's encoding, as far as these messages have it: numbers, and what has a length. */
function* fieldsOf(message: Uint8Array): Generator<[number, number | Uint8Array]> {
  const at = { place: 0 };
  while (at.place < message.length) {
    const key = varint(message, at);
    const kind = key % 8;
    if (kind !== 0 && kind !== 2) throw new Error(t.client.unreadable(kind));
    yield [Math.floor(key / 8), kind === 0 ? varint(message, at) : piece(message, at)];
  }
}

function piece(bytes: Uint8Array, at: { place: number }): Uint8Array {
  const length = varint(bytes, at);
  at.place += length;
  return bytes.subarray(at.place - length, at.place);
}

/** Seven bits a byte, the lowest first. Not by shifting, which JavaScript does with 32 bits. */
function varint(bytes: Uint8Array, at: { place: number }): number {
  let value = 0;
  for (let factor = 1; at.place < bytes.length; factor *= 128) {
    const byte = bytes[at.place++] ?? 0;
    value += (byte % 128) * factor;
    if (byte < 128) break;
  }
  return value;
}

/** Four bytes each, the lowest first. */
function numbers(bytes: Uint8Array): Uint32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Uint32Array.from({ length: bytes.length >> 2 }, (_, at) => view.getUint32(4 * at, true));
}
