/** Why a request was late: a replay of what the server recorded, which takes seconds and is asked for by a click. */
import { byId, lines } from "./dom";
import { message } from "./policy";
import { adminKey } from "./session";

export class Explanation {
  private readonly button = byId<HTMLButtonElement>("explain");
  private readonly into = byId("explained");
  private chosen: string | undefined;
  private isAsked = false;

  constructor() {
    this.button.addEventListener("click", () => void this.ask());
  }

  /** Offers to explain the chosen request once it has missed a deadline; `undefined` for a request that has not. */
  offer(request: string | undefined): void {
    if (request !== this.chosen && !this.isAsked) this.into.replaceChildren();
    this.chosen = request;
    this.button.hidden = request === undefined;
    this.button.disabled = this.isAsked;
    this.button.textContent = this.isAsked ? "Its traffic is replayed" : `Why was request ${request ?? ""} late?`;
  }

  private async ask(): Promise<void> {
    const request = this.chosen;
    if (request === undefined || this.isAsked) return;
    this.isAsked = true;
    this.offer(request);
    let said: string[];
    try {
      const headers = { authorization: `Bearer ${adminKey()}` };
      const answer = await fetch(`explain?request=${encodeURIComponent(request)}`, { headers, cache: "no-store", credentials: "omit", redirect: "error" });
      said = answer.ok ? ((await answer.json()) as { text: string[] }).text : [`Not explained: ${await message(answer)}.`];
    } catch {
      said = ["The server does not answer."];
    }
    this.isAsked = false;
    lines(this.into, said.map((text) => ({ text })));
    this.offer(this.chosen);
  }
}
