import { expect, test } from "vitest";

import cases from "../../timelines.json" with { type: "json" };
import { TokenBuffer, type Chunk } from "../src/index.js";
import { stream, VirtualTime } from "./virtual-time.js";

type Place = Chunk & { readonly place: number };

/** The pieces of a case as chunks that say how many tokens there are so far. */
function chunks(pieces: readonly (readonly number[])[]): [number, Place][] {
  let soFar = 0;
  return pieces.map(([at = 0, tokens = 0], place) => {
    soFar += tokens;
    const delta = tokens > 0 ? { content: `${place} ` } : { role: "assistant", content: "" };
    return [at, { choices: [{ index: 0, delta }], usage: { completion_tokens: soFar }, place }];
  });
}

function close(found: readonly number[], expected: readonly number[]): void {
  expect(found.length).toBe(expected.length);
  found.forEach((value, i) => expect(value).toBeCloseTo(expected[i] ?? NaN, 6));
}

test.each(cases)("$name", async (timeline) => {
  const time = new VirtualTime();
  const { tds, expected_ttft_s: ttftSeconds } = timeline;
  const arrivals = chunks(timeline.pieces);
  const handed: [number, Place][] = [];
  const report = await time.run(async () => {
    const options = { tds, ttftSeconds, now: () => time.now, sleep: time.sleep };
    const buffer = new TokenBuffer(stream(time, arrivals), options);
    for await (const chunk of buffer) handed.push([time.now, chunk]);
    return buffer.report();
  });
  expect(handed.map(([, chunk]) => chunk)).toEqual(arrivals.map(([, chunk]) => chunk));
  close(handed.map(([at]) => at), timeline.releases_s);
  expect(report.tokens).toBe(timeline.tokens);
  expect(report.heldSeconds).toBeCloseTo(timeline.held_s, 6);
  if (timeline.qoe === null) expect(report.qoe).toBeNull();
  else expect(report.qoe).toBeCloseTo(timeline.qoe, 6);
  if (timeline.ttft_s === null) expect(report.ttftSeconds).toBeNull();
  else expect(report.ttftSeconds).toBeCloseTo(timeline.ttft_s, 6);
  const stalls = report.stalls.filter((stall) => stall.durationSeconds > 1e-6);
  const expected = timeline.stalls.filter(([, seconds = 0]) => seconds > 1e-6);
  close(stalls.flatMap((stall) => [stall.atSeconds, stall.durationSeconds]), expected.flat());
});
