/** What the instances of a gateway do now. */
import { Chart } from "./charts";
import { byId, type Cell, count, dueColumn, duration, inOneUnit, inTurn, lines, percent, share, table } from "./dom";
import type { View } from "./feed";
import { Instances } from "./instances";
import { Load } from "./load";
import { Playground } from "./playground";
import { inWords } from "./states";
import { COLOURS } from "./strips";
import { FLEET, Tiles } from "./tiles";

interface Group { model: string; class: string; held: number; oldest_s: number; first_due_in_s: number | null; rate_per_s: number }
interface Switch { at_s: number; instance: string; leaving: string | null; coming: string | null; seconds: number }


export class Fleet {
  private readonly load = new Load();
  private readonly tiles = new Tiles("fleet-tiles", FLEET);
  private readonly instances = new Instances();
  private charts: { queue: Chart; tokens: Chart } | undefined;

  constructor(private readonly playground: Playground) {
    byId("fleet").hidden = false;
  }

  show(view: View): void {
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

  private showInstances(view: View): void {
    const columns = view["columns"] as string[], rows = Object.entries(view.rows);
    const of = (row: unknown[], column: string) => row[columns.indexOf(column)] ?? null;
    const [unit, since] = inOneUnit(rows.map(([, row]) => view.at_s - Number(of(row, "since_s"))));
    const [readyUnit, ready] = inOneUnit(rows.map(([, row]) => (of(row, "ready_in_s") as number | null) || null));
    table(byId("instances"), 3, ["instance", "state", "model", `for, ${unit}`, `ready in, ${readyUnit}`, "running", "room", "parked"], rows.map(([name, row], i) => {
      const phase = String(of(row, "phase"));
      const look = phase === "serving" ? undefined : phase === "lost" || phase === "failed" ? "bad" : "held";
      return [name, { text: inWords(phase), look }, String(of(row, "model") ?? ""), since[i]!, ready[i]!,
        count(Number(of(row, "running"))), count(Number(of(row, "room"))), count(Number(of(row, "parked")))] as (string | Cell)[];
    }));
    this.instances.show(view);
  }
}

function showGroups(groups: Group[], models: Record<string, { state: string }>): void {
  const [unit, oldest] = inOneUnit(groups.map((one) => (one.held > 0 ? one.oldest_s : null)));
  const [dueName, dues] = dueColumn("first due in", groups.map((one) => one.first_due_in_s));
  table(byId("groups"), 3, ["model", "class", "the model is", "held", `oldest, ${unit}`, dueName, "requests/s"], groups.map((one, i) => [
    one.model, one.class, inWords(models[one.model]?.state ?? ""), { text: String(one.held), look: one.held > 0 ? "held" : "dim" },
    oldest[i]!, dues[i]!, one.rate_per_s.toFixed(1),
  ]));
}
