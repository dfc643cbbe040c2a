/** The same action elsewhere: as `curl`, as an `aliquot` command, in Python, in Kubernetes. */
import { pathOf, type Call } from "./client";
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

const FLAGS: [keyof Asked, string][] = [
  ["name", "--name"],
  ["tenant", "--tenant"],
  ["queue", "--queue"],
  ["pool", "--pool"],
  ["priority", "--priority"],
  ["gang_size", "--gang"],
];

function flags(asked: Asked): string[] {
  const words: string[] = [];
  for (const [field, flag] of FLAGS) {
    const value = asked[field];
    if (value !== undefined && value !== "") words.push(flag, String(value));
  }
  if (asked.min_tier) words.push("--min-tier", asked.min_tier.toLowerCase());
  if (asked.or_mig) words.push("--or-mig");
  if (asked.time_limit_s) words.push("--time-limit", `${asked.time_limit_s}s`);
  if (asked.preemptible) words.push("--preemptible");
  return words;
}

export const asRun = (asked: Asked): string =>
  [command("run", "--gpu", asked.gpu, ...flags(asked)), "--", "python train.py"].join(" ");

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
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}
