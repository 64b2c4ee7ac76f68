import { afterEach, expect, test, vi } from "vitest";

import { DEFAULT_TDS, qoe, TokenBuffer } from "../src/index.js";
import { stream, VirtualTime } from "./virtual-time.js";

afterEach(() => vi.useRealTimers());

function options(time: VirtualTime, tds = 1): { tds: number; now: () => number; sleep: VirtualTime["sleep"] } {
  return { tds, now: () => time.now, sleep: time.sleep };
}

test("an error comes after all that came before it", async () => {
  const time = new VirtualTime();
  const arrivals = [[0.1, "a"], [0.1, "b"], [0.2, new Error("broken")]] as const;
  await time.run(async () => {
    const buffer = new TokenBuffer(stream<string>(time, arrivals), options(time));
    const handed: [number, string][] = [];
    await expect(async () => {
      for await (const piece of buffer) handed.push([time.now, piece]);
    }).rejects.toThrow("broken");
    expect(handed).toEqual([[0.1, "a"], [1.1, "b"]]);
    expect(await buffer.next()).toEqual({ done: true, value: undefined });
    expect(buffer.report()).toMatchObject({ qoe: 0, tokens: 2 });
  });
});

test("the source is read ahead while its reader is kept waiting", async () => {
  const time = new VirtualTime();
  let given = 0;
  async function* source(): AsyncGenerator<string> {
    for (; given < 10; given++) {
      await time.sleep(0.01);
      yield "a";
    }
  }
  await time.run(async () => {
    const buffer = new TokenBuffer(source(), options(time));
    await buffer.next();
    await buffer.next();
    expect(given).toBe(10);
  });
});

test("leaving the loop closes the source", async () => {
  const time = new VirtualTime();
  let closed = false;
  async function* source(): AsyncGenerator<string> {
    try {
      for (;;) {
        await time.sleep(1);
        yield "a";
      }
    } finally {
      closed = true;
    }
  }
  await time.run(async () => {
    const buffer = new TokenBuffer(source(), options(time));
    for await (const piece of buffer) {
      expect(piece).toBe("a");
      break;
    }
    expect(await buffer.next()).toEqual({ done: true, value: undefined });
    await time.sleep(5);
    expect(closed).toBe(true);
    expect(buffer.report()).toMatchObject({ tokens: 1, qoe: 1 });
  });
});

test("closing aborts an SDK's stream that is stalled, and ends who waits for it", async () => {
  const controller = new AbortController();
  const source = {
    controller,
    async *[Symbol.asyncIterator](): AsyncGenerator<string> {
      await new Promise((_, reject) => controller.signal.addEventListener("abort", () => reject(new Error("aborted"))));
    },
  };
  const buffer = new TokenBuffer(source);
  const waiting = buffer.next();
  await buffer.return();
  expect(await waiting).toEqual({ done: true, value: undefined });
  expect(controller.signal.aborted).toBe(true);
});

test("who asks for several pieces at once gets them in turn", async () => {
  const time = new VirtualTime();
  await time.run(async () => {
    const buffer = new TokenBuffer(stream<string>(time, [[0, "a"], [0, "b"]]), options(time));
    const results = await Promise.all([buffer.next(), buffer.next(), buffer.next()]);
    expect(results.map((result) => result.value as unknown)).toEqual(["a", "b", undefined]);
    expect(buffer.report().releasesSeconds).toEqual([0, 1]);
  });
});

test("latency counts from when the request was sent", async () => {
  const time = new VirtualTime();
  time.now = 7;
  await time.run(async () => {
    const buffer = new TokenBuffer(stream<string>(time, [[7.5, "a"]]), { ...options(time), sentSeconds: 5 });
    for await (const piece of buffer) expect(piece).toBe("a");
    expect(buffer.report().ttftSeconds).toBeCloseTo(2.5);
  });
});

test("by default time is the system's, and the pace that of reading", async () => {
  vi.useFakeTimers();
  async function* source(): AsyncGenerator<string> {
    yield* ["a", "b", "c"];
  }
  const buffer = new TokenBuffer(source());
  const handed: number[] = [];
  const reading = (async () => {
    for await (const _ of buffer) handed.push(performance.now());
  })();
  const started = performance.now();
  await vi.runAllTimersAsync();
  await reading;
  expect(handed).toHaveLength(3);
  handed.forEach((at, i) => expect(Math.abs(at - started - (i * 1000) / DEFAULT_TDS)).toBeLessThan(2));
});

test("tokens are counted where the server says how many, tool calls are not read", async () => {
  const chat = (delta: object, soFar?: number): object => ({
    choices: [{ index: 0, delta }],
    ...(soFar === undefined ? {} : { usage: { completion_tokens: soFar } }),
  });
  const count = async (...pieces: unknown[]): Promise<number> => {
    const time = new VirtualTime();
    return time.run(async () => {
      const buffer = new TokenBuffer(stream(time, pieces.map((piece) => [0, piece] as const)), options(time));
      for await (const piece of buffer) expect(pieces).toContain(piece);
      return buffer.report().tokens;
    });
  };
  expect(await count(chat({ role: "assistant" }), chat({ content: "a" }), chat({ reasoning: "b" }))).toBe(2);
  expect(await count(chat({ content: "a" }, 1), chat({ content: "" }, 3), chat({ content: "é" }, 4))).toBe(4);
  expect(await count(chat({ content: "a" }, 1), chat({ tool_calls: [{}] }, 9), chat({ content: "b" }, 10))).toBe(2);
  expect(await count({ choices: [{ text: "a" }] }, { choices: [], usage: { completion_tokens: 50 } })).toBe(1);
  expect(await count({ type: "response.output_text.delta", delta: "a" }, { type: "response.completed" })).toBe(1);
});

test("what makes no sense is refused", () => {
  const empty = stream<string>(new VirtualTime(), []);
  expect(() => new TokenBuffer(empty, { tds: 0 })).toThrow("tds: 0 is not a positive number");
  expect(() => new TokenBuffer(empty, { sentSeconds: 2, now: () => 1 })).toThrow("sentSeconds: 2 is after now, 1");
  expect(() => qoe([], { ttftSeconds: 1, tds: 1 })).toThrow("no QoE");
  expect(() => qoe([2, 1], { ttftSeconds: 1, tds: 1 })).toThrow("must ascend");
});
