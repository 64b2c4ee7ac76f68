/** The drawn requests of a view: which of them can still be in time, and why each of them is where it is. */
import { duration, due, figure, sentence, whole } from "./dom";
import type { View } from "./feed";

export interface Request {
  key: string;
  name: string;
  classId: number;
  phase: string;
  /** The phase in words. */
  says: string;
  arrival_s: number;
  since_s: number;
  due_s: number | null;
  ahead: number;
  why: number;
  figure: number | null;
  of: number | null;
  prompt: number;
  computed: number;
  output: number;
  /** Whether it has missed a deadline, so that nothing can bring it in time any more. */
  isLost: boolean;
}

/** Requests by what an operator can still do for them, each part by the nearest deadline. */
export interface Parts {
  waiting: Request[];
  served: Request[];
  late: Request[];
}

const HELD_UP = new Set(["waiting", "preempted", "swapped"]);

export function parts(view: View): Parts {
  const at = Object.fromEntries((view["columns"] as string[]).map((name, i) => [name, i])) as Record<string, number>;
  const classes = view["classes"] as string[], phases = view["phases"] as string[], say = (view["phases_say"] ?? phases) as string[];
  const all = Object.entries(view.rows).map(([key, row]): Request => {
    const value = (name: string) => row[at[name]!] as number;
    const classId = value("class_id"), due_s = value("due_s") as number | null;
    return {
      key, classId, name: classes[classId] ?? "", phase: phases[value("phase")] ?? "", says: say[value("phase")] ?? "",
      arrival_s: value("arrival_s"), since_s: value("since_s"), due_s, ahead: value("ahead"), why: value("why"),
      figure: value("figure") as number | null, of: value("of") as number | null, prompt: value("prompt_tokens"),
      computed: value("computed_tokens"), output: value("output_tokens"),
      // Without an output nothing makes up for a deadline that has passed since the engine wrote what it had missed.
      isLost: Boolean(at["missed"] !== undefined && value("missed")) || (due_s !== null && due_s < view.at_s && (at["missed"] === undefined || value("output_tokens") === 0)),
    };
  });
  // A request that is behind its pace comes after those that are not, and the farther behind the later.
  const from = (one: Request) => (one.due_s === null ? Infinity : one.due_s >= view.at_s || one.isLost || one.output === 0 ? one.due_s : 1e12 + view.at_s - one.due_s);
  all.sort((a, b) => from(a) - from(b) || (a.due_s ?? Infinity) - (b.due_s ?? Infinity) || a.ahead - b.ahead || a.arrival_s - b.arrival_s);
  return {
    waiting: all.filter((one) => !one.isLost && HELD_UP.has(one.phase)),
    served: all.filter((one) => !one.isLost && !HELD_UP.has(one.phase)),
    late: all.filter((one) => one.isLost),
  };
}

/** Counts by class, the largest first, as in "interactive 30, batch 4". */
export function byClass(requests: Request[]): string {
  const counts = new Map<string, number>();
  for (const one of requests) counts.set(one.name, (counts.get(one.name) ?? 0) + 1);
  return inOrder([...counts]);
}

export function inOrder(counts: [string, number][]): string {
  return counts.sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} ${whole(n)}`).join(", ");
}

/** How long it is until a request's next deadline. A next token that is overdue can be made up for: it is behind its pace. */
export function dueOf(one: Request, at_s: number): { text: string; isBad: boolean } {
  const left_s = one.due_s === null ? null : one.due_s - at_s;
  if (left_s === null || left_s >= 0) return { text: duration(left_s), isBad: false };
  return one.isLost || one.output === 0 ? { text: due(left_s), isBad: true } : { text: `${duration(-left_s)} behind`, isBad: false };
}

/** A cause as the server says it, with its figures. */
export function said(view: View, why: number, figure: number | null, of: number | null): string {
  return sentence((view["says"] as string[])[why] ?? "", figure, of);
}

/** Why a request waits, or what is done for it. */
export function reason(view: View, one: Request): string {
  if (one.why > 0) return said(view, one.why, one.figure, one.of);
  if (one.phase === "decode") return `${figure(one.output)} tokens are out`;
  if (one.phase === "prefill") return `${figure(Math.min(one.computed, one.prompt))} of ${figure(one.prompt)} prompt tokens are computed`;
  return one.ahead >= 0 ? "the next step admits it" : "";
}

/** All that is known of one request. */
export function story(view: View, one: Request): string {
  const { text } = dueOf(one, view.at_s), isAhead = one.due_s !== null && one.due_s >= view.at_s;
  const when = text === "" ? "" : `, ${isAhead ? "due in " : ""}${text}${text.endsWith("behind") ? " its pace" : ""}`;
  const why = one.phase === "decode" && one.why === 0 ? "" : reason(view, one);
  return `Request ${one.key} (${one.name}): ${one.says} for ${duration(view.at_s - one.since_s)}${when}; ` +
    `${figure(one.prompt)} prompt tokens, ${figure(one.output)} output.` + (why === "" ? "" : ` ${why.charAt(0).toUpperCase()}${why.slice(1)}.`);
}
