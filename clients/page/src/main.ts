/** What a server or a fleet does now, from its live feed. */
import { Chart, clock } from "./charts";
import { byId, type Cell, due, duration, lines, shares, table } from "./dom";
import { Refused, type View, watch } from "./feed";
import { Instances } from "./instances";
import { Lanes, said } from "./lanes";
import { Playground } from "./playground";
import { PolicyChange } from "./policy";
import { COLOURS } from "./strips";
import { showTasks } from "./tasks";
import { showTenants } from "./tenants";

const AGAIN_MS = 2000;
const PHASES = ["waiting", "prefill", "decode", "paused", "preempted"];
/** Of a class, by how its own requests do. */
const LOOKS: Record<State, string | undefined> = { bad: "bad", late: "held", fine: undefined };
const LATENCIES = { ttft: "TTFT", tpot: "TPOT", e2e: "e2e" };

interface Engine {
  rank: number;
  policy: string;
  shadow_policy: string | null;
  shadow: { plans: number; errors: number; agreement: number | null; gain: number | null } | null;
  plans_off: string | null;
  plan_s: number | null;
  live: number;
  drawn: number;
  held_up: [number, number | null, number | null];
  kv: { used: number; total: number; foreseen: { mean: number[]; sigma: number[] } | null } | null;
}
type State = "bad" | "late" | "fine";
type ByClass = Record<string, Record<string, number> & { state: State; next_due_s: number | null; attained: [number | null, number][]; latency_s: Record<string, [number, number] | null> }>;

let lanes: Lanes | undefined;
let instances: Instances | undefined;
let attainment: Chart | undefined;
let kv: Chart | undefined;
let adminKey = "";
let policy: PolicyChange | undefined;
let playground: Playground | undefined;

function say(text: string, look = ""): void {
  byId("state").textContent = text;
  byId("state").className = look;
}

function showServer(view: View): void {
  byId("main").hidden = false;
  const engines = view.engines as Engine[];
  const byClass = view.by_class as ByClass;
  const classes = view.classes as string[];
  lines(byId("engines"), engines.flatMap((engine) => told(view, engine)));
  table(byId("classes"), 1, ["class", "late", "next due", "met, 1 min", "met, 10 min", ...Object.values(LATENCIES).map((name) => `${name} p50, 99`), ...PHASES], classes.map((name, i) => {
    const one = byClass[name]!;
    const left = one.next_due_s === null ? null : one.next_due_s - view.at_s;
    // Where none is late, the next deadline is at hand: its request has just been served, or will be counted.
    const next = due(left === null || one.late! > 0 ? left : Math.max(left, 0));
    const [minute = "", ...longer] = shares(one.attained);
    const late: Cell = { text: String(one.late), look: one.late! > 0 ? LOOKS[one.state] : "dim" };
    const met: (string | Cell)[] = [{ text: minute, look: one.state === "bad" ? "bad" : undefined }, ...longer];
    const of = (phase: string) => one[phase]! + (phase === "preempted" ? one["swapped"]! : 0);
    const counts = PHASES.map((phase): Cell => ({ text: String(of(phase)), look: of(phase) === 0 ? "dim" : undefined }));
    return [{ text: name, look: `k${i % COLOURS.length}` }, late, next, ...met, ...Object.keys(LATENCIES).map((figure) => took(one.latency_s[figure])), ...counts];
  }));
  showTenants(view);
  showTasks(view);
  attainment ??= new Chart("attainment", classes.map((label, i) => ({ label, stroke: COLOURS[i % COLOURS.length]!, width: 2 })));
  attainment.add(view.at_s, classes.map((name) => {
    const ratio = byClass[name]!.attained[0]![0];
    return ratio === null ? null : ratio * 100;
  }));
  const shade = "#a371f7";
  kv ??= new Chart("kv", [
    { label: "held now", stroke: COLOURS[0]!, width: 2 },
    { label: "in 64 steps", stroke: shade, width: 1, dash: [4, 4] },
    { label: "+ sigma", stroke: shade, width: 0.5 },
    { label: "- sigma", stroke: shade, width: 0.5 },
  ], [{ series: [3, 4], fill: "#a371f733" }]);
  kv.add(view.at_s, held(engines));
  lanes ??= new Lanes();
  lanes.show(view);
  policy ??= new PolicyChange(() => adminKey);
  policy.show(engines);
  playground ??= new Playground();
  playground.show([String(view.model)], classes);
}

/** What is late or lost, and why: the server's own sentences, as an alarm only where it does badly by itself. */
function showHeadlines(said: string[], alarms: boolean[] | undefined): void {
  const look = (i: number) => (alarms?.[i] ?? true ? "alarm" : "warning");
  lines(byId("headlines"), said.length > 0 ? said.map((text, i) => ({ text, look: look(i) })) : [{ text: "Nothing is late.", look: "calm" }]);
}

/** Quantiles of a latency with two digits, in the unit that suits the longest. */
function took(quantiles_s: number[] | null | undefined): string {
  if (!quantiles_s) return "";
  const [factor, unit] = Math.max(...quantiles_s) < 1 ? [1e3, "ms"] : [1, "s"];
  return `${quantiles_s.map((s) => (s * factor < 10 ? (s * factor).toPrecision(2) : (s * factor).toFixed(0))).join(", ")} ${unit}`;
}

