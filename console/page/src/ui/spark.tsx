/** How a value went while the page was open. */
import type { JSX } from "preact";
import { nowMs } from "../live/clock";

const STEP_MS = 5000;
/** An hour; as long as it is not over, five minutes fill the width of a picture, then all that is known. */
const KEPT = 720;
const SHOWN_MIN = 60;
/** So many of them are kept, those that were looked at last. */
const HISTORIES = 100;

interface History {
  /** One for each step; null: not known then, as while nobody looked. */
  values: (number | null)[];
  lastStep: number;
}

const histories = new Map<string, History>();

/** How a value went while the page was open, at most an hour. `of` says whose it is: whoever comes back to it finds it again. */
export function useHistory(value: number | null, of: string): readonly (number | null)[] {
  const step = Math.floor(nowMs.value / STEP_MS);
  const history = histories.get(of) ?? { values: [null], lastStep: step };
  histories.delete(of);
  histories.set(of, history);
  for (const oldest of [...histories.keys()].slice(0, -HISTORIES)) histories.delete(oldest);
  const missed = Math.min(KEPT, Math.max(0, step - history.lastStep));
  history.values = [...history.values, ...Array<null>(missed).fill(null)].slice(-KEPT);
  history.lastStep = Math.max(step, history.lastStep);
  history.values[history.values.length - 1] = value;
  return history.values;
}

/** `kept`: so many values fill its width. */
export function Spark(props: {
  values: readonly (number | null)[];
  limit: number;
  label: string;
  kept?: number;
}): JSX.Element {
  const kept = props.kept ?? Math.max(SHOWN_MIN, props.values.length);
  const top = Math.max(props.limit, ...props.values.map((value) => value ?? 0), 1) * 1.08;
  let path = "";
  /** Those without a known one before and after them. */
  let points = "";
  props.values.forEach((value, at, all) => {
    if (value === null) return;
    const place = `${kept - all.length + at} ${(100 * (1 - value / top)).toFixed(1)}`;
    const [first, last] = [(all[at - 1] ?? null) === null, (all[at + 1] ?? null) === null];
    if (first && last) points += `M${place}h0`;
    else path += `${first ? "M" : "L"}${place}`;
  });
  const limit = 100 * (1 - props.limit / top);
  return (
    <svg class="spark" viewBox={`0 0 ${kept} 100`} preserveAspectRatio="none" role="img" aria-label={props.label}>
      <line x1="0" x2={kept} y1={limit} y2={limit} />
      <path d={path} />
      <path class="points" d={points} />
    </svg>
  );
}
