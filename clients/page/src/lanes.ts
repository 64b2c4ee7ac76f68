/** One lane a live request: what it did within the last minute, and its deadline. A chosen one says why it waits. */
import { byId, duration } from "./dom";
import type { View } from "./feed";

const HIGH = 16;
const SPAN_S = 60;
const AHEAD_S = 15;
const COLOURS = ["#2f81f7", "#1a9e5c", "#a371f7", "#d29922", "#db61a2", "#0aa2c0"];
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
  const number = (value: number | null) => (value === null ? "some" : String(Math.round(value * 10) / 10));
  const text = (view.says as string[])[why] ?? "";
  return text.replace("{figure}", () => number(figure)).replace("{of}", () => number(of));
}

export class Lanes {
  private canvas = byId<HTMLCanvasElement>("lanes");
  private box = byId("scrolled");
  private history = new Map<string, Part[]>();
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
    const live = new Set(this.shown.map((one) => one.key));
    for (const key of this.history.keys()) if (!live.has(key)) this.history.delete(key);
    for (const one of this.shown) {
      const parts = this.history.get(one.key) ?? [];
      if (parts.length === 0 && one.since_s > one.arrival_s) parts.push({ phase: "unseen", from_s: one.arrival_s });
      if (parts.at(-1)?.phase !== one.phase) parts.push({ phase: one.phase, from_s: one.since_s });
      if (parts.length > 40) parts.shift();
      this.history.set(one.key, parts);
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
    const due = one.due_s === null ? "" : one.due_s < view.at_s
      ? `, ${duration(view.at_s - one.due_s)} late` : `, due in ${duration(one.due_s - view.at_s)}`;
    const head = `Request ${one.key} (${one.name}): ${one.phase} for ${duration(view.at_s - one.since_s)}${due}; ` +
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
    const wide = this.canvas.clientWidth, all = Math.max(this.shown.length, 1) * HIGH;
    const high = Math.min(all, Math.floor(innerHeight * 0.6));  // only what is seen is drawn
    byId("rest").style.height = `${all - high}px`;
    const first = Math.floor(this.box.scrollTop / HIGH);
    const seen = this.shown.slice(first, first + Math.ceil(high / HIGH) + 1);
    const scale = devicePixelRatio;
    if (this.canvas.width !== Math.round(wide * scale) || this.canvas.height !== Math.round(high * scale)) {
      this.canvas.width = Math.round(wide * scale);
      this.canvas.height = Math.round(high * scale);
      this.canvas.style.height = `${high}px`;
    }
    const to = this.canvas.getContext("2d")!;
    const look = getComputedStyle(document.body);
    const ink = look.getPropertyValue("--ink"), bad = look.getPropertyValue("--bad"), line = look.getPropertyValue("--line");
    const names = Math.min(170, wide * 0.35);
    const x = (s: number) => names + (Math.min(Math.max((s - view.at_s + SPAN_S) / (SPAN_S + AHEAD_S), 0), 1)) * (wide - names - 3);
    to.setTransform(scale, 0, 0, scale, 0, 0);
    to.clearRect(0, 0, wide, high);
    to.font = "12px system-ui, sans-serif";
    to.textBaseline = "middle";
    seen.forEach((one, i) => {
      const top = (first + i) * HIGH - this.box.scrollTop, colour = COLOURS[one.classId % COLOURS.length]!;
      if (one.key === this.chosen) {
        to.fillStyle = line;
        to.fillRect(0, top, wide, HIGH);
      }
      const isLate = one.due_s !== null && one.due_s < view.at_s;
      to.fillStyle = isLate ? bad : ink;
      to.fillText(`${one.key} ${one.name}${isLate ? " late" : ""}`.slice(0, 40), 2, top + HIGH / 2, names - 8);
      const parts = this.history.get(one.key)!;
      parts.forEach((part, p) => {
        if ((parts[p + 1]?.from_s ?? view.at_s) < view.at_s - SPAN_S) return;
        const from = x(part.from_s), wideOf = Math.max(x(parts[p + 1]?.from_s ?? view.at_s) - from, 1);
        this.part(to, part.phase, colour, ink, from, top + 3, wideOf, HIGH - 6);
      });
      if (one.due_s !== null) {
        to.fillStyle = bad;
        to.fillRect(x(one.due_s), top + 1, 3, HIGH - 2);
      }
    });
    to.fillStyle = ink;
    to.fillRect(x(view.at_s), 0, 1, high);
  }

  private part(to: CanvasRenderingContext2D, phase: string, colour: string, ink: string, x: number, y: number, w: number, h: number): void {
    if (phase === "preempted" || phase === "swapped") {
      to.strokeStyle = ink;
      to.setLineDash([3, 3]);
      to.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 1), h - 1);
      to.setLineDash([]);
      return;
    }
    to.fillStyle = phase === "waiting" ? "#8c959f" : phase === "unseen" ? "#8c959f55" : colour;
    if (phase === "prefill") to.globalAlpha = 0.6;
    if (phase === "paused") for (let at = x; at < x + w; at += 6) to.fillRect(at, y, Math.min(3, x + w - at), h);
    else to.fillRect(x, y, w, h);
    to.globalAlpha = 1;
  }
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
