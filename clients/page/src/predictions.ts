/** How well latencies were predicted, and the promises that rest on it: each share beside the band that it should be in. */
import { byId, type Cell, count, type Gauge, table } from "./dom";
import type { View } from "./feed";
import { COLOURS } from "./strips";

interface Figure { judged: number; within: number[]; band: number[]; off: boolean[]; width: number[] }
interface Promises { kept: number; broken: number; withdrawn: number; broken_share: number | null; allowed_share: number | null; off: boolean }
interface OfClass { predicted?: Record<string, Figure | null>; promises?: Promises | null }

const FIGURES = { ttft: "TTFT", tpot: "TPOT", e2e: "e2e" };
/** A gauge reaches this many bands to either side of its level. */
const REACH = 3;

export function showPredictions(view: View): void {
  const byClass = view["by_class"] as Record<string, OfClass>, classes = view["classes"] as string[];
  const levels = (view["levels"] ?? []) as number[];
  const rows = classes.flatMap((name, i) => Object.entries(FIGURES).flatMap(([key, figure]) => {
    const one = byClass[name]?.predicted?.[key];
    return one ? [[chip(name, i), figure, ...levels.map((level, at) => within(one, level, at)), one.width.map((wide) => wide.toFixed(1)).join(" · "), count(one.judged)]] : [];
  }));
  byId("by-prediction").hidden = rows.length === 0;
  const names = levels.map((level) => `p${+(level * 100).toFixed(1)}`);
  if (rows.length > 0) table(byId("predictions"), 2, ["class", "time", ...names.map((name) => `in ${name}, %`), `${names.slice(1).join(" · ").replace(/ p/g, " ")} in p50`, "judged"], rows);
  const promised = classes.flatMap((name, i) => {
    const one = byClass[name]?.promises;
    return one ? [[chip(name, i), count(one.kept + one.broken + one.withdrawn), count(one.kept), count(one.broken), count(one.withdrawn), broken(one)]] : [];
  });
  byId("by-promise").hidden = promised.length === 0;
  if (promised.length > 0) table(byId("promises"), 1, ["class", "ended", "kept", "broken", "withdrawn", "broken of allowed, %"], promised);
}

function chip(text: string, i: number): Cell {
  return { text, look: `chip k${i % COLOURS.length}` };
}

/** The share within one quantile, on a scale around its level, with the band that counts as calibrated. */
function within(one: Figure, level: number, at: number): Cell {
  const share = one.within[at]!, band = one.band[at]!, isOff = one.off[at]!;
  const place = (value: number) => 0.5 + (value - level) / (2 * REACH * band);
  const gauge: Gauge = { from: place(level - band), to: place(Math.min(level + band, 1)), at: place(share) };
  return { text: `${fine(share)}${isOff ? (share < level ? " low" : " high") : ""}`, look: isOff ? "gauge bad" : "gauge", gauge };
}

/** The share of broken promises, on a scale of which the middle is what their levels allow. */
function broken(one: Promises): Cell {
  if (one.broken_share === null || one.allowed_share === null) return { text: "–", look: "dim" };
  const gauge = { from: 0, to: 0.5, at: one.allowed_share > 0 ? one.broken_share / one.allowed_share / 2 : 1 };
  return { text: `${fine(one.broken_share)} of ${fine(one.allowed_share)}${one.off ? ", too many" : ""}`, look: one.off ? "gauge bad" : "gauge", gauge };
}

function fine(share: number): string {
  return (share * 100).toFixed(1);
}
