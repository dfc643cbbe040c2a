/** The fields of a request: the list from which the options of the command line and the annotations of pods follow, too. */
import list from "../../../../common/aliquot/common/request_fields.json";
import type { Asked } from "./types";
import { byWord, t } from "../texts";

export interface RequestField {
  name: keyof Asked & string;
  kind: string;
  option: string;
  annotation: string;
}

export const fields = list.map((each) => ({ kind: "text", annotation: "", ...each })) as RequestField[];

/** Its label in the form; undefined: it is not in there. */
export const labelOf = (field: RequestField): string | undefined => byWord(t.requestFields, field.name);

const NUMBERS = ["integer", "count", "seconds", "bytes", "milli"];

export const isNumber = (field: RequestField): boolean => NUMBERS.includes(field.kind);

/** A request from texts, such as those in the page's address. What is no number, or 0, is not asked for. */
export function asked(gpu: string, text: (name: string) => string): Asked {
  const found: Record<string, unknown> = { gpu };
  for (const field of fields) {
    const value = text(field.name);
    if (!value) continue;
    if (field.kind === "flag") found[field.name] = true;
    else if (field.kind === "names") found[field.name] = value.split(SEVERAL);
    else if (field.kind === "pairs") found[field.name] = Object.fromEntries(value.split(SEVERAL).map(pair));
    else if (!isNumber(field)) found[field.name] = value;
    else if (Number.isInteger(Number(value)) && Number(value) !== 0) found[field.name] = Number(value);
  }
  return found as Asked;
}

/** Between names and pairs of one field: neither can have it. */
const SEVERAL = ",";

function pair(text: string): [string, string] {
  const [key = "", ...rest] = text.split("=");
  return [key, rest.join("=")];
}

/** What of a request is given, field by field, as texts: of labels and nodes there may be several. */
export function given(request: Asked): [RequestField, string[] | true][] {
  return fields.flatMap((field): [RequestField, string[] | true][] => {
    const value = request[field.name] as unknown;
    if (!value || value === "UNSPECIFIED" || (field.kind === "count" && value === 1)) return [];
    if (value === true) return [[field, value]];
    const texts = Array.isArray(value)
      ? value.map(String)
      : typeof value === "object"
        ? Object.entries(value).map(([key, text]) => `${key}=${text}`)
        : [String(value)];
    return texts.length ? [[field, texts]] : [];
  });
}

/** Where the form has this request. It is kept alive by nobody, so it has no TTL there. */
export function formAddress(request: Asked, more: Record<string, string> = {}): string {
  const query = new URLSearchParams({ gpu: request.gpu, ...more });
  for (const [field, value] of given(request)) {
    if (field.name !== "ttl_s") query.set(field.name, value === true ? "yes" : value.join(SEVERAL));
  }
  return `/ask?${query}`;
}
