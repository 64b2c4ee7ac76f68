/** The live feed, read by fetch so that the key is a header and never part of an address. */

export type Row = (number | string | null)[];
export interface View {
  at_s: number;
  rows: Record<string, Row>;
  [part: string]: unknown;
}
export class Refused extends Error {}

/** The view after a change; see docs/watch-feed.md. */
export function applied(view: View, change: Partial<View>): View {
  const rows: Record<string, Row> = { ...view.rows };
  for (const [key, row] of Object.entries(change.rows ?? {}) as [string, Row | null][]) {
    if (row === null) delete rows[key];
    else rows[key] = row;
  }
  return { ...view, ...change, rows };
}

/** Calls `show` with the latest view until the feed ends, each time in a task of its own: of several that came while the
 * page was busy the last one alone is drawn. Throws Refused where the key is no good, else any Error. */
export async function watch(key: string, show: (view: View) => void): Promise<void> {
  const headers = { authorization: `Bearer ${key}` };
  const answer = await fetch("events", { headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.status === 401) throw new Refused("the key is refused");
  if (!answer.ok || answer.body === null) throw new Error(`the server answers ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let view: View | undefined, shown: View | undefined;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const [kind, data] = text.slice(0, end).split("\ndata: ");
      text = text.slice(end + 2);
      const told = JSON.parse(data ?? "null");
      if (kind === "event: snapshot") view = told as View;
      else if (view !== undefined) view = applied(view, told);
    }
    if (view !== undefined && view !== shown) show((shown = view));
    await new Promise((done) => setTimeout(done)); // a read that is there already would go on within this task
  }
}
