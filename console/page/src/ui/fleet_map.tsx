/**
 * A picture of all devices: each a cell, those of a node side by side, with the node's name where there is room for it.
 *
 * Cells are painted into an array of pixels: 80,000 of them take a few milliseconds. What the colours are the legend says,
 * in the style sheet; the pixels are read off it.
 */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { theme } from "../live/theme";
import type { Columns, FleetNode } from "../live/fleet";
import { t } from "../texts";
import { inWords, UNKNOWN } from "./words";

export interface Shown {
  nodes: FleetNode[];
  devices: number;
}

interface Props {
  columns: Columns;
  version: number;
  shown: Shown;
  /** Percent of each device; 255: unknown. */
  column: Uint8Array;
  onOpen: (node: FleetNode) => void;
  describe: (node: FleetNode, at: number) => string;
}

/** Cells are at least this large, in pixels of the page, and at most that, or that where there are few. */
const CELL_MIN = 3;
const CELL_MAX = 30;
const LARGE_MAX = 96;
const FEW = 200;
/** In cells of this size there is room for what they are. */
const LABELLED_FROM = 60;
/** With cells of this size a node's name has room above it. */
const NAMED_FROM = 13;
const NAME_PX = 15;
const HEIGHT_WANTED = 620;
const PER_ROW = 4;
const DRAWN = "fleet-drawn";

interface Layout {
  cell: number;
  /** From one cell to the next, in pixels of the page. */
  pitch: number;
  width: number;
  height: number;
  perLine: number;
  blockWidth: number;
  blockHeight: number;
  named: boolean;
  labelled: boolean;
}

function layOut(shown: Shown, width: number): Layout {
  const most = shown.nodes.reduce((found, node) => Math.max(found, node.devices), 1);
  const across = Math.min(PER_ROW, most);
  const rows = Math.ceil(most / across);
  let layout: Layout | undefined;
  for (let cell = shown.devices < FEW ? LARGE_MAX : CELL_MAX; cell >= CELL_MIN; cell--) {
    const named = cell >= NAMED_FROM;
    const gap = cell >= 8 ? 8 : cell >= 5 ? 4 : 2;
    const pitch = cell >= 5 ? cell + 1 : cell;
    const blockWidth = across * pitch + gap;
    const blockHeight = rows * pitch + gap + (named ? NAME_PX : 0);
    const perLine = Math.max(1, Math.floor((width + gap) / blockWidth));
    const height = Math.ceil(shown.nodes.length / perLine) * blockHeight;
    layout = { cell, pitch, width, height: Math.max(height, 1), perLine, blockWidth, blockHeight, named, labelled: cell >= LABELLED_FROM };
    if (height <= HEIGHT_WANTED) break;
  }
  return layout as Layout;
}

const OTHERS: [string, string][] = [
  ["closed", inWords("closed")],
  ["sick", inWords("sick")],
  ["away", t.fleetMap.noAgentYet],
  ["suspect", inWords("suspect")],
  ["lost", inWords("lost")],
  ["unknown", t.fleetMap.useUnknown],
];

