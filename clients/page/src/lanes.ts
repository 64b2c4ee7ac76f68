/** One lane a live request: what it did within the last minute, its deadline, and why it waits. Requests that can still
 * be in time come first; the ones that cannot are folded into a count. */
import { byId, onceAFrame, whole } from "./dom";
import { Explanation } from "./explain";
import type { View } from "./feed";
import { byClass, dueOf, inOrder, type Parts, parts, reason, type Request, story } from "./requests";
import { axis, COLOURS, Courses, framed, hatched, seen, written } from "./strips";

const HIGH = 18;
const SPAN_S = 60;
const AHEAD_S = 15;
const LINE_EVERY_S = 15;
const WAITS = "#8c959f";
interface Part {
  phase: string;
  from_s: number;
}
/** A lane, or the heading above some. */
type Line = Request | string;

export class Lanes {
  private canvas = byId<HTMLCanvasElement>("lanes");
  private box = byId("scrolled");
  private readonly courses = new Courses<Part>(40, SPAN_S);
  private lines: Line[] = [];
  private view: View | undefined;
  private chosen: string | undefined;
  private readonly explanation = new Explanation();
  private wasLate = false;
  private isOpen = false;
  private readonly draw = onceAFrame(() => this.drawNow());
  private found: Parts = { waiting: [], served: [], late: [] };

