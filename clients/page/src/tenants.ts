/** The tenants of a server whose tenants have shares, in the server's order: the one that fares worst comes first. */
import { byId, type Cell, shares, table } from "./dom";
import type { View } from "./feed";

interface Tenant {
  name: string;
  weight: number;
  running: number;
  waiting: number;
  served: number;
  fair: number;
  debt_s: number;
  attained: [number | null, number][];
  state: "bad" | "late" | "fine";
}

export function showTenants(view: View): void {
  const tenants = (view.tenants ?? []) as Tenant[], more = Number(view.more_tenants ?? 0);
  byId("by-tenant").hidden = tenants.length === 0;
  if (tenants.length === 0) return;
  const percent = (ratio: number) => `${Math.round(ratio * 100)} %`;
  const count = (n: number): Cell => ({ text: String(n), look: n === 0 ? "dim" : undefined });
  table(byId("tenants"), 1, ["tenant", "weight", "running", "waiting", "service", "share", "debt", "met, 1 min", "met, 10 min"], tenants.map((one) => {
    const [minute = "", ...longer] = shares(one.attained);
    const debt = `${one.debt_s > 0 ? "+" : ""}${one.debt_s.toFixed(1)} s`;
    return [one.name, String(one.weight), count(one.running), count(one.waiting), percent(one.served), percent(one.fair), debt,
      { text: minute, look: one.state === "bad" ? "bad" : undefined }, ...longer];
  }));
  byId("more-tenants").textContent = more > 0 ? `${more} more tenants` : "";
}
