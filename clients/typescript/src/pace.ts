/**
 * When a reader is given each piece of a reply, and how the reply went for that reader (Andes, Sec. 5 and Fig. 8).
 *
 * A piece is handed on at the later of two times: its arrival, and when the reader has digested all that came before.
 * So tokens that come early wait, and a late token never does. A piece without text waits for its turn alone.
 */

import { qoe, type Expectation } from "./qoe.js";

/** The reader, having digested all there was at `atSeconds`, waited that long for a late token. */
export interface Stall {
  readonly atSeconds: number;
  readonly durationSeconds: number;
}

/** How a reply has gone so far for its reader: the pieces handed on. Times are seconds since it was sent for. */
export interface BufferReport {
  /** Of the deliveries; 0 once the stream has failed, null without text. */
  readonly qoe: number | null;
  /** Of the first text; null without. */
  readonly ttftSeconds: number | null;
  readonly tokens: number;
  /** After the first token. */
  readonly stalls: readonly Stall[];
  /** What the buffer kept pieces with text waiting, summed over them. */
  readonly heldSeconds: number;
  /** When each token came, and when it was handed on. */
  readonly arrivalsSeconds: readonly number[];
  readonly releasesSeconds: readonly number[];
}

/** One reader's progress, piece by piece in order: `arrive`, `wait` if need be, `release`. */
export class Pace {
  readonly #expectation: Expectation;
  #tokens = 0;
  #arrival = 0;
  #earliest = 0;
  #due = 0;
  #released = 0;
  #digested = -Infinity;
  #held = 0;
  readonly #stalls: Stall[] = [];
  readonly #arrivals: number[] = [];
  readonly #releases: number[] = [];

  /** @throws RangeError for an expectation that is not positive. */
  constructor(expectation: Expectation) {
    for (const [name, value] of Object.entries(expectation)) {
      if (!(Number.isFinite(value) && value > 0)) throw new RangeError(`${name}: ${value} is not a positive number`);
    }
    this.#expectation = expectation;
  }

  /** Takes the next piece, which came at `arrival` with `tokens` tokens of text. */
  arrive(arrival: number, tokens: number): void {
    this.#tokens = tokens;
    this.#arrival = Math.max(arrival, this.#arrival);
    this.#earliest = Math.max(this.#arrival, this.#released);
    this.#due = tokens > 0 ? Math.max(this.#earliest, this.#digested) : this.#earliest;
  }

  /** Seconds for which the piece is to be kept from `now` on; never longer than its reader needs for the last one. */
  wait(now: number): number {
    return Math.max(this.#due - Math.max(now, this.#earliest), 0);
  }

  /** Notes that the piece was handed on at `now`: when it was due, or later if nobody asked for it before. */
  release(now: number): void {
    this.#released = Math.max(now, this.#due);
    if (this.#tokens === 0) return;
    if (this.#arrivals.length > 0 && this.#arrival > this.#digested) {
      this.#stalls.push({ atSeconds: this.#digested, durationSeconds: this.#arrival - this.#digested });
    }
    this.#held += this.#due - this.#arrival;
    this.#digested = this.#released + this.#tokens / this.#expectation.tds;
    for (let token = 0; token < this.#tokens; token++) {
      this.#arrivals.push(this.#arrival);
      this.#releases.push(this.#released);
    }
  }

  /** What has been handed on so far; failed: the stream ended in an error. */
  report(failed: boolean): BufferReport {
    const judged = this.#arrivals.length > 0 ? qoe(this.#arrivals, this.#expectation) : null;
    return {
      qoe: failed ? 0 : judged,
      ttftSeconds: this.#arrivals[0] ?? null,
      tokens: this.#arrivals.length,
      stalls: [...this.#stalls],
      heldSeconds: this.#held,
      arrivalsSeconds: [...this.#arrivals],
      releasesSeconds: [...this.#releases],
    };
  }
}
