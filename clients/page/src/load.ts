/** The load of the last ten minutes: what the server kept before this page came, and a sample every five seconds since. */
import type { View } from "./feed";

const MOST = 120;
export type Sample = Record<string, number | null> & { at_s: number };

export class Load {
  samples: Sample[] = [];
  /** Attained shares by class of each sample. */
  attained: (number | null)[][] = [];

  /** Takes in what is new, and returns whether anything was. */
  take(view: View): boolean {
    const history = view["history"] as { columns: string[]; rows: unknown[][] } | undefined;
    const before = this.samples.at(-1)?.at_s ?? 0;
    for (const row of history?.rows ?? []) this.add(Object.fromEntries(history!.columns.map((name, i) => [name, row[i]])));
    const load = view["load"] as Record<string, unknown> | null | undefined;
    if (load) this.add(load);
    return (this.samples.at(-1)?.at_s ?? 0) > before;
  }

  private add({ attained, ...sample }: Record<string, unknown>): void {
    if ((sample["at_s"] as number) <= (this.samples.at(-1)?.at_s ?? 0)) return;
    this.samples.push(sample as Sample);
    this.attained.push((attained ?? []) as (number | null)[]);
    if (this.samples.length > MOST) {
      this.samples.shift();
      this.attained.shift();
    }
  }

  column(name: string): (number | null)[] {
    return this.samples.map((one) => one[name] ?? null);
  }
}
