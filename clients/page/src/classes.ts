/** The service classes: how many of their requests are in time, how fast they are, and what their requests do. */
import { byId, type Cell, count, dueColumn, inOneUnit, percent, share, table } from "./dom";
import type { View } from "./feed";
import { COLOURS } from "./strips";

type State = "bad" | "late" | "fine";
export type ByClass = Record<string, Record<string, number> & {
  state: State; next_due_s: number | null; attained: [number | null, number][]; latency_s: Record<string, [number, number] | null>;
}>;

const LATENCIES = { ttft: "TTFT", tpot: "TPOT", e2e: "e2e" };
const QUANTILES = "p50 · 99";
const LOOKS: Record<State, string | undefined> = { bad: "bad", late: "held", fine: undefined };
/** Phases that are shown as one column with another. */
const WITH: Record<string, string> = { swapped: "preempted" };

export function showClasses(view: View): void {
  const byClass = view["by_class"] as ByClass, classes = view["classes"] as string[];
  const all = classes.map((name) => byClass[name]!);
  const columns: [string, (string | Cell)[]][] = [
    ["class", classes.map((text, i) => ({ text, look: `chip k${i % COLOURS.length}` }))],
    ["in time, 1 min", all.map((one) => share(one.attained[0]!, LOOKS[one.state]))],
    ["10 min", all.map((one) => percent(one.attained[1]?.[0]))],
    ["late", all.map((one) => ({ ...count(Math.max(one["late"]!, one["missed"] ?? 0)), look: one["late"]! || one["missed"] ? LOOKS[one.state] ?? "held" : "dim" }))],
    // Where none is late, the next deadline is at hand: its request has just been served, or will be counted.
    dueColumn("next due", all.map((one) => {
      const left_s = one.next_due_s === null ? null : one.next_due_s - view.at_s;
      return left_s === null || one["late"]! > 0 ? left_s : Math.max(left_s, 0);
    })),
    ...Object.entries(LATENCIES).map(([figure, name]) => latency(name, all.map((one) => one.latency_s[figure] ?? null))),
    ...phases(view, all),
  ];
  table(byId("classes"), 1, columns.map(([name]) => name), classes.map((_, i) => columns.map(([, cells]) => cells[i]!)));
}

/** Quantiles of one latency in one column, all of them in one unit. */
function latency(name: string, quantiles_s: ([number, number] | null)[]): [string, string[]] {
  const [unit, texts] = inOneUnit(quantiles_s.flatMap((one) => one ?? [null, null]));
  return [`${name} ${QUANTILES}, ${unit}`, quantiles_s.map((one, i) => (one === null ? "" : `${texts[2 * i]} · ${texts[2 * i + 1]}`))];
}

function phases(view: View, all: Record<string, number>[]): [string, Cell[]][] {
  const names = view["phases"] as string[], say = (view["phases_say"] ?? names) as string[];
  return names.flatMap((phase, i) => phase in WITH ? [] : [[say[i]!, all.map((one) => {
    const also = names.filter((other) => WITH[other] === phase);
    return count([phase, ...also].reduce((sum, each) => sum + (one[each] ?? 0), 0));
  })]] as [string, Cell[]][]);
}