export function FleetMap(props: Props): JSX.Element {
  const { columns, shown, column, version } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const legend = useRef<HTMLParagraphElement>(null);
  const width = useSignal(0);
  const at = useSignal<{ node: number; device: number } | null>(null);
  const hint = useSignal("");
  const layout = useMemo(() => (width.value ? layOut(shown, width.value) : undefined), [shown, width.value]);
  const dark = useSignal(0);
  const picture = useRef<Picture | undefined>(undefined);

  useLayoutEffect(() => {
    const own = canvas.current;
    if (!own?.parentElement) return undefined;
    const observer = new ResizeObserver(() => (width.value = own.parentElement?.clientWidth ?? 0));
    observer.observe(own.parentElement);
    width.value = own.parentElement.clientWidth;
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const turned = (): void => void dark.value++;
    scheme.addEventListener("change", turned);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", turned);
    };
  }, []);

  const colours = useMemo(
    () => (legend.current ? readColours(legend.current) : undefined),
    [legend.current, theme.value, dark.value],
  );

  // Before the frame is shown, not after it.
  useLayoutEffect(() => {
    if (!canvas.current || !layout || !legend.current) return;
    picture.current = draw(canvas.current, layout, props, colours ?? readColours(legend.current), at.value, picture.current);
    columns.touched = [];
    if (!columns.undrawnMs) return;
    // For whoever measures: the last one alone is kept.
    performance.clearMeasures(DRAWN);
    performance.measure(DRAWN, { start: columns.undrawnMs });
    columns.undrawnMs = 0;
  }, [layout, column, version, colours, at.value, columns.layout]);

  const find = (event: MouseEvent): { node: number; device: number } | null => {
    const box = canvas.current?.getBoundingClientRect();
    if (!box || !layout) return null;
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const block = Math.floor(y / layout.blockHeight) * layout.perLine + Math.floor(x / layout.blockWidth);
    const node = shown.nodes[block];
    if (!node || x >= layout.perLine * layout.blockWidth) return null;
    const across = Math.floor((x % layout.blockWidth) / layout.pitch);
    const down = Math.floor(((y % layout.blockHeight) - (layout.named ? NAME_PX : 0)) / layout.pitch);
    const device = Math.max(0, down) * PER_ROW + Math.min(across, PER_ROW - 1);
    return { node: block, device: Math.min(device, node.devices - 1) };
  };
  const point = (found: { node: number; device: number } | null): void => {
    at.value = found;
    const node = found && shown.nodes[found.node];
    hint.value = node ? props.describe(node, found.device) : "";
  };
  const move = (event: KeyboardEvent): void => {
    if (!layout) return;
    const now = at.value ?? { node: 0, device: 0 };
    const node = shown.nodes[now.node];
    if (!node) return;
    if (event.key === "Enter") props.onOpen(node);
    else {
      const step: Record<string, number> = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: layout.perLine,
        ArrowUp: -layout.perLine,
        Home: -now.node,
        End: shown.nodes.length,
      };
      const by = step[event.key];
      if (by === undefined) return;
      point({ node: Math.max(0, Math.min(shown.nodes.length - 1, now.node + by)), device: 0 });
    }
    event.preventDefault();
  };
  return (
    <div class="fleet">
      <p class="hint" role="status">
        <bdi>{hint.value || t.fleetMap.pointAtDeviceToSee}</bdi>
      </p>
      <p class="legend" ref={legend}>
        {t.fleetMap.ramp.map((title, level) => (
          <span>
            <i class={`swatch level${level}`} />
            {title}
          </span>
        ))}
        {OTHERS.map(([name, title]) => (
          <span>
            <i class={`swatch at-${name}`} />
            {title}
          </span>
        ))}
      </p>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={t.fleetMap.allDevicesAsPictureArrow}
        onPointerMove={(event) => point(find(event))}
        onPointerLeave={() => point(null)}
        onClick={(event) => {
          const node = shown.nodes[find(event)?.node ?? -1];
          if (node) props.onOpen(node);
        }}
        onKeyDown={move}
        onFocus={() => at.value ?? point(shown.nodes.length ? { node: 0, device: 0 } : null)}
      />
    </div>
  );
}

interface Colours {
  levels: number[];
  closed: number;
  sick: number;
  away: number;
  suspect: number;
  lost: number;
  unknown: number;
  mark: number;
  text: string;
}

/** What the style sheet says, as pixels. */
function readColours(legend: HTMLElement): Colours {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const pixel = (name: string): number => {
    const found = legend.querySelector(`.${name}`);
    if (!context || !found) return 0;
    context.fillStyle = getComputedStyle(found).backgroundColor;
    context.fillRect(0, 0, 1, 1);
    const [red = 0, green = 0, blue = 0] = context.getImageData(0, 0, 1, 1).data;
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  };
  return {
    levels: t.fleetMap.ramp.map((_, level) => pixel(`level${level}`)),
    closed: pixel("at-closed"),
    sick: pixel("at-sick"),
    away: pixel("at-away"),
    suspect: pixel("at-suspect"),
    lost: pixel("at-lost"),
    unknown: pixel("at-unknown"),
    mark: 0xffffffff,
    text: getComputedStyle(legend).color,
  };
}

/** What was drawn last: where only a few devices have changed, only those are painted again. */
interface Picture {
  image: ImageData;
  pixels: Uint32Array;
  layout: Layout;
  colours: Colours;
  column: Uint8Array;
  pointed: { node: number; device: number } | null;
  /** Where each device is, as an index of pixels; -1: it is not shown. */
  places: Int32Array;
}

