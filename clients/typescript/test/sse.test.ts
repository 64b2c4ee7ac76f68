import { expect, test } from "vitest";

import { TokenBuffer, type Chunk } from "../src/index.js";

const chunk = (content: string): string => JSON.stringify({ choices: [{ index: 0, delta: { content } }] });

/** An answer whose bytes come in `parts`; it stays open unless `end`. */
function answer(parts: readonly (string | Uint8Array)[], { end = true, onCancel = (): void => undefined } = {}): Response {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const part of parts) controller.enqueue(typeof part === "string" ? new TextEncoder().encode(part) : part);
      if (end) controller.close();
    },
    cancel: onCancel,
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

async function texts(response: Response): Promise<(string | null | undefined)[]> {
  const found: Chunk[] = [];
  for await (const piece of TokenBuffer.fromResponse(response, { tds: 1e6 })) found.push(piece);
  return found.map((piece) => piece.choices?.[0]?.delta?.content);
}

test("events come out of bytes that break anywhere", async () => {
  const bytes = new TextEncoder().encode(`: ping\n\ndata: ${chunk("é")}\n\ndata:${chunk("b")}\r\n\r\ndata: [DONE]\n\n`);
  for (const size of [1, 2, 3, 7, bytes.length]) {
    const parts = [];
    for (let at = 0; at < bytes.length; at += size) parts.push(bytes.slice(at, at + size));
    expect(await texts(answer(parts))).toEqual(["é", "b"]);
  }
});

test("data on several lines are one chunk, other fields are skipped", async () => {
  expect(await texts(answer([`event: x\nid: 1\ndata: {"choices": [{\ndata: "delta": {"content": "a"}}]}\n\n`]))).toEqual(["a"]);
});

test("nothing is read past the end that the server states", async () => {
  let cancelled = false;
  const open = answer([`data: ${chunk("a")}\n\ndata: [DONE]\n\n`], { end: false, onCancel: () => (cancelled = true) });
  expect(await texts(open)).toEqual(["a"]);
  expect(cancelled).toBe(true);
});

test("what the server says went wrong is thrown in its place", async () => {
  const broken = `data: ${chunk("a")}\n\ndata: {"error": {"message": "the engine died"}}\n\n`;
  const buffer = TokenBuffer.fromResponse(answer([broken]), { tds: 1e6 });
  expect((await buffer.next()).done).toBe(false);
  await expect(buffer.next()).rejects.toThrow("the engine died");
  expect(buffer.report().qoe).toBe(0);
  await expect(texts(answer(["data: nonsense\n\n"]))).rejects.toThrow(SyntaxError);
  await expect(texts(new Response("queue full", { status: 429 }))).rejects.toThrow("429: queue full");
  await expect(texts(new Response(null))).rejects.toThrow("no body");
});

test("closing cancels a body that has stalled", async () => {
  let cancelled = false;
  const stalled = answer([`data: ${chunk("a")}\n\n`], { end: false, onCancel: () => (cancelled = true) });
  for await (const piece of TokenBuffer.fromResponse(stalled)) {
    expect(piece.choices).toHaveLength(1);
    break;
  }
  await Promise.resolve();
  expect(cancelled).toBe(true);
});
