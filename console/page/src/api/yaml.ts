/** A pod that asks for the same. */
import { given } from "./request";
import type { Asked } from "./types";

export function asYaml(asked: Asked): string {
  const gang = (asked.gang_size ?? 1) > 1;
  const labels = [
    asked.queue && `    aliquot.dev/queue: ${JSON.stringify(asked.queue)}`,
    gang && `    aliquot.dev/gang: train`,
  ].filter(Boolean);
  const annotations = [
    `    aliquot.dev/request: ${JSON.stringify(asked.gpu)}`,
    ...given(asked).map(
      ([field, value]) =>
        field.annotation && `    ${field.annotation}: ${value === true ? '"true"' : value.join().toLowerCase()}`,
    ),
    gang && `    aliquot.dev/gang-size: "${asked.gang_size}"`,
  ].filter(Boolean);
  return [
    "apiVersion: v1",
    "kind: Pod",
    "metadata:",
    "  name: train",
    ...(labels.length ? ["  labels:", ...labels] : []),
    "  annotations:",
    ...annotations,
    "spec:",
    "  restartPolicy: Never",
    "  containers:",
    "    - name: train",
    "      image: your/image",
    '      command: ["python", "train.py"]',
  ].join("\n");
}
