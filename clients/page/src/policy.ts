/** A change of policy, tried as shadow first: what it would have done is shown before it may decide. */
import { byId } from "./dom";

interface Engine {
  policy: string;
  shadow_policy: string | null;
  shadow: { plans: number; errors: number; agreement: number | null; gain: number | null } | null;
}

export class PolicyChange {
  private readonly wanted = byId<HTMLInputElement>("wanted");
  private readonly change = byId<HTMLButtonElement>("change");
  private readonly leave = byId<HTMLButtonElement>("leave");
  private tried: string | undefined;
  private answered = "";

  /** key: of the admin routes. */
  constructor(private readonly key: () => string) {
    byId<HTMLFormElement>("try").addEventListener("submit", (event) => {
      event.preventDefault();
      void this.put({ shadow_policy: this.wanted.value.trim() });
    });
    this.change.addEventListener("click", () => {
      if (this.tried !== undefined) void this.put({ policy: this.tried, shadow_policy: "" });
    });
    this.leave.addEventListener("click", () => void this.put({ shadow_policy: "" }));
  }

  show(engines: Engine[]): void {
    const [first] = engines;
    const shadow = first?.shadow_policy ?? undefined;
    const same = engines.every((one) => one.shadow_policy === shadow && one.policy === first!.policy);
    this.tried = same ? shadow : undefined;
    this.change.disabled = this.tried === undefined;
    this.leave.disabled = this.tried === undefined;
    this.change.textContent = this.tried === undefined ? "Change" : `Change to ${this.tried}`;
    const told = this.tried === undefined ? "No policy is tried. One that is tried plans beside the one that decides, and only its score counts."
      : verdict(engines, this.tried);
    byId("verdict").textContent = this.answered === "" ? told : `${this.answered} ${told}`;
  }

  private async put(change: Record<string, string>): Promise<void> {
    this.answered = "Asked.";
    try {
      const headers = { authorization: `Bearer ${this.key()}`, "content-type": "application/json" };
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