/** Shares of the KV caches of all ranks, in percent: held now, foreseen, with one standard deviation more and less. */
function held(engines: Engine[]): (number | null)[] {
  const known = engines.flatMap((engine) => (engine.kv === null ? [] : [engine.kv]));
  const total = known.reduce((sum, one) => sum + one.total, 0);
  if (total === 0) return [null, null, null, null];
  const share = (blocks: number) => Math.min(Math.max((100 * blocks) / total, 0), 100);
  const used = share(known.reduce((sum, one) => sum + one.used, 0));
  if (known.some((one) => one.foreseen === null)) return [used, null, null, null];
  const mean = known.reduce((sum, one) => sum + one.foreseen!.mean.at(-1)!, 0);
  const sigma = Math.sqrt(known.reduce((sum, one) => sum + one.foreseen!.sigma.at(-1)! ** 2, 0));
  return [used, share(mean), share(mean + sigma), share(mean - sigma)];
}

function told(view: View, engine: Engine): Cell[] {
  const parts = [`${view.model}, rank ${engine.rank}: policy ${engine.policy}, ${engine.live} live requests`];
  if (engine.plan_s !== null) parts.push(`a plan takes ${(engine.plan_s * 1e3).toFixed(1)} ms`);
  if (engine.plans_off !== null) parts.push(`plans are off: ${engine.plans_off}`);
  if (engine.shadow_policy !== null) {
    const { agreement, gain } = engine.shadow ?? { agreement: null, gain: null };
    const verdict = agreement === null ? "" : ` agrees with ${Math.round(agreement * 100)} % of plans`;
    parts.push(`shadow ${engine.shadow_policy}${verdict}${gain === null ? "" : `, gain ${gain.toFixed(2)}`}`);
  }
  if (engine.drawn < engine.live) parts.push(`${engine.drawn} of ${engine.live} are drawn`);
  const found: Cell[] = [{ text: parts.join("; ") }];
  const held = said(view, ...engine.held_up);
  if (engine.held_up[0] > 0 && !(view.headlines as string[]).some((one) => one.endsWith(held))) found.push({ text: `The first in the queue waits: ${held}.`, look: "held" });
  return found;
}

interface Group { model: string; class: string; held: number; oldest_s: number; first_due_in_s: number | null; rate_per_s: number }
interface Switch { at_s: number; instance: string; leaving: string | null; coming: string | null; seconds: number }

function showFleet(view: View): void {
  byId("fleet").hidden = false;
  const columns = view.columns as string[], models = view.models as Record<string, { state: string }>;
  const counts = view.counts as { instances: number }, plan = view.plan as { late_s: number; needed: number } | null;
  const planned = plan === null ? "" : `; the plan expects ${duration(plan.late_s)} of lateness, and ${plan.needed} instances would keep all deadlines`;
  lines(byId("fleet-now"), [{ text: `${counts.instances} instances, ${String(view.held)} requests held${planned}.` }]);
  table(byId("instances"), 3, ["instance", "phase", "model", "for", "ready in", "running", "room", "parked"],
    Object.entries(view.rows).map(([name, row]) => {
      const of = (column: string) => row[columns.indexOf(column)] ?? null;
      const phase = String(of("phase"));
      const look = phase === "serving" ? undefined : phase === "lost" || phase === "failed" ? "bad" : "held";
      const ready = of("ready_in_s") as number | null;
      return [name, { text: phase, look }, String(of("model") ?? ""), duration(view.at_s - Number(of("since_s"))),
        ready ? duration(ready) : "", String(of("running")), String(of("room")), String(of("parked"))];
    }));
  instances ??= new Instances();
  instances.show(view);
  const byClass = view.by_class as Record<string, { attained: [number | null, number][] }>;
  table(byId("met"), 1, ["class", "met, 1 min", "met, 10 min"], Object.entries(byClass).map(([name, one]) => [name, ...shares(one.attained)]));
  table(byId("groups"), 3, ["model", "class", "state", "held", "oldest", "first due in", "requests/s"],
    (view.groups as Group[]).map((one) => [one.model, one.class, models[one.model]?.state ?? "", { text: String(one.held), look: one.held > 0 ? "held" : "dim" },
      one.held > 0 ? duration(one.oldest_s) : "",
      { text: due(one.first_due_in_s), look: (one.first_due_in_s ?? 0) < 0 ? "bad" : undefined }, one.rate_per_s.toFixed(1)]));
  table(byId("switches"), 3, ["instance", "left", "came", "took", "ago"], (view.switches as Switch[]).slice(-8).reverse().map((one) =>
    [one.instance, one.leaving ?? "", one.coming ?? "", duration(one.seconds), duration(view.at_s - one.at_s)]));
  playground ??= new Playground();
  playground.show(Object.keys(models), view.classes as string[]);
}

async function keepWatching(key: string): Promise<void> {
  for (;;) {
    try {
      await watch(key, (view) => {
        say(`Live, as of ${clock(view.at_s)}.`);
        byId("login").hidden = true;
        showHeadlines(view.headlines as string[], view.alarms as boolean[] | undefined);
        if (view.fleet === true) showFleet(view);
        else showServer(view);
      });
      say("Lost: the server ended the feed; it is asked again.", "bad");
    } catch (error) {
      if (error instanceof Refused) {
        say("The key is refused.", "bad");
        byId("login").hidden = false;
        return;
      }
      say("Lost: the server does not answer; it is asked again.", "bad");
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

byId<HTMLFormElement>("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId<HTMLInputElement>("key");
  const key = field.value;
  field.value = "";
  adminKey = key;
  say("Connecting.");
  void keepWatching(key);
});
