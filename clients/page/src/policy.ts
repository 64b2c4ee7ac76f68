/** A change of policy: tried as a shadow first, confirmed, recorded with who made it, and undone if it was a mistake. */
import { clock } from "./charts";
import { byId } from "./dom";
import type { View } from "./feed";
import { adminKey } from "./session";

interface Engine {
  policy: string;
  shadow_policy: string | null;
  shadow: { plans: number; errors: number; agreement: number | null; gain: number | null } | null;
  policy_change?: { id: string; at_s: number; by: string; before: string } | null;
}

export class PolicyChange {
  private readonly wanted = byId<HTMLInputElement>("wanted");
  private readonly change = byId<HTMLButtonElement>("change");
  private readonly leave = byId<HTMLButtonElement>("leave");
  private readonly undo = byId<HTMLButtonElement>("undo");
  private readonly dialog = byId<HTMLDialogElement>("confirm");
  private engines: Engine[] = [];
  private tried: string | undefined;
  private answered = "";
  private confirmed: Record<string, string> = {};

  constructor() {
    byId<HTMLFormElement>("try").addEventListener("submit", (event) => {
      event.preventDefault();
      void this.put({ shadow_policy: this.wanted.value.trim() });
    });
    this.change.addEventListener("click", () => {
      if (this.tried !== undefined) this.ask(`Change the policy from ${this.engines[0]!.policy} to ${this.tried}`, { policy: this.tried, shadow_policy: "" });
    });
    this.leave.addEventListener("click", () => void this.put({ shadow_policy: "" }));
    this.undo.addEventListener("click", () => {
      const last = this.engines[0]?.policy_change;
      if (last) this.ask(`Change the policy from ${this.engines[0]!.policy} back to ${last.before}`, { undo: last.id });
    });
    this.dialog.addEventListener("close", () => {
      const by = byId<HTMLInputElement>("by").value.trim();
      if (this.dialog.returnValue === "yes") void this.put({ ...this.confirmed, ...(by === "" ? {} : { by }) });
    });
  }

  show(view: View): void {
    const engines = (this.engines = view["engines"] as Engine[]);
    const [first] = engines;
    const shadow = first?.shadow_policy ?? undefined;
    const same = engines.every((one) => one.shadow_policy === shadow && one.policy === first!.policy);
    this.tried = same ? shadow : undefined;
    this.change.disabled = this.leave.disabled = this.tried === undefined;
    this.change.textContent = this.tried === undefined ? "Change" : `Change to ${this.tried}`;
    const told = this.tried === undefined ? "No policy is tried. A policy that is tried makes plans beside the policy at work, and only its score counts."
      : verdict(engines, this.tried);
    const last = first?.policy_change;
    byId("at-work").textContent = engines.length === 0 ? "" : `${first!.policy} decides${last ? ` since ${clock(last.at_s)}, when ${last.by || "someone"} changed it from ${last.before}` : ", as since the server's start"}.`;
    this.undo.hidden = !last;
    this.undo.textContent = last ? `Undo: back to ${last.before}` : "";
    byId("verdict").textContent = this.answered === "" ? told : `${this.answered} ${told}`;
  }

  private ask(question: string, change: Record<string, string>): void {
    this.confirmed = change;
    byId("asked").textContent = `${question}?`;
    byId("meaning").textContent = `It holds from the next step on, on ${this.engines.length === 1 ? "the engine" : `all ${this.engines.length} engines`}. ` +
      "Requests stay where they are. The page shows who made the change, and offers to undo it.";
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  private async put(change: Record<string, string>): Promise<void> {
    this.answered = "Asked.";
    try {
      const headers = { authorization: `Bearer ${adminKey()}`, "content-type": "application/json" };
      const answer = await fetch("policy", {
        method: "PUT", headers, body: JSON.stringify(change), cache: "no-store", credentials: "omit", redirect: "error",
      });
      this.answered = answer.ok ? "" : `Refused: ${await message(answer)}.`;
    } catch {
      this.answered = "The server does not answer; nothing was changed as far as this page knows.";
    }
    byId("verdict").textContent = this.answered || "Done.";
  }
}

/** What a server says of a request that it refuses. */
export async function message(answer: Response): Promise<string> {
  const text = await answer.text();
  try {
    return String((JSON.parse(text) as { error: { message: unknown } }).error.message);
  } catch {
    return `${answer.status} ${text.slice(0, 200)}`;
  }
}

function verdict(engines: Engine[], tried: string): string {
  const scores = engines.flatMap((one) => (one.shadow === null ? [] : [one.shadow]));
  const plans = scores.reduce((sum, one) => sum + one.plans, 0);
  const errors = scores.reduce((sum, one) => sum + one.errors, 0);
  const failed = errors === 0 ? "" : ` It failed ${errors} times.`;
  const agreement = mean(scores.map((one) => one.agreement)), gain = mean(scores.map((one) => one.gain));
  const head = `${tried} in ${plans} plans:`;
  if (agreement === null && gain === null) return `${head} no verdict yet, since nothing had to wait.${failed}`;
  const alike = agreement === null ? "" : ` it decides as ${engines[0]!.policy} in ${percent(agreement)} % of the cases;`;
  const points = gain === null ? "" : Math.abs(gain) < 0.0005 ? " as many waiting requests would be admitted in time."
    : ` ${percent(Math.abs(gain))} points ${gain > 0 ? "more" : "fewer"} of the waiting requests would be admitted in time.`;
  return head + alike + points + failed;
}

function percent(share: number): string {
  return (100 * share).toFixed(1);
}

function mean(values: (number | null)[]): number | null {
  const known = values.filter((one) => one !== null);
  return known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0) / known.length;
}
