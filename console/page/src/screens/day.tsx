/** What was held or waited for in the last day, hour by hour: of the pool, or of one tenant or model. */
import type { JSX } from "preact";
import { get } from "../api/client";
import type { Forecast } from "../api/types";
import { useLoaded } from "../live/loading";
import { t } from "../texts";
import { Link } from "../ui/router";
import { Spark } from "../ui/spark";
import { share } from "../ui/words";

const FRESH_MS = 300_000;
const HOURS = 24;

/** `series` as the calendar names them, such as `tenant/vision`; empty: the pool. `limit`: the line to compare with, in thousandths. */
export function Day(props: { series: string; limit?: number }): JSX.Element {
  const query = `series=${encodeURIComponent(props.series)}`;
  const { value } = useLoaded((abort) => get<Forecast>(`/forecast?${query}`, undefined, abort), [query], { everyMs: FRESH_MS });
  const past = (value?.series[0]?.hours ?? []).filter((hour) => hour.past).slice(-HOURS);
  const demand = past.map((hour) => hour.milli);
  const known = demand.filter((milli) => milli !== null);
  const limit = props.limit ?? Math.max(0, ...known);
  return (
    <>
      <h3>{t.day.lastHours(HOURS)}</h3>
      {known.length > 1 ? (
        <>
          <Spark values={demand} kept={HOURS} limit={limit} label={t.day.demandByHour(share(limit))} />
          <p class="dim">
            {t.day.fromTo(share(Math.min(...known)), share(Math.max(...known)))}
            <Link to={`/calendar?${query}`}>{t.day.whatIsExpected}</Link>
          </p>
        </>
      ) : (
        <p class="dim">{t.day.notKnownYet}</p>
      )}
    </>
  );
}