function draw(
  canvas: HTMLCanvasElement,
  layout: Layout,
  props: Props,
  colours: Colours,
  pointed: Picture["pointed"],
  before: Picture | undefined,
): Picture {
  const { columns, shown, column } = props;
  const scale = Math.max(1, Math.min(2, Math.round(devicePixelRatio)));
  const [width, height] = [layout.width * scale, layout.height * scale];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const cell = layout.cell * scale;
  const same =
    before?.layout === layout && before.colours === colours && before.column === column && before.pointed === pointed;
  if (same && columns.touched && !pointed && !layout.labelled && before.image.width === width) {
    let [top, bottom] = [height, 0];
    for (const number of columns.touched) {
      const place = before.places[number] ?? -1;
      if (place < 0) continue;
      paint(before.pixels, width, place, cell, columns.states[number] ?? 0, column[number] ?? 0, colours);
      const y = Math.floor(place / width);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + cell);
    }
    if (bottom > top) context.putImageData(before.image, 0, 0, 0, top, width, bottom - top);
    if (layout.named) writeNames(context, layout, shown, colours, scale);
    return before;
  }
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.height = `${layout.height}px`;
  }
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const places = new Int32Array(columns.size).fill(-1);
  shown.nodes.forEach((node, block) => {
    const left = (block % layout.perLine) * layout.blockWidth * scale;
    const top = (Math.floor(block / layout.perLine) * layout.blockHeight + (layout.named ? NAME_PX : 0)) * scale;
    for (let device = 0; device < node.devices; device++) {
      const number = node.first + device;
      const state = columns.states[number] ?? 0;
      if (!state) continue;
      const x = left + (device % PER_ROW) * layout.pitch * scale;
      const y = top + Math.floor(device / PER_ROW) * layout.pitch * scale;
      places[number] = y * width + x;
      paint(pixels, width, y * width + x, cell, state, column[number] ?? 0, colours);
    }
  });
  context.putImageData(image, 0, 0);
  if (layout.named) writeNames(context, layout, shown, colours, scale);
  if (layout.labelled) writeLabels(context, layout, props, colours, scale);
  const node = pointed && shown.nodes[pointed.node];
  if (node) {
    context.scale(scale, scale);
    context.strokeStyle = colours.text;
    context.lineWidth = 2;
    const x = (pointed.node % layout.perLine) * layout.blockWidth;
    const y = Math.floor(pointed.node / layout.perLine) * layout.blockHeight + (layout.named ? NAME_PX : 0);
    const rows = Math.ceil(node.devices / PER_ROW);
    context.strokeRect(x, y, Math.min(PER_ROW, node.devices) * layout.pitch, rows * layout.pitch);
    context.setTransform(1, 0, 0, 1, 0, 0);
  }
  return { image, pixels, layout, colours, column, pointed, places };
}

function writeNames(
  context: CanvasRenderingContext2D,
  layout: Layout,
  shown: Shown,
  colours: Colours,
  scale: number,
): void {
  context.scale(scale, scale);
  context.fillStyle = colours.text;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  shown.nodes.forEach((node, block) => {
    const x = (block % layout.perLine) * layout.blockWidth;
    const y = Math.floor(block / layout.perLine) * layout.blockHeight + 1;
    context.clearRect(x, y, layout.blockWidth, NAME_PX - 2);
    context.fillText(cut(node.name, layout.blockWidth), x, y);
  });
  context.setTransform(1, 0, 0, 1, 0, 0);
}

/** In each cell its number and model, and how much of it is what the picture shows. */
function writeLabels(context: CanvasRenderingContext2D, layout: Layout, props: Props, colours: Colours, scale: number): void {
  const { columns, shown, column } = props;
  context.scale(scale, scale);
  context.textBaseline = "top";
  shown.nodes.forEach((node, block) => {
    const left = (block % layout.perLine) * layout.blockWidth;
    const top = Math.floor(block / layout.perLine) * layout.blockHeight + NAME_PX;
    for (let device = 0; device < node.devices; device++) {
      const state = columns.states[node.first + device] ?? 0;
      if (!state) continue;
      const value = column[node.first + device] ?? 0;
      const x = left + (device % PER_ROW) * layout.pitch + 6;
      const y = top + Math.floor(device / PER_ROW) * layout.pitch + 6;
      context.fillStyle = readableOn(colourOf(state, value, colours));
      context.font = "11px system-ui, sans-serif";
      context.fillText(cut(`${device} ${columns.modelOf(node, device)}`, layout.cell - 12), x, y);
      context.font = "600 17px system-ui, sans-serif";
      context.fillText(value > 100 ? UNKNOWN : `${value} %`, x, y + layout.cell - 34);
    }
  });
  context.setTransform(1, 0, 0, 1, 0, 0);
}

/** Black or white, whichever is further from a colour. */
function readableOn(colour: number): string {
  const [red, green, blue] = [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
}

/** A name within a block's width: the end of a name tells nodes apart, not its beginning. */
function cut(name: string, width: number): string {
  const letters = Math.max(4, Math.floor(width / 6.2));
  return name.length <= letters ? name : `…${[...name].slice(1 - letters).join("")}`;
}

function paint(
  pixels: Uint32Array,
  width: number,
  place: number,
  size: number,
  state: number,
  percent: number,
  colours: Colours,
): void {
  const colour = state ? colourOf(state, percent, colours) : 0;
  for (let down = 0, from = place; down < size; down++, from += width) {
    for (let at = from; at < from + size; at++) pixels[at] = colour;
  }
  // Never the colour alone: what is sick or lost is crossed out, what is closed or away has a line through it.
  if (state <= 1 || size < 5) return;
  for (let step = 0; step < size; step++) {
    pixels[place + step * width + step] = colours.mark;
    if (state === 3 || state === 6) pixels[place + step * width + size - 1 - step] = colours.mark;
  }
}

function colourOf(state: number, percent: number, colours: Colours): number {
  if (state === 2) return colours.closed;
  if (state === 3) return colours.sick;
  if (state === 4) return colours.away;
  if (state === 5) return colours.suspect;
  if (state === 6) return colours.lost;
  if (percent > 100) return colours.unknown;
  const level = percent === 0 ? 0 : percent >= 100 ? 5 : Math.min(4, 1 + Math.floor((percent - 1) / 25));
  return colours.levels[level] ?? 0;
}
