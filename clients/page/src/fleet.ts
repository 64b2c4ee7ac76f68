/** What the instances of a gateway do now. */
import { Chart } from "./charts";
import { byId, type Cell, count, dueColumn, duration, inOneUnit, inTurn, lines, percent, share, table, whole } from "./dom";
import type { Row, View } from "./feed";
import { Instances } from "./instances";
import { Load } from "./load";
import { Playground } from "./playground";
import { inWords } from "./states";
import { COLOURS } from "./strips";
import { brief, FLEET, Tiles } from "./tiles";

interface Group { model: string; class: string; held: number; oldest_s: number; first_due_in_s: number | null; rate_per_s: number }
interface Switch { at_s: number; instance: string; leaving: string | null; coming: string | null; seconds: number }

/** Instances of a fleet's table that are shown unless all are asked for; a larger table takes long to lay out. */
const MOST_INSTANCES = 40;

export class Fleet {
  private readonly load = new Load();
  private readonly tiles = new Tiles("fleet-tiles", FLEET);
  private readonly instances = new Instances();
  private view: View | undefined;
  private areAllShown = false;
  private charts: { queue: Chart; tokens: Chart } | undefined;

  constructor(private readonly playground: Playground) {
    byId("fleet").hidden = false;
    byId("more-instances").addEventListener("click", () => {
      this.areAllShown = !this.areAllShown;
      if (this.view !== undefined) this.showInstances(this.view);
    });
  }

  show(view: View): void {
    this.view = view;
    const models = view["models"] as Record<string, { state: string }>;
    const counts = view["counts"] as { instances: number }, plan = view["plan"] as { late_s: number; needed: number } | null;
    const planned = plan === null ? "" : `; the plan expects ${duration(plan.late_s)} of lateness, and ${plan.needed} instances would keep all deadlines`;
    lines(byId("fleet-now"), [{ text: `${counts.instances} instances, ${String(view["held"])} requests held${planned}.` }]);
    this.showInstances(view);
    const byClass = Object.entries(view["by_class"] as Record<string, { attained: [number | null, number][]; state?: string }>);
    table(byId("met"), 1, ["class", "in time, 1 min", "10 min"], byClass.map(([name, one]) =>
      [name, share(one.attained[0]!, one.state === "bad" ? "bad" : undefined), percent(one.attained[1]?.[0])]));
    showGroups(view["groups"] as Group[], models);
    const latest = (view["switches"] as Switch[]).slice(-8).reverse();
    const [took, seconds] = inOneUnit(latest.map((one) => one.seconds)), [ago, since] = inOneUnit(latest.map((one) => view.at_s - one.at_s));
    table(byId("switches"), 3, ["instance", "left", "came", `took, ${took}`, `ago, ${ago}`], latest.map((one, i) =>
      [one.instance, one.leaving ?? "nothing", one.coming ?? "nothing", seconds[i]!, since[i]!]));
    this.playground.show(Object.keys(models), view["classes"] as string[]);
    if (this.load.take(view)) this.showLoad();
  }

  private showLoad(): void {
    const { load } = this, at = load.samples.map((one) => one.at_s), blue = COLOURS[0]!;
    byId("fleet-load").hidden = false;
    this.charts ??= {
      queue: new Chart("fleet-queue", [{ label: "running", stroke: blue }, { label: "held", stroke: "#d29922" }]),
      tokens: new Chart("fleet-tokens", [{ label: "output", stroke: blue }, { label: "prompt", stroke: COLOURS[1]! }]),
    };
    const { queue, tokens } = this.charts;
    inTurn(
      () => this.tiles.show(load),
      () => queue.show(at, [load.column("running"), load.column("waiting")]),
      () => tokens.show(at, [load.column("output_tokens_per_s"), load.column("prompt_tokens_per_s")]),
    );
  }

  private fold(all: [string, Row][], shown: Set<[string, Row]>, phaseOf: (row: Row) => string): void {
    const button = byId("more-instances"), counts = new Map<string, number>();
    for (const one of all) if (!shown.has(one)) counts.set(phaseOf(one[1]), (counts.get(phaseOf(one[1])) ?? 0) + 1);
    const states = [...counts].sort((a, b) => b[1] - a[1]).map(([phase, n]) => `${inWords(phase)} ${whole(n)}`).join(", ");
    button.hidden = all.length <= MOST_INSTANCES;
    button.setAttribute("aria-expanded", String(this.areAllShown));
    button.textContent = this.areAllShown ? `▾ Hide all but ${MOST_INSTANCES} instances` : `▸ Show ${whole(all.length - shown.size)} more instances (${states})`;
  }

  private showInstances(view: View): void {
    const columns = view["columns"] as string[];
    const of = (row: unknown[], column: string) => row[columns.indexOf(column)] ?? null;
    const all = Object.entries(view.rows), phaseOf = (row: Row) => String(of(row, "phase")), rows = this.areAllShown ? all : worst(all, phaseOf);
    this.fold(all, new Set(rows), phaseOf);
    const [unit, since] = inOneUnit(rows.map(([, row]) => view.at_s - Number(of(row, "since_s"))));
    const [readyUnit, ready] = inOneUnit(rows.map(([, row]) => (of(row, "ready_in_s") as number | null) || null));
    table(byId("instances"), 3, ["instance", "state", "model", `for, ${unit}`, `ready in, ${readyUnit}`, "running", "room", "parked"], rows.map(([name, row], i) => {
      const phase = phaseOf(row), look = (["bad", "held", undefined] as const)[urgency(phase)];
      return [name, { text: inWords(phase), look }, String(of(row, "model") ?? ""), since[i]!, ready[i]!,
        count(Number(of(row, "running"))), count(Number(of(row, "room"))), count(Number(of(row, "parked")))] as (string | Cell)[];
    }));
    this.instances.show(view);
  }
}

/** How soon an operator should look at an instance: 0 if it is silent or failed, 1 if it serves nothing now, else 2. */
function urgency(phase: string): number {
  return phase === "lost" || phase === "failed" ? 0 : phase === "serving" ? 2 : 1;
}

/** The instances to look at first, at most MOST_INSTANCES, in their order. */
function worst(all: [string, Row][], phaseOf: (row: Row) => string): [string, Row][] {
  if (all.length <= MOST_INSTANCES) return all;
  const chosen = new Set([...all].sort((a, b) => urgency(phaseOf(a[1])) - urgency(phaseOf(b[1]))).slice(0, MOST_INSTANCES));
  return all.filter((one) => chosen.has(one));
}

function showGroups(groups: Group[], models: Record<string, { state: string }>): void {
  const [unit, oldest] = inOneUnit(groups.map((one) => (one.held > 0 ? one.oldest_s : null)));
  const [dueName, dues] = dueColumn("first due in", groups.map((one) => one.first_due_in_s));
  table(byId("groups"), 3, ["model", "class", "the model is", "held", `oldest, ${unit}`, dueName, "requests/s"], groups.map((one, i) => [
    one.model, one.class, inWords(models[one.model]?.state ?? ""), { text: whole(one.held), look: one.held > 0 ? "held" : "dim" },
    oldest[i]!, dues[i]!, brief(one.rate_per_s),
  ]));
}
