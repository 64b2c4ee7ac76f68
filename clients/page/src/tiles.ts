/** Figures that every dashboard has, each with its course over the last ten minutes. */
import { byId, made, percent, whole } from "./dom";
import type { Load } from "./load";

export interface Tile {
  name: string;
  /** Column of the load that is drawn. */
  column: string;
  said: (value: number) => string;
  /** Whether it is left out while it has never been above 0. */
  ifAny?: boolean;
  more?: string | undefined;
}

export const brief = (value: number): string =>
  value >= 1e5 ? `${(value / 1e3).toFixed(0)}k` : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

export const SERVER: Tile[] = [
  { name: "Requests ended/s", column: "requests_per_s", said: brief },
  { name: "Refused/s", column: "refused_per_s", said: brief, ifAny: true },
  { name: "Output tokens/s", column: "output_tokens_per_s", said: brief },
  { name: "Prompt tokens/s", column: "prompt_tokens_per_s", said: brief },
  { name: "Running", column: "running", said: whole },
  { name: "Queue", column: "waiting", said: whole },
  { name: "KV cache used", column: "kv_used", said: percent },
  { name: "Prefix cache hits", column: "prefix_hit_share", said: percent },
  { name: "Drafts accepted", column: "accepted_share", said: percent },
  { name: "Step, ms", column: "step_s", said: (s) => (s * 1e3).toFixed(1) },
  { name: "GPU busy", column: "gpu_busy", said: percent },
  { name: "Power, W", column: "power_w", said: (w) => w.toFixed(0) },
  { name: "J per good request", column: "joules_per_good", said: brief },
];

export const FLEET: Tile[] = [
  { name: "Requests ended/s", column: "requests_per_s", said: brief },
  { name: "Refused/s", column: "refused_per_s", said: brief, ifAny: true },
  { name: "Output tokens/s", column: "output_tokens_per_s", said: brief },
  { name: "Prompt tokens/s", column: "prompt_tokens_per_s", said: brief },
  { name: "Running", column: "running", said: whole },
  { name: "Held", column: "waiting", said: whole },
];

export class Tiles {
  private readonly shown = new Map<string, { box: HTMLElement; value: HTMLElement; more: HTMLElement; canvas: HTMLCanvasElement }>();
  private load: Load | undefined;

  constructor(private readonly into: string, private readonly tiles: Tile[]) {
    addEventListener("resize", () => this.load && this.show(this.load));
  }

  show(load: Load, more: Record<string, string> = {}): void {
    this.load = load;
    const courses: [HTMLCanvasElement, (number | null)[]][] = [];
    for (const tile of this.tiles) {
      const values = load.column(tile.column), last = values.at(-1) ?? null;
      if (!values.some((one) => one !== null && (!tile.ifAny || one > 0))) continue;
      const one = this.of(tile);
      one.value.textContent = last === null ? "–" : tile.said(last);
      one.more.textContent = more[tile.column] ?? "";
      one.box.title = tile.column in more && more[tile.column] !== "" ? "behind the arrow: as running requests are expected to fill it within the next steps" : "";
      courses.push([one.canvas, values]);
    }
    // All texts are written before any size is read: each reading after a writing lays out the whole page.
    const sizes = courses.map(([canvas]) => [canvas.clientWidth, canvas.clientHeight] as const);
    const ink = getComputedStyle(document.body).getPropertyValue("--line-ink");
    courses.forEach(([canvas, values], i) => spark(canvas, values, ...sizes[i]!, ink));
  }

  private of(tile: Tile) {
    let one = this.shown.get(tile.name);
    if (one === undefined) {
      const box = made("div", "", "tile"), value = made("strong"), more = made("small"), canvas = made("canvas");
      canvas.setAttribute("aria-hidden", "true");
      box.append(made("span", tile.name), value, more, canvas);
      one = { box, value, more, canvas };
      this.shown.set(tile.name, one);
      byId(this.into).replaceChildren(...this.tiles.flatMap((each) => this.shown.get(each.name)?.box ?? []));
    }
    return one;
  }
}

/** Draws values as a filled line from 0 to the largest, the latest at the right, a place for each of ten minutes. */
function spark(canvas: HTMLCanvasElement, values: (number | null)[], wide: number, high: number, ink: string): void {
  const scale = devicePixelRatio;
  if (wide === 0) return;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(high * scale);
  const to = canvas.getContext("2d")!, most = Math.max(...values.map((one) => one ?? 0), 1e-9);
  to.scale(scale, scale);
  const x = (i: number) => wide - ((values.length - 1 - i) * wide) / 119, y = (value: number) => high - 1 - (value / most) * (high - 3);
  to.strokeStyle = to.fillStyle = ink;
  to.lineWidth = 1.5;
  let begun = -1;
  const end = (last: number) => {
    if (begun < 0) return;
    to.stroke();
    to.lineTo(x(last), high);
    to.lineTo(x(begun), high);
    to.globalAlpha = 0.15;
    to.fill();
    to.globalAlpha = 1;
    begun = -1;
  };
  values.forEach((value, i) => {
    if (value === null) return end(i - 1);
    if (begun < 0) {
      to.beginPath();
      to.moveTo(x(i), y(value));
      begun = i;
    } else to.lineTo(x(i), y(value));
  });
  end(values.length - 1);
}
