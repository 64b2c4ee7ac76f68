/** One lane a live request: what it did within the last minute, and its deadline. A chosen one says why it waits. */
import { byId, due, duration, sentence } from "./dom";
import type { View } from "./feed";
import { COLOURS, Courses, framed, hatched, seen, written } from "./strips";

const HIGH = 16;
const SPAN_S = 60;
const AHEAD_S = 15;
const LINE_EVERY_S = 15;
const LATE = "late ";
interface Part {
  phase: string;
  from_s: number;
}
export interface Request {
  key: string;
  name: string;
  classId: number;
  phase: string;
  arrival_s: number;
  since_s: number;
  due_s: number | null;
  ahead: number;
  why: number;
  figure: number | null;
  of: number | null;
  prompt: number;
  output: number;
}

export function requests(view: View): Request[] {
  const at = Object.fromEntries((view.columns as string[]).map((name, i) => [name, i])) as Record<string, number>;
  const classes = view.classes as string[];
  const phases = view.phases as string[];
  const found = Object.entries(view.rows).map(([key, row]) => {
    const value = (name: string) => row[at[name]!] as number;
    const classId = value("class_id");
    return {
      key, classId, name: classes[classId] ?? "", phase: phases[value("phase")] ?? "", arrival_s: value("arrival_s"),
      since_s: value("since_s"), due_s: value("due_s") as number | null, ahead: value("ahead"), why: value("why"),
      figure: value("figure") as number | null, of: value("of") as number | null,
      prompt: value("prompt_tokens"), output: value("output_tokens"),
    };
  });
  return found.sort((a, b) => (a.due_s ?? Infinity) - (b.due_s ?? Infinity) || a.arrival_s - b.arrival_s);
}

/** A cause as the server says it, with its figures. */
export function said(view: View, why: number, figure: number | null, of: number | null): string {
  return sentence((view.says as string[])[why] ?? "", figure, of);
}

export class Lanes {
  private canvas = byId<HTMLCanvasElement>("lanes");
  private box = byId("scrolled");
  private readonly courses = new Courses<Part>(40, SPAN_S);
  private shown: Request[] = [];
  private view: View | undefined;
  private chosen: string | undefined;

  constructor() {
    this.canvas.addEventListener("click", (event) => {
      const place = Math.floor((event.clientY - this.canvas.getBoundingClientRect().top + this.box.scrollTop) / HIGH);
      this.choose(place);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step === undefined || this.shown.length === 0) return;
      event.preventDefault();
      const now = this.shown.findIndex((one) => one.key === this.chosen);
      this.choose(Math.min(Math.max(now + step, 0), this.shown.length - 1));
    });
    this.box.addEventListener("scroll", () => this.draw());
    addEventListener("resize", () => this.draw());
  }

  show(view: View): void {
    this.view = view;
    this.shown = requests(view);
    this.courses.keep(new Set(this.shown.map((one) => one.key)));
    for (const one of this.shown) {
      const last = this.courses.of(one.key).at(-1);
      if (last === undefined && one.since_s > one.arrival_s) this.courses.take(one.key, { phase: "unseen", from_s: one.arrival_s }, view.at_s);
      if (last?.phase !== one.phase) this.courses.take(one.key, { phase: one.phase, from_s: one.since_s }, view.at_s);
    }
    this.draw();
    this.tell();
  }

  private choose(place: number): void {
    this.chosen = this.shown[place]?.key;
    const { box } = this, top = place * HIGH;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + HIGH > box.scrollTop + this.canvas.clientHeight) box.scrollTop = top + HIGH - this.canvas.clientHeight;
    this.draw();
    this.tell();
  }

  private tell(): void {
    const view = this.view;
    if (view === undefined || this.chosen === undefined) return;
    const one = this.shown.find((request) => request.key === this.chosen);
    byId("why").textContent = one === undefined ? `Request ${this.chosen} has ended.` : this.story(view, one);
  }

  private story(view: View, one: Request): string {
    const left = one.due_s === null ? null : one.due_s - view.at_s;
    const when = left === null ? "" : `, ${left < 0 ? "" : "due in "}${due(left)}`;
    const head = `Request ${one.key} (${one.name}): ${one.phase} for ${duration(view.at_s - one.since_s)}${when}; ` +
      `${one.prompt} prompt tokens, ${one.output} output. `;
    if (one.why > 0) return head + capital(said(view, one.why, one.figure, one.of)) + ".";
    if (one.ahead < 0) return head;
    const rank = Number(one.key.split("-")[0]);
    const engine = (view.engines as { rank: number; held_up: [number, number | null, number | null] }[]).find((e) => e.rank === rank);
    const first = engine === undefined || engine.held_up[0] === 0 ? "" : ` The first in the queue waits: ${said(view, ...engine.held_up)}.`;
    return head + (one.ahead === 0 ? "It is the first in the queue." : `${one.ahead} are admitted before it.`) + first;
  }

  private draw(): void {
    const view = this.view;
    if (view === undefined) return;
    const { to, wide, high, first, last, top, ink, bad, line } = seen(this.canvas, byId("rest"), this.shown.length, HIGH);
    const names = Math.min(170, wide * 0.35);
    const x = (s: number) => names + (Math.min(Math.max((s - view.at_s + SPAN_S) / (SPAN_S + AHEAD_S), 0), 1)) * (wide - names - 3);
    to.fillStyle = line;
    for (let s = -SPAN_S; s <= AHEAD_S; s += LINE_EVERY_S) to.fillRect(x(view.at_s + s), 0, 1, high);
    const marked = to.measureText(LATE).width;
    this.shown.slice(first, last).forEach((one, i) => {
      const y = top(first + i), colour = COLOURS[one.classId % COLOURS.length]!;
      if (one.key === this.chosen) {
        to.fillStyle = line;
        to.fillRect(0, y, wide, HIGH);
      }
      const isLate = one.due_s !== null && one.due_s < view.at_s;
      to.fillStyle = isLate ? bad : ink;
      if (isLate) to.fillText(LATE, names - marked - 3, y + HIGH / 2);
      written(to, `${one.key} ${one.name}`, 2, y + HIGH / 2, names - (isLate ? marked : 0) - 8);
      const parts = this.courses.of(one.key);
      parts.forEach((part, p) => {
        if ((parts[p + 1]?.from_s ?? view.at_s) < view.at_s - SPAN_S) return;
        const from = x(part.from_s), wideOf = Math.max(x(parts[p + 1]?.from_s ?? view.at_s) - from, 1);
        this.part(to, part.phase, colour, ink, from, y + 3, wideOf, HIGH - 6);
      });
      if (one.due_s !== null && one.due_s > view.at_s - SPAN_S && one.due_s < view.at_s + AHEAD_S) {
        to.fillStyle = bad;
        to.fillRect(x(one.due_s), y + 1, 3, HIGH - 2);
      }
    });
    to.fillStyle = ink;
    to.fillRect(x(view.at_s) - 1, 0, 2, high);
  }

  private part(to: CanvasRenderingContext2D, phase: string, colour: string, ink: string, x: number, y: number, w: number, h: number): void {
    if (phase === "preempted" || phase === "swapped") {
      framed(to, ink, x, y, w, h);
      return;
    }
    to.fillStyle = phase === "waiting" ? "#8c959f" : phase === "unseen" ? "#8c959f55" : colour;
    if (phase === "prefill") to.globalAlpha = 0.6;
    if (phase === "paused") hatched(to, x, y, w, h);
    else to.fillRect(x, y, w, h);
    to.globalAlpha = 1;
  }
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
