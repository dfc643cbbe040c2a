/** The usual part of the request grammar, taken apart for the fields of a form: `2x0.5(A100),20Gi`. */

export interface Amounts {
  count: string;
  share: string;
  models: string;
  memoryGi: string;
  /** The text says more than the fields can show. */
  odd: boolean;
}

const USUAL = /^\s*(?:(\d+)x)?(\d*\.?\d+)\s*(?:\(([^()]*)\))?\s*(?:,\s*(\d+(?:\.\d+)?)(Gi|G))?\s*$/;

export function parse(text: string): Amounts {
  const found = USUAL.exec(text);
  if (!found) return { count: "1", share: "", models: "", memoryGi: "", odd: text.trim() !== "" };
  return {
    count: found[1] ?? "1",
    share: found[2] ?? "",
    models: found[3] ?? "",
    memoryGi: found[4] ?? "",
    odd: found[5] === "G",
  };
}

export function compose(amounts: Amounts): string {
  const count = amounts.count && amounts.count !== "1" ? `${amounts.count}x` : "";
  const models = amounts.models ? `(${amounts.models})` : "";
  const memory = amounts.memoryGi && Number(amounts.memoryGi) > 0 ? `,${amounts.memoryGi}Gi` : "";
  return `${count}${amounts.share || "1"}${models}${memory}`;
}
