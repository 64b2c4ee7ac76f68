/** The tasks of a server that have not ended, in the server's order: the one that is due first comes first. */
import { byId, type Cell, due, duration, table } from "./dom";
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
}

export function showTasks(view: View): void {
  const tasks = (view.tasks ?? []) as Task[], all = Number(view.open_tasks ?? 0), more = all - tasks.length;
  byId("by-task").hidden = tasks.length === 0;
  if (tasks.length === 0) return;
  table(byId("tasks"), 2, ["task", "class", "calls", "running", "for", "due in", "tools"], tasks.map((one) => {
    const since_s = Math.max(view.at_s - one.began_s, 0), left_s = one.due_s === null ? null : one.due_s - view.at_s;
    const running: Cell = { text: String(one.open), look: one.open === 0 ? "dim" : undefined };
    const calls = one.expected === null ? String(one.calls) : `${one.calls} of ${one.expected}`;
    const tools = since_s > 0 ? `${Math.round(Math.min(one.tools_s / since_s, 1) * 100)} %` : "";
    return [one.name, one.class, calls, running, duration(since_s), { text: due(left_s), look: (left_s ?? 0) < 0 ? "bad" : undefined }, tools];
  }));
  byId("more-tasks").textContent = more > 0 ? `${more} more tasks` : "";
}
