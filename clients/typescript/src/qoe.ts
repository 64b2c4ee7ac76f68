/**
 * Quality of experience of a streamed reply (Andes, Sec. 3.1, Eq. 1), in the closed form of `sloserve/core/qoe.py`:
 * the area under what was digested over the area under what was expected, from arrival to the last token's delivery.
 */

/** Expected seconds to the first token where nothing else is said. Source: Andes, Sec. 2.2 and 6.1. */
export const DEFAULT_TTFT_SECONDS = 1.0;

/** Expected tokens per second where nothing else is said: average reading speed. Source: Andes, Sec. 2.2. */
export const DEFAULT_TDS = 4.8;

/** What a reader expects: seconds to the first token, then tokens per second. */
export interface Expectation {
  readonly ttftSeconds: number;
  readonly tds: number;
}

/**
 * QoE in [0, 1] of a reply that was delivered to its end.
 *
 * @param tokenTimes seconds from the sending of the request to each token's delivery, ascending; at least one.
 * @throws RangeError for times that are none, descend, or begin before the request.
 */
export function qoe(tokenTimes: readonly number[], { ttftSeconds, tds }: Expectation): number {
  const last = tokenTimes.at(-1);
  if (last === undefined) throw new RangeError("an output without tokens has no QoE");
  let before = 0;
  let digested = -Infinity;
  let actual = 0;
  for (const time of tokenTimes) {
    if (!(time >= before)) throw new RangeError("token times must ascend from the sending of the request on");
    before = time;
    // The reader takes up a token once it is there and the one before it is digested; digesting it is a ramp to 1.
    const start = Math.max(time, digested);
    digested = start + 1 / tds;
    const since = Math.max(last - start, 0);
    actual += 0.5 * tds * Math.min(since, 1 / tds) ** 2 + Math.max(since - 1 / tds, 0);
  }
  const expected = expectedArea(tokenTimes.length, last - ttftSeconds, tds);
  return expected === 0 ? 1 : Math.min(1, actual / expected);
}

/** Token seconds that a reader expects to have read, `since` seconds after the expected first token. */
function expectedArea(tokens: number, since: number, tds: number): number {
  const elapsed = Math.max(since, 0);
  const reading = tokens / tds;
  return 0.5 * tds * Math.min(elapsed, reading) ** 2 + tokens * Math.max(elapsed - reading, 0);
}
