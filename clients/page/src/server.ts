/** What one server does now. */
import { Chart } from "./charts";
import { showClasses } from "./classes";
import { byId, type Cell, duration, inTurn, lines, percent, table, whole } from "./dom";
import type { View } from "./feed";
import { Lanes } from "./lanes";
import { Load } from "./load";
import { Playground } from "./playground";
import { PolicyChange } from "./policy";
import { showPredictions } from "./predictions";
import { said } from "./requests";
import { COLOURS } from "./strips";
import { showTasks } from "./tasks";
import { showTenants } from "./tenants";
import { SERVER, Tiles } from "./tiles";

interface Engine {
  rank: number;
  policy: string;
  plans_off: string | null;
  plan_s: number | null;
  live: number;
  drawn: number;
  held_up: [number, number | null, number | null];
  kv: { used: number; total: number; foreseen: { mean: number[]; sigma: number[] } | null } | null;
}
interface Gpu { name: string; memory_used_bytes: number | null; memory_bytes: number | null; busy: number | null; power_w: number | null }

const GIB = 2 ** 30;

export class Server {
  private readonly load = new Load();
  private readonly tiles = new Tiles("tiles", SERVER);
  private readonly lanes = new Lanes();
  private readonly policy = new PolicyChange();
  private charts: { met: Chart; queue: Chart; tokens: Chart; cache: Chart } | undefined;

  constructor(private readonly playground: Playground) {
    byId("main").hidden = false;
  }

  show(view: View): void {
    const engines = view["engines"] as Engine[], classes = view["classes"] as string[];
    lines(byId("engines"), engines.flatMap((engine) => told(view, engine)));
    showClasses(view);
    showTenants(view);
    showTasks(view);
    showPredictions(view);
    this.lanes.show(view);
    this.policy.show(view);
    this.playground.show([String(view["model"])], classes);
    if (this.load.take(view)) this.showLoad(view, classes);
  }

  private showLoad(view: View, classes: string[]): void {
    const { load } = this, gpus = (view["gpus"] ?? []) as Gpu[];
    const blue = COLOURS[0]!, green = COLOURS[1]!;
    this.charts ??= {
      met: new Chart("attainment", classes.slice(0, load.attained.at(-1)?.length ?? 0).map((label, i) => ({ label, stroke: COLOURS[i % COLOURS.length]! })), 105),
      queue: new Chart("queue", [{ label: "running", stroke: blue }, { label: "queue", stroke: "#d29922" }]),
      tokens: new Chart("tokens", [{ label: "output", stroke: blue }, { label: "prompt", stroke: green }]),
      cache: new Chart("cache", [{ label: "KV cache used", stroke: blue }, { label: "prefix cache hits", stroke: green }], 105),
    };
    const at = load.samples.map((one) => one.at_s), hundred = (one: number | null) => (one === null ? null : one * 100);
    const { met, queue, tokens, cache } = this.charts;
    inTurn(
      () => this.tiles.show(load, { kv_used: foreseen(view["engines"] as Engine[]) }),
      () => met.show(at, (load.attained.at(-1) ?? []).map((_, i) => load.attained.map((shares) => hundred(shares[i] ?? null)))),
      () => queue.show(at, [load.column("running"), load.column("waiting")]),
      () => tokens.show(at, [load.column("output_tokens_per_s"), load.column("prompt_tokens_per_s")]),
      () => cache.show(at, [load.column("kv_used").map(hundred), load.column("prefix_hit_share").map(hundred)]),
    );
    byId("by-gpu").hidden = gpus.length === 0;
    const gib = (bytes: number | null) => (bytes === null ? "" : (bytes / GIB).toFixed(1));
    table(byId("gpus"), 1, ["GPU", "busy", "memory, GiB", "of, GiB", "power, W"], gpus.map((one, i) => [
      `${i} ${one.name}`, percent(one.busy), gib(one.memory_used_bytes), gib(one.memory_bytes), one.power_w === null ? "" : one.power_w.toFixed(0),
    ]));
  }
}

/** What the KV caches of all engines are expected to hold, in percent. */
function foreseen(engines: Engine[]): string {
  const known = engines.flatMap(({ kv }) => (kv?.foreseen ? [{ total: kv.total, ...kv.foreseen }] : []));
  const total = known.reduce((sum, one) => sum + one.total, 0);
  if (total === 0 || known.length < engines.length) return "";
  const mean = known.reduce((sum, one) => sum + one.mean.at(-1)!, 0) / total;
  const sigma = Math.sqrt(known.reduce((sum, one) => sum + one.sigma.at(-1)! ** 2, 0)) / total;
  return `→ ${Math.round(Math.min(mean, 1) * 100)} ± ${Math.round(sigma * 100)} %`;
}

function told(view: View, engine: Engine): Cell[] {
  const parts = [`Engine ${engine.rank}: ${whole(engine.live)} live requests, policy ${engine.policy}`];
  if (engine.plan_s !== null) parts.push(`a plan takes ${(engine.plan_s * 1e3).toFixed(1)} ms`);
  if (engine.drawn < engine.live) parts.push(`${engine.drawn} of ${whole(engine.live)} are drawn`);
  const found: Cell[] = [{ text: parts.join(", ") }];
  if (engine.plans_off !== null) found.push({ text: `vLLM schedules by itself, without plans: ${engine.plans_off}`, look: "held" });
  const held = said(view, ...engine.held_up);
  if (engine.held_up[0] > 0 && !(view["headlines"] as string[]).some((one) => one.includes(held))) found.push({ text: `The first in the queue waits: ${held}.`, look: "held" });
  return found;
}

/** The server in a few words: model, version, and for how long it has been up. */
export function about(view: View): string {
  const server = view["server"] as { version: string; vllm: string; started_s: number } | undefined;
  if (server === undefined) return String(view["model"] ?? "");
  return `${String(view["model"] ?? "fleet")} · sloserve ${server.version}${server.vllm ? `, vLLM ${server.vllm}` : ""} · up ${duration(view.at_s - server.started_s)}`;
}
