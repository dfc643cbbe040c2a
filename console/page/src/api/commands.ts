/** The same action elsewhere: as `curl`, as an `aliquot` command, in Python, in Kubernetes. */
import { pathOf, type Call } from "./client";
import { given, labelOf } from "./request";
import type { Asked } from "./types";

/** A word for a shell, quoted where it must be. */
export function shell(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export const command = (...words: (string | number | false | undefined)[]): string =>
  ["aliquot", ...words.filter((word) => word !== false && word !== undefined && word !== "")]
    .map((word) => shell(String(word)))
    .join(" ");

/** A call as `curl` makes it; the token comes from the file in which the command line keeps one. */
export function curl(call: Call): string {
  const lines = ['curl -H "Authorization: Bearer $ALIQUOT_TOKEN"'];
  if (call.method !== "GET") lines[0] += ` -X ${call.method}`;
  if (call.key) lines.push(`-H 'Idempotency-Key: ${call.key}'`);
  if (call.body !== undefined) {
    lines.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(call.body))}`);
  }
  lines.push(shell(location.origin + pathOf(call)));
  return lines.join(" \\\n  ");
}

const UNITS: Record<string, string> = { seconds: "s", milli: "m" };
const WORDS = ["tier", "topology", "serve"];

const flags = (asked: Asked): string[] =>
  given(asked).flatMap(([field, value]) => {
    if (value === true) return [field.option];
    const spelled = (text: string): string =>
      WORDS.includes(field.kind) ? text.toLowerCase().replaceAll("_", "-") : text + (UNITS[field.kind] ?? "");
    return value.flatMap((each) => [field.option, spelled(each)]);
  });

/** What the form has no place for: to be seen with it all the same. */
export const besideForm = (asked: Asked): string => {
  const unseen = Object.fromEntries(given(asked).flatMap(([field]) => (labelOf(field) ? [] : [[field.name, asked[field.name]]])));
  return flags({ ...unseen, gpu: "" }).map(shell).join(" ");
};

export const asRun = (asked: Asked): string =>
  [command("run", "--gpu", asked.gpu, ...flags(asked)), "--", "python train.py"].join(" ");

/** A program in a lease that is there; `secret`: of whoever has just been told it. */
export const asExec = (leaseId: string, secret: string | undefined): string =>
  (secret ? `export ALIQUOT_LEASE_SECRET=${shell(secret)}\n` : "") + `${command("exec", "--lease", leaseId)} -- python train.py`;

/** A port of a node, reached from one's own machine. */
export const asTunnel = (port: number, node: string): string => `ssh -L ${port}:127.0.0.1:${port} ${shell(node)}`;

export const asAlloc = (asked: Asked): string => command("alloc", asked.gpu, ...flags(asked));

export const asExplain = (asked: Asked): string => command("why", asked.gpu, ...flags(asked));

export function asPython(asked: Asked): string {
  const options = Object.entries(asked)
    .filter(([name, value]) => name !== "gpu" && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => `, ${name}=${literal(value)}`)
    .join("");
  return `from aliquot.client import Pool

with Pool() as pool, pool.lease(${JSON.stringify(asked.gpu)}${options}) as lease:
    lease.run(["python", "train.py"], check=True)`;
}

function literal(value: unknown): string {
  if (value === true) return "True";
  return typeof value === "number" ? String(value) : JSON.stringify(value);
}