  constructor() {
    this.canvas.addEventListener("click", (event) => {
      const down = event.clientY - this.canvas.getBoundingClientRect().top - axis.HIGH;
      if (down >= 0) this.choose(Math.floor((down + this.box.scrollTop) / HIGH), 0);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step === undefined || this.lines.length === 0) return;
      event.preventDefault();
      this.choose(this.lines.findIndex((one) => typeof one !== "string" && one.key === this.chosen) + step, step);
    });
    byId("late").addEventListener("click", () => {
      this.isOpen = !this.isOpen;
      if (this.view !== undefined) this.show(this.view);
    });
    this.box.addEventListener("scroll", () => this.draw());
    addEventListener("resize", () => this.draw());
  }

  show(view: View): void {
    this.view = view;
    const { waiting, served, late } = (this.found = parts(view));
    const all = [...waiting, ...served, ...late];
    this.courses.keep(new Set(all.map((one) => one.key)));
    for (const one of all) {
      const last = this.courses.of(one.key).at(-1);
      if (last === undefined && one.since_s > one.arrival_s) this.courses.take(one.key, { phase: "unseen", from_s: one.arrival_s }, view.at_s);
      if (last?.phase !== one.phase) this.courses.take(one.key, { phase: one.phase, from_s: one.since_s }, view.at_s);
    }
    const under = (name: string, some: Request[]): Line[] => (some.length === 0 ? [] : [`${name}: ${some.length} (${byClass(some)})`, ...some]);
    this.lines = [...under("Wait, and can still be in time", waiting), ...under("Served, and in time so far", served),
      ...(this.isOpen ? under("Have missed a deadline", late) : [])];
    this.fold();
    this.draw();
    this.tell();
  }

  private fold(): void {
    const { late } = this.found, button = byId<HTMLButtonElement>("late");
    const counts = Object.entries((this.view?.["by_class"] ?? {}) as Record<string, { missed?: number }>).map(([name, one]): [string, number] => [name, one.missed ?? 0]);
    const all = Math.max(counts.reduce((sum, [, n]) => sum + n, 0), late.length), isAll = all === late.length;
    button.hidden = late.length === 0;
    button.setAttribute("aria-expanded", String(this.isOpen));
    const which = all === 1 ? "1 request has" : `${whole(all)} requests have`;
    const each = isAll ? byClass(late) : inOrder(counts.filter(([, n]) => n > 0));
    const drawn = isAll ? "" : `; ${late.length} of them are drawn`;
    button.textContent = `${this.isOpen ? "▾ Hide" : "▸ Show"}: ${which} missed a deadline and cannot be in time any more (${each})${drawn}`;
  }

  /** Chooses the lane at `place`, or the next one in the direction of `step` where that is a heading. */
  private choose(place: number, step: number): void {
    let at = Math.min(Math.max(place, 0), this.lines.length - 1);
    while (typeof this.lines[at] === "string" && this.lines[at + (step || 1)] !== undefined) at += step || 1;
    const one = this.lines[at];
    if (one === undefined || typeof one === "string") return;
    this.chosen = one.key;
    this.wasLate = false;
    // The first of its kind is shown with the heading above it.
    const { box } = this, top = (typeof this.lines[at - 1] === "string" ? at - 1 : at) * HIGH, room = this.canvas.clientHeight - axis.HIGH - 6;
    if (top < box.scrollTop) box.scrollTop = top;
    else if ((at + 1) * HIGH > box.scrollTop + room) box.scrollTop = (at + 1) * HIGH - room;
    this.draw();
    this.tell();
  }

  private tell(): void {
    const view = this.view;
    if (view === undefined || this.chosen === undefined) return;
    const { waiting, served, late } = this.found;
    const one = [...waiting, ...served, ...late].find((request) => request.key === this.chosen);
    this.wasLate ||= one?.isLost === true;
    this.explanation.offer(this.wasLate ? this.chosen : undefined);
    byId("why").textContent = one === undefined ? `Request ${this.chosen} has ended.` : story(view, one);
  }

  private drawNow(): void {
    const view = this.view;
    if (view === undefined) return;
    const { to, wide, high, first, last, top, ink, bad, line, dim } = seen(this.canvas, byId("rest"), this.lines.length, HIGH, axis.HIGH);
    const names = Math.min(150, wide * 0.33), isWide = wide > 900, left = isWide ? 96 : 86, says = isWide ? Math.min(wide * 0.42, 620) : 0;
    const bars = { from: names, to: wide - left - says - 8 };
    const x = (s: number) => bars.from + Math.min(Math.max((s - view.at_s + SPAN_S) / (SPAN_S + AHEAD_S), 0), 1) * (bars.to - bars.from);
    const marks = Array.from({ length: (SPAN_S + AHEAD_S) / LINE_EVERY_S + 1 }, (_, i) => i * LINE_EVERY_S - SPAN_S);
    const named = (s: number) => (s === 0 ? "now" : s > 0 ? `+${s} s` : `−${-s} s`);
    for (const s of marks) {
      to.fillStyle = line;
      to.fillRect(x(view.at_s + s), axis.HIGH, 1, high);
    }
    to.save();
    to.beginPath();
    to.rect(0, axis.HIGH, wide, high);
    to.clip();
    this.lines.slice(first, last).forEach((one, i) => {
      const y = top(first + i);
      if (typeof one === "string") {
        to.fillStyle = dim;
        to.font = "600 12px system-ui, sans-serif";
        written(to, one, 2, y + HIGH / 2, wide - 4);
        to.font = "12px system-ui, sans-serif";
        return;
      }
      const colour = COLOURS[one.classId % COLOURS.length]!;
      if (one.key === this.chosen) {
        to.fillStyle = line;
        to.fillRect(0, y, wide, HIGH);
      }
      to.fillStyle = ink;
      written(to, `${one.key} ${one.name}`, 2, y + HIGH / 2, names - 8);
      const course = this.courses.of(one.key);
      course.forEach((part, p) => {
        if ((course[p + 1]?.from_s ?? view.at_s) < view.at_s - SPAN_S) return;
        const from = x(part.from_s), w = Math.max(x(course[p + 1]?.from_s ?? view.at_s) - from, 1);
        this.part(to, part.phase, colour, ink, from, y + 4, w, HIGH - 8);
      });
      const left_s = one.due_s === null ? null : one.due_s - view.at_s;
      if (left_s !== null && left_s > -SPAN_S && left_s < AHEAD_S) {
        to.fillStyle = bad;
        to.fillRect(x(one.due_s!), y + 2, 3, HIGH - 4);
      }
      const { text, isBad } = dueOf(one, view.at_s);
      to.fillStyle = isBad ? bad : ink;
      written(to, text, bars.to + 8, y + HIGH / 2, left - 8);
      to.fillStyle = dim;
      if (says > 0) written(to, reason(view, one), wide - says, y + HIGH / 2, says - 2);
    });
    to.restore();
    axis.draw(to, marks.map((s) => [x(view.at_s + s), named(s)]), dim, [[2, "request"], [bars.to + 8, "due in"], ...(says > 0 ? [[wide - says, "why"] as [number, string]] : [])]);
    to.fillStyle = ink;
    to.fillRect(x(view.at_s) - 1, axis.HIGH, 2, high);
  }

  private part(to: CanvasRenderingContext2D, phase: string, colour: string, ink: string, x: number, y: number, w: number, h: number): void {
    if (phase === "preempted" || phase === "swapped") {
      framed(to, ink, x, y, w, h);
      return;
    }
    to.fillStyle = phase === "waiting" ? WAITS : phase === "unseen" ? `${WAITS}55` : colour;
    if (phase === "prefill") to.globalAlpha = 0.6;
    if (phase === "paused") hatched(to, x, y, w, h);
    else to.fillRect(x, y, w, h);
    to.globalAlpha = 1;
  }
}
