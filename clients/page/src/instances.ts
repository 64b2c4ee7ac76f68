/** One lane an instance: which model it held over the last ten minutes, and when it served none. */
import { byId, onceAFrame } from "./dom";
import type { View } from "./feed";
import { inWords } from "./states";
import { axis, COLOURS, Courses, framed, hatched, seen, written } from "./strips";

const HIGH = 22;
const SPAN_S = 600;
const MOST_PARTS = 60;
const ON_COLOUR = "#0d1117"; // on each of COLOURS at least 5 to 1
interface Held {
  phase: string;
  model: string;
  from_s: number;
}

export class Instances {
  private readonly canvas = byId<HTMLCanvasElement>("held");
  private readonly courses = new Courses<Held>(MOST_PARTS, SPAN_S);
  private names: string[] = [];
  private view: View | undefined;
  private readonly draw = onceAFrame(() => this.drawNow());

  constructor() {
    this.canvas.parentElement!.addEventListener("scroll", () => this.draw());
    addEventListener("resize", () => this.draw());
  }

  show(view: View): void {
    this.view = view;
    const columns = view.columns as string[];
    const place = (name: string) => columns.indexOf(name);
    const [phase, model, since] = [place("phase"), place("model"), place("since_s")] as [number, number, number];
    this.names = Object.keys(view.rows);
    this.courses.keep(new Set(this.names));
    for (const name of this.names) {
      const row = view.rows[name]!;
      const now = { phase: String(row[phase]), model: String(row[model] ?? ""), from_s: Number(row[since]) };
      const last = this.courses.of(name).at(-1);
      if (last?.phase !== now.phase || last.model !== now.model) this.courses.take(name, now, view.at_s);
    }
    this.draw();
  }

  private drawNow(): void {
    const view = this.view;
    if (view === undefined) return;
    const { to, wide, first, last, top, ink, bad, line, dim } = seen(this.canvas, byId("held-rest"), this.names.length, HIGH, axis.HIGH);
    const left = Math.min(150, wide * 0.3);
    const x = (s: number) => left + Math.min(Math.max((s - view.at_s) / SPAN_S + 1, 0), 1) * (wide - left - 3);
    const models = Object.keys(view.models as Record<string, unknown>);
    to.fillStyle = line;
    const marks = Array.from({ length: 6 }, (_, i) => SPAN_S - 120 * i);
    for (const s of marks) to.fillRect(x(view.at_s - s), axis.HIGH, 1, this.canvas.clientHeight);
    axis.draw(to, marks.map((s) => [x(view.at_s - s) - (s === 0 ? 12 : 0), s === 0 ? "now" : `−${s / 60} min`]), dim, [[2, "instance"]]);
    to.save();
    to.beginPath();
    to.rect(0, axis.HIGH, wide, this.canvas.clientHeight);
    to.clip();
    this.names.slice(first, last).forEach((name, i) => {
      const y = top(first + i), parts = this.courses.of(name);
      to.fillStyle = ["lost", "failed"].includes(parts.at(-1)!.phase) ? bad : ink;
      written(to, name, 2, y + HIGH / 2, left - 8);
      parts.forEach((part, p) => {
        const from = x(part.from_s), w = Math.max(x(parts[p + 1]?.from_s ?? view.at_s) - from, 1);
        const place = models.indexOf(part.model), colour = place < 0 ? dim : COLOURS[place % COLOURS.length]!;
        to.fillStyle = colour;
        if (part.phase === "empty") return;
        if (part.phase === "lost" || part.phase === "failed") framed(to, bad, from, y + 3, w, HIGH - 6);
        else if (part.phase === "serving") to.fillRect(from, y + 3, w, HIGH - 6);
        else hatched(to, from, y + 3, w, HIGH - 6);
        label(to, part, from, y + HIGH / 2, w, bad);
      });
    });
    to.restore();
  }
}

/** The model's name where a bar has room for it, so that no colour has to be looked up. */
function label(to: CanvasRenderingContext2D, part: Held, x: number, y: number, w: number, bad: string): void {
  const is = part.phase === "serving", text = is ? part.model : inWords(part.phase);
  if ((!is && part.phase !== "lost" && part.phase !== "failed") || w < 24) return;
  to.fillStyle = is ? ON_COLOUR : bad;
  written(to, text, x + 5, y + 1, w - 8);
}
