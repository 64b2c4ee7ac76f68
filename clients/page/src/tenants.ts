/** The tenants of a server whose tenants have shares, in the server's order: the one that fares worst comes first. */
import { byId, count, inOneUnit, percent, share, table } from "./dom";
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
  const tenants = (view["tenants"] ?? []) as Tenant[], more = Number(view["more_tenants"] ?? 0);
  byId("by-tenant").hidden = tenants.length === 0;
  if (tenants.length === 0) return;
  const [unit, debts] = inOneUnit(tenants.map((one) => one.debt_s));
  const head = ["tenant", "in time, 1 min", "10 min", "weight", "running", "waiting", "service of share", `debt, ${unit}`];
  table(byId("tenants"), 1, head, tenants.map((one, i) => [
    one.name, share(one.attained[0]!, one.state === "bad" ? "bad" : undefined), percent(one.attained[1]?.[0]), String(one.weight),
    count(one.running), count(one.waiting), `${Math.round(one.served * 100)} of ${percent(one.fair)}`, `${one.debt_s > 0 ? "+" : ""}${debts[i]}`,
  ]));
  byId("more-tenants").textContent = more > 0 ? `${more} more tenants` : "";
}
