/** How a value went while the page was open. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { nowMs } from "../live/clock";

const KEPT = 300;

/** The values of the last minutes, one a second; null: not known then. `of` says whose: another one begins anew. */
export function useHistory(value: number | null, of: string): (number | null)[] {
  const kept = useSignal<(number | null)[]>([]);
  useEffect(() => {
    kept.value = [];
  }, [of]);
  useEffect(() => {
    kept.value = [...kept.peek(), value].slice(-KEPT);
  }, [nowMs.value]);
  return kept.value;
}

/** `kept`: so many values fill its width. */
export function Spark(props: {
  values: readonly (number | null)[];
  limit: number;
  label: string;
  kept?: number;
}): JSX.Element {
  const kept = props.kept ?? KEPT;
  const top = Math.max(props.limit, ...props.values.map((value) => value ?? 0), 1) * 1.08;
  let path = "";
  let drawing = false;
  props.values.forEach((value, at) => {
    if (value === null) {
      drawing = false;
      return;
    }
    path += `${drawing ? "L" : "M"}${kept - props.values.length + at} ${(100 * (1 - value / top)).toFixed(1)}`;
    drawing = true;
  });
  const limit = 100 * (1 - props.limit / top);
  return (
    <svg class="spark" viewBox={`0 0 ${kept} 100`} preserveAspectRatio="none" role="img" aria-label={props.label}>
      <line x1="0" x2={kept} y1={limit} y2={limit} />
      <path d={path} />
    </svg>
  );
}
