/** *Calendar of demand*: when it will be high in the next seven days, and when it usually is; of a pool, model or tenant. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { get } from "../api/client";
import { command } from "../api/commands";
import type { Forecast, ForecastHour, ForecastSeries } from "../api/types";
import { useLoaded } from "../live/loading";
import { Elsewhere, Empty, Field, valueOf } from "../ui/basics";
import { param, setParams } from "../ui/router";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { inWords, share } from "../ui/words";
import { t } from "../texts";

const LEVELS = 6;
const HOURS = 24;
const FIRST_FORECAST_HOURS = 72;
const FRESH_MS = 300_000;

/** One hour on the wall. A day on which clocks are put forward lacks one; of two at one place the higher is shown. */
interface Cell {
  milli: number;
  low: number | null;
  high: number | null;
}

interface Day {
  title: string;
  /** By the hour on the wall; null: not known, or not on the clock. */
  cells: (Cell | null)[];
}

export function Calendar(): JSX.Element {
  const series = param("series");
  const usual = param("show") === "usual";
  const all = useLoaded((abort) => get<Forecast>("/forecast", undefined, abort), [], { everyMs: FRESH_MS });
  const one = useLoaded((abort) => get<Forecast>(`/forecast?series=${encodeURIComponent(series)}`, undefined, abort), [series], { everyMs: FRESH_MS });
  const names = (all.value?.series ?? []).filter((each) => each.kind).map(nameOf);
  return (
    <>
      <Heading title={t.common.calendarOfDemand} />
      <div class="row">
        <Field label={t.calendar.of}>
          <select value={series} onChange={(event) => setParams({ series: valueOf(event) })}>
            <option value="">{t.common.wholePool}</option>
            {[...new Set([...names, ...(series ? [series] : [])])].sort().map((name) => (
              <option value={name}>{titleOf(name)}</option>
            ))}
          </select>
        </Field>
        <Field label={t.calendar.show}>
          <select value={usual ? "usual" : ""} onChange={(event) => setParams({ show: valueOf(event) })}>
            <option value="">{t.calendar.next7Days}</option>
            <option value="usual">{t.calendar.asItUsuallyWas}</option>
          </select>
        </Field>
      </div>
      <Shown of={one} what={t.calendar.readingForecast}>
        {(found) => <Demand key={`${series} ${usual}`} found={found} usual={usual} />}
      </Shown>
      <Elsewhere
        call={{ method: "GET", path: "/forecast", query: { series } }}
        command={command("forecast", series || "all", "--hours", "168")}
      />
    </>
  );
}

const titleOf = (name: string): string => {
  const [kind = "", ...rest] = name.split("/");
  return `${inWords(kind)} ${rest.join("/")}`;
};

const nameOf = (each: ForecastSeries): string => `${each.kind}/${each.name}`;

function Demand(props: { found: Forecast; usual: boolean }): JSX.Element {
  const { found, usual } = props;
  const series = found.series[0];
  const days = useMemo(() => (series ? (usual ? week(series.hours) : ahead(series.hours)) : []), [series, usual]);
  const known = days.some((day) => day.cells.some(Boolean));
  if (!series || !known) return <Empty>{missing(found, usual)}</Empty>;
  return (
    <section class="card">
      <h2>{usual ? t.calendar.meanOfEachHourOf : t.calendar.expectedDemandHourByHour}</h2>
      {!usual && <p class="dim">{madeBy(series)}</p>}
      <Heat days={days} usual={usual} />
      <details>
        <summary>{t.calendar.sameAsText}</summary>
        <Table
          label={t.calendar.peaksByDay}
          columns={[
            { title: t.calendar.day, cell: (day: Day) => day.title },
            { title: t.calendar.most, cell: (day: Day) => said(extreme(day, 1), usual), right: true },
            { title: t.calendar.least, cell: (day: Day) => said(extreme(day, -1), usual), right: true },
          ]}
          rows={days}
          keyOf={(day) => day.title}
        />
      </details>
    </section>
  );
}

/** Why there is nothing to show. */
function missing(found: Forecast, usual: boolean): string {
  if (!found.hours_known) return t.calendar.noHourOfDemandIs;
  if (usual) return t.calendar.nothingIsKnownOfThis;
  if (!found.from_ms)
    return t.calendar.noForecastYet(found.hours_known);
  return t.calendar.thereIsNoForecastOf;
}

function madeBy(series: ForecastSeries): string {
  if (series.method === "last")
    return t.calendar.lastValue(FIRST_FORECAST_HOURS);
  if (series.method === "withdrawn")
    return t.calendar.boundsOfLatestWeekDid;
  return t.calendar.heldAndWaitedForIn;
}

function ahead(hours: readonly ForecastHour[]): Day[] {
  const days = new Map<string, Day>();
  for (const hour of hours) {
    if (hour.past) continue;
    const at = new Date(hour.start_ms);
    const title = at.toLocaleDateString(t.locale, { weekday: "short", day: "numeric", month: "short" });
    put(days, title, at.getHours(), hour.milli === null ? null : { milli: hour.milli, low: hour.low_milli, high: hour.high_milli });
  }
  return [...days.values()];
}

/** From Monday on, which the first of January 2024 was. */
const WEEK = Array.from({ length: 7 }, (_, day) =>
  new Date(Date.UTC(2024, 0, 1 + day)).toLocaleDateString(t.locale, { weekday: "long", timeZone: "UTC" }),
);

