/** Numbers, sizes and times as people read them. Unknown is "–", never 0. */
import { byWord, t } from "../texts";

export const UNKNOWN = "–";
const GIB = 2 ** 30;

export function bytes(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  const count = Number(value);
  if (count === 0) return "0";
  if (count >= 1024 * GIB) return `${trimmed(count / GIB / 1024)}\u00a0TiB`;
  if (count >= GIB) return `${trimmed(count / GIB)}\u00a0GiB`;
  return `${trimmed(count / 2 ** 20)}\u00a0MiB`;
}

function trimmed(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
}

/** Thousandths of a device as devices: 250 is 0.25. */
export function share(milli: number | null | undefined): string {
  if (milli === null || milli === undefined) return UNKNOWN;
  return (milli / 1000).toFixed(3).replace(/\.?0+$/, "") || "0";
}

export const count = (value: number): string => value.toLocaleString(t.locale);

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)}\u00a0%` : UNKNOWN;
}

export function span(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return `${seconds}${t.units.s}`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes}${t.units.min}`;
  const hours = minutes / 60;
  if (hours < 48) return `${Math.round(hours * 10) / 10}${t.units.h}`;
  return `${Math.round(hours / 24)}${t.units.d}`;
}

export function ago(ms: number, nowMs: number): string {
  return ms ? t.ago(span(nowMs - ms)) : UNKNOWN;
}

export function inTime(ms: number, nowMs: number): string {
  return ms > nowMs ? t.inTime(span(ms - nowMs)) : t.now;
}

export function moment(ms: number): string {
  if (!ms) return UNKNOWN;
  const at = new Date(ms);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("sv-SE")} `;
  return day + at.toLocaleTimeString("sv-SE");
}

export function money(micro: number | string, currency: string): string {
  return `${(Number(micro) / 1e6).toLocaleString(t.locale, { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${currency}`;
}

/** A word of the contract: `END_OF_TIME` as `end of time`, where the language has no other for it. */
export const inWords = (word: string): string =>
  byWord(t.words, word.toUpperCase()) ?? word.toLowerCase().replaceAll("_", " ");

/** As `3 hours`. */
export const inUnit = (number: number, unit: "minute" | "hour" | "day"): string =>
  new Intl.NumberFormat(t.locale, { style: "unit", unit, unitDisplay: "long" }).format(number);

const VENDORS: Record<string, string> = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel", npu: "Ascend", gaudi: "Gaudi", tpu: "TPU" };
export const vendorTitle = (vendor: string): string => VENDORS[vendor] ?? vendor;

export const shortId = (id: string): string => (id.length > 18 ? `${id.slice(0, 16)}…` : id);
