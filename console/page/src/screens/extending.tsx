/** A longer time limit for a lease that has one. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { command } from "../api/commands";
import type { Lease } from "../api/types";
import { nowMs } from "../live/clock";
import { identity, may } from "../live/session";
import { Action } from "../ui/action";
import { Field, valueOf } from "../ui/basics";
import { inTime, inUnit, moment, span } from "../ui/words";
import { t } from "../texts";

const MORE: [string, number][] = [
  [inUnit(30, "minute"), 1800],
  ...[1, 2, 4, 8].map((hours): [string, number] => [inUnit(hours, "hour"), 3600 * hours]),
  ...[1, 3].map((days): [string, number] => [inUnit(days, "day"), 86_400 * days]),
];

/** When it ends, as things are. */
export function endOf(lease: Lease, now: number): string {
  if (!lease.time_limit_s) return t.extending.whenItIsReleased;
  if (!lease.ends_ms) return t.extending.afterGrant(span(1000 * lease.time_limit_s));
  return t.extending.at(inTime(lease.ends_ms, now), moment(lease.ends_ms));
}

export function Extend(props: { lease: Lease; onDone: () => void }): JSX.Element | null {
  const { lease } = props;
  const more = useSignal("7200");
  if (!lease.time_limit_s || ["ENDED", "RELEASING", "PREEMPTING"].includes(lease.state)) return null;
  const mine = lease.asked_by === identity.value?.principal;
  if (!mine && !may(["MANAGER", "ADMIN"], lease.tenant)) return null;
  const more_s = Number(more.value);
  const path = `/leases/${encodeURIComponent(lease.lease_id)}:extend`;
  return (
    <Action
      label={t.extending.extend}
      kind="primary"
      title={t.extending.letItRunLonger}
      reason
      consequences={
        <>
          <p>{t.extending.itEnds(endOf(lease, nowMs.value))}</p>
          <Field label={t.extending.howMuchLonger}>
            <select value={more.value} onChange={(event) => (more.value = valueOf(event))}>
              {MORE.map(([title, seconds]) => (
                <option key={seconds} value={String(seconds)}>
                  {title}
                </option>
              ))}
            </select>
          </Field>
          {lease.ends_ms > 0 && <p class="dim">{t.extending.thenItEnds(moment(lease.ends_ms + 1000 * more_s))}</p>}
        </>
      }
      // In all, so that it can be sent again.
      call={(reason) => ({ method: "POST", path, body: { time_limit_s: lease.time_limit_s + Number(more.value), reason } })}
      command={(reason) => command("extend", lease.lease_id, `${more.value}s`, reason && "--reason", reason)}
      onDone={props.onDone}
    />
  );
}