function week(hours: readonly ForecastHour[]): Day[] {
  const seen = new Map<number, number[]>();
  for (const hour of hours) {
    if (!hour.past || hour.milli === null) continue;
    const at = new Date(hour.start_ms);
    const place = ((at.getDay() + 6) % 7) * HOURS + at.getHours();
    seen.set(place, [...(seen.get(place) ?? []), hour.milli]);
  }
  return WEEK.map((title, day) => ({
    title,
    cells: Array.from({ length: HOURS }, (_, hour) => {
      const values = seen.get(day * HOURS + hour);
      if (!values) return null;
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      return { milli: Math.round(mean), low: Math.min(...values), high: Math.max(...values) };
    }),
  }));
}

function put(days: Map<string, Day>, title: string, hour: number, cell: Cell | null): void {
  const day = days.get(title) ?? { title, cells: Array<Cell | null>(HOURS).fill(null) };
  days.set(title, day);
  const there = day.cells[hour];
  if (cell && (!there || there.milli < cell.milli)) day.cells[hour] = cell;
}

/** The hour with the most (1) or the least (-1) of a day. */
function extreme(day: Day, sign: number): { hour: number; cell: Cell } | null {
  let found: { hour: number; cell: Cell } | null = null;
  day.cells.forEach((cell, hour) => {
    if (cell && (!found || sign * cell.milli > sign * found.cell.milli)) found = { hour, cell };
  });
  return found;
}

const clock = (hour: number): string => `${String(hour).padStart(2, "0")}:00`;

const devices = (milli: number): string => share(Math.round(milli / 10) * 10);

function said(found: { hour: number; cell: Cell } | null, usual: boolean): string {
  if (!found) return t.common.notKnown;
  return t.calendar.at(devices(found.cell.milli), clock(found.hour), bounds(found.cell, usual));
}

function bounds(cell: Cell, usual: boolean): string {
  if (cell.high === null) return "";
  const high = devices(cell.high);
  if (cell.low === null) return usual ? t.calendar.seenUpTo(high) : t.calendar.upTo(high);
  return (usual ? t.calendar.seenFromTo : t.calendar.fromTo)(devices(cell.low), high);
}

/** A grid of which one cell at a time is in the order of Tab; arrows, Home and End go from there. */
function Heat(props: { days: Day[]; usual: boolean }): JSX.Element {
  const { days, usual } = props;
  const own = useRef<HTMLDivElement>(null);
  const top = Math.max(1, ...days.flatMap((day) => day.cells.map((cell) => cell?.milli ?? 0)));
  const at = useSignal(peakOf(days));
  const moved = useSignal(false);
  useLayoutEffect(() => {
    if (moved.value) own.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
  }, [at.value]);
  const words = (day: number, hour: number): string => {
    const cell = days[day]?.cells[hour];
    const said = cell ? t.calendar.devices(devices(cell.milli)) + bounds(cell, usual) : t.common.notKnown;
    return t.calendar.cell(days[day]?.title ?? "", clock(hour), said);
  };
  const keys = (event: KeyboardEvent): void => {
    const { day, hour } = at.value;
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const [days_, hours_] = step;
    moved.value = true;
    at.value = {
      day: Math.min(Math.max(day + days_, 0), days.length - 1),
      hour: Math.min(Math.max(hour + hours_, 0), HOURS - 1),
    };
  };
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return (
    <>
      <div class="heat" role="grid" aria-label={t.calendar.gridIn(zone)} ref={own} onKeyDown={keys}>
        <div class="heat-row" role="row">
          <span class="heat-day" role="columnheader">
            {zone}
          </span>
          {Array.from({ length: HOURS }, (_, hour) => (
            <span class="heat-hour" role="columnheader" aria-label={clock(hour)}>
              {hour % 6 ? "" : hour}
            </span>
          ))}
        </div>
        {days.map((day, row) => (
          <div class="heat-row" role="row">
            <span class="heat-day" role="rowheader">
              {day.title}
            </span>
            {day.cells.map((cell, hour) => {
              const chosen = row === at.value.day && hour === at.value.hour;
              const most = extreme(day, 1)?.hour === hour;
              return (
                <span
                  role="gridcell"
                  class={`heat-cell ${cell ? `level-${level(cell.milli, top)}` : "unknown"}${most ? " most" : ""}`}
                  tabIndex={chosen ? 0 : -1}
                  aria-selected={chosen}
                  aria-label={words(row, hour)}
                  title={words(row, hour)}
                  onFocus={() => (at.value = { day: row, hour })}
                  onClick={() => (at.value = { day: row, hour })}
                />
              );
            })}
          </div>
        ))}
      </div>
      <p role="status">{words(at.value.day, at.value.hour)}</p>
      <p class="legend">
        <span>
          <span class="heat-cell level-0" /> 0
        </span>
        <span>
          <span class={`heat-cell level-${LEVELS - 1}`} /> {t.calendar.devices(devices(top))}
        </span>
        <span>
          <span class="heat-cell unknown" /> {t.common.notKnown}
        </span>
        <span>
          <span class="heat-cell level-0 most" /> {t.calendar.mostOfItsDay}
        </span>
      </p>
    </>
  );
}

const STEPS: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  Home: [0, -HOURS],
  End: [0, HOURS],
  PageUp: [-7, 0],
  PageDown: [7, 0],
};

const level = (milli: number, top: number): number => Math.min(LEVELS - 1, Math.ceil(((LEVELS - 1) * milli) / top));

function peakOf(days: Day[]): { day: number; hour: number } {
  let best = { day: 0, hour: 0, milli: -1 };
  days.forEach((day, row) => {
    const found = extreme(day, 1);
    if (found && found.cell.milli > best.milli) best = { day: row, hour: found.hour, milli: found.cell.milli };
  });
  return { day: best.day, hour: best.hour };
}
