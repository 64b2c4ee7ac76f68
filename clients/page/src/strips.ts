/** Bars over time, one lane each, in a box that scrolls: what the lanes of requests and of instances have in common. */

export const COLOURS = ["#2f81f7", "#1a9e5c", "#a371f7", "#d29922", "#db61a2", "#0aa2c0"];

interface Part {
  from_s: number;
}

/** What each lane was at and since when: at most `most` parts, and none that ended before `span_s` ago. */
export class Courses<P extends Part> {
  private readonly parts = new Map<string, P[]>();

  constructor(private readonly most: number, private readonly span_s: number) {}

  of(key: string): P[] {
    return this.parts.get(key) ?? [];
  }

  /** Lanes that are no longer there are forgotten. */
  keep(live: Set<string>): void {
    for (const key of this.parts.keys()) if (!live.has(key)) this.parts.delete(key);
  }

  take(key: string, part: P, at_s: number): void {
    const parts = this.of(key);
    parts.push(part);
    while (parts.length > 1 && (parts.length > this.most || parts[1]!.from_s < at_s - this.span_s)) parts.shift();
    this.parts.set(key, parts);
  }
}

/** A canvas in its box, made as high as what is seen of `count` lanes below `head` pixels for an axis. Returns what to
 * draw on, and which lanes. */
export function seen(canvas: HTMLCanvasElement, rest: HTMLElement, count: number, lane: number, head = 0): Seen {
  const box = canvas.parentElement!;
  const wide = canvas.clientWidth, all = Math.max(count, 1) * lane + head;
  const high = Math.min(all, Math.floor(innerHeight * 0.6));
  rest.style.height = `${all - high}px`;
  const scale = devicePixelRatio;
  if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) {
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(high * scale);
    canvas.style.height = `${high}px`;
  }
  const to = canvas.getContext("2d")!;
  to.setTransform(scale, 0, 0, scale, 0, 0);
  to.clearRect(0, 0, wide, high);
  to.font = "12px system-ui, sans-serif";
  to.textBaseline = "middle";
  const look = getComputedStyle(document.body);
  const colour = (name: string) => look.getPropertyValue(name);
  const first = Math.floor(box.scrollTop / lane);
  return {
    to, wide, high, first, last: first + Math.ceil(high / lane) + 1, top: (place) => head + place * lane - box.scrollTop,
    ink: colour("--ink"), bad: colour("--bad"), line: colour("--line"), dim: colour("--dim"),
  };
}

interface Seen {
  to: CanvasRenderingContext2D;
  wide: number;
  high: number;
  first: number;
  last: number;
  top: (place: number) => number;
  ink: string;
  bad: string;
  line: string;
  dim: string;
}

/** Text at the left of a middle line, as much of it as has room, with an ellipsis for what has not. */
export function written(to: CanvasRenderingContext2D, text: string, x: number, y: number, w: number): void {
  const fits = (length: number) => to.measureText(text.slice(0, length) + "…").width <= w;
  if (to.measureText(text).width <= w) return to.fillText(text, x, y);
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (fits(middle)) least = middle;
    else most = middle - 1;
  }
  if (least > 0) to.fillText(text.slice(0, least) + "…", x, y);
}

/** The axis of time above the lanes, which stays while they scroll. */
export const axis = {
  HIGH: 20,
  /** Draws marks at their places, as long as none overlaps the one before, and the names of columns. */
  draw(to: CanvasRenderingContext2D, marks: [number, string][], dim: string, columns: [number, string][]): void {
    to.fillStyle = dim;
    for (const [x, name] of columns) to.fillText(name, x, axis.HIGH / 2);
    const [first, second] = columns;
    let last = first === undefined ? -6 : first[0] + to.measureText(first[1]).width;
    for (const [x, name] of marks) {
      const w = to.measureText(name).width, from = x - w / 2;
      if (from < last + 6 || from + w > (second?.[0] ?? Infinity) - 6) continue;
      to.fillText(name, from, axis.HIGH / 2);
      last = from + w;
    }
  },
};

export function hatched(to: CanvasRenderingContext2D, x: number, y: number, w: number, h: number): void {
  for (let at = x; at < x + w; at += 6) to.fillRect(at, y, Math.min(3, x + w - at), h);
}

export function framed(to: CanvasRenderingContext2D, colour: string, x: number, y: number, w: number, h: number): void {
  to.strokeStyle = colour;
  to.setLineDash([3, 3]);
  to.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 1), h - 1);
  to.setLineDash([]);
}
