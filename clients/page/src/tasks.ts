/** The tasks of a server that have not ended, in the server's order: the one that is due first comes first. */
import { byId, count, dueColumn, inOneUnit, percent, table } from "./dom";
import type { View } from "./feed";

interface Task {
  name: string;
  class: string;
  calls: number;
  expected: number | null;
  open: number;
  began_s: number;
  due_s: number | null;
  tools_s: number;
  /** Whether all calls that the client expects have ended. */
  called?: boolean;
  engine_s?: number; // not from an older server
}

export function showTasks(view: View): void {
  const tasks = (view["tasks"] ?? []) as Task[], all = Number(view["open_tasks"] ?? 0), more = all - tasks.length;
  byId("by-task").hidden = tasks.length === 0;
  if (tasks.length === 0) return;
  const since_s = tasks.map((one) => Math.max(view.at_s - one.began_s, 0));
  const [unit, since] = inOneUnit(since_s);
  const [engineUnit, engine] = inOneUnit(tasks.map((one) => one.engine_s ?? 0));
  const [dueName, dues] = dueColumn("due in", tasks.map((one) => (one.due_s === null || one.called ? null : one.due_s - view.at_s)));
  table(byId("tasks"), 2, ["task", "class", dueName, "calls", "open", `for, ${unit}`, "tools", `engine, ${engineUnit}`], tasks.map((one, i) => [
    one.name, one.class, one.called ? { text: "called", look: "dim" } : dues[i]!, one.expected === null ? String(one.calls) : `${one.calls} of ${one.expected}`, count(one.open), since[i]!,
    since_s[i]! > 0 ? percent(Math.min(one.tools_s / since_s[i]!, 1)) : "",
    engine[i]!,
  ]));
  byId("more-tasks").textContent = more > 0 ? `${more} more tasks` : "";
}
