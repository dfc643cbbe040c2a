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

const NUMBERS = ["integer", "count", "seconds"];

export const isNumber = (field: RequestField): boolean => NUMBERS.includes(field.kind);

/** A request from texts, such as those in the page's address. What is no number, or 0, is not asked for. */
export function asked(gpu: string, text: (name: string) => string): Asked {
  const found: Record<string, unknown> = { gpu };
  for (const field of fields) {
    const value = text(field.name);
    if (!value || !(labelOf(field) || field.kind === "text")) continue;
    if (!isNumber(field)) found[field.name] = field.kind === "flag" ? true : value;
    else if (Number.isInteger(Number(value)) && Number(value) !== 0) found[field.name] = Number(value);
  }
  return found as Asked;
}

/** What of a request is given, field by field. */
export function given(request: Asked): [RequestField, string | number | true][] {
  return fields.flatMap((field) => {
    const value = request[field.name];
    return value && typeof value !== "object" ? [[field, value] as [RequestField, string | number | true]] : [];
  });
}
