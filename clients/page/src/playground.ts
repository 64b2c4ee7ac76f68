/** One streamed request with targets: what arrives, what its reader has digested, QoE, and the server's own report. */
import { DEFAULT_TDS, DEFAULT_TTFT_SECONDS, qoe } from "../../typescript/src/qoe";
import { TextCounter } from "../../typescript/src/pieces";
import { type Chunk, ResponseChunks } from "../../typescript/src/sse";
import { TokenBuffer } from "../../typescript/src/token-buffer";
import { curves } from "./charts";
import { byId, table } from "./dom";
import { message } from "./policy";

const DRAW_MS = 250;
const POINTS = 240;
const TARGETS = { ttft_ms: "ttft", tpot_ms: "tpot", e2e_ms: "e2e", tds: "tds" } as const;

interface Report {
  class?: string;
  outcome?: string;
  targets?: Record<string, number>;
  achieved?: Record<string, number>;
  met?: Record<string, boolean>;
  qoe?: number;
  [name: string]: unknown;
}

export class Playground {
  private readonly chart = curves("curves", ["delivered", "digested", "expected"]);
  private stopping: AbortController | undefined;
  private apiKey = "";
  private models: string[] = [];
  private classes: string[] = [];

  constructor() {
    byId<HTMLFormElement>("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.stopping?.abort();
      void this.ask();
    });
    byId("stop").addEventListener("click", () => this.stopping?.abort());
  }

  /** What may be chosen. */
  show(models: string[], classes: string[]): void {
    byId("playground").hidden = false;
    if (String(models) !== String(this.models)) choices("p-model", (this.models = models), []);
    if (String(classes) !== String(this.classes)) choices("p-class", (this.classes = classes), ["default"]);
  }

  private async ask(): Promise<void> {
    const stopping = (this.stopping = new AbortController());
    const field = byId<HTMLInputElement>("p-key");
    if (field.value !== "") this.apiKey = field.value;
    field.value = "";
    const slo = stated();
    const reader = { tds: slo["tds"] ?? DEFAULT_TDS, ttftSeconds: (slo["ttft_ms"] ?? DEFAULT_TTFT_SECONDS * 1e3) / 1e3 };
    const into = byId("reply"), sent = performance.now() / 1000;
    const now = () => performance.now() / 1000 - sent;
    const arrivals: number[] = [];
    let report: unknown;
    byId("answer").hidden = false;
    byId("report").replaceChildren();
    into.replaceChildren();
    this.tell("Sent.");
    let buffer: TokenBuffer<Chunk> | undefined;
    const draw = () => this.chart(points(arrivals, buffer?.report().releasesSeconds ?? [], reader, now()));
    const drawing = setInterval(draw, DRAW_MS);
    try {
      const answer = await this.fetched(slo, stopping.signal);
      if (!answer.ok) {
        this.tell(`Refused: ${await message(answer)}`, "bad");
        return;
      }
      const counter = new TextCounter();
      buffer = new TokenBuffer(noted(new ResponseChunks(answer), (chunk) => {
        for (let tokens = counter.textTokens(chunk); tokens > 0; tokens--) arrivals.push(now());
        if (chunk["slo"] !== undefined) report = chunk["slo"];
      }), { ...reader, sentSeconds: sent });
      for await (const chunk of buffer) {
        into.append(textOf(chunk));
        this.tell(`${arrivals.length} tokens are delivered, ${buffer.report().tokens} digested.`);
        if (report !== undefined) reported(report as Report);
      }
      const quality = arrivals.length === 0 ? "it has no tokens" : `QoE ${qoe(arrivals, reader).toFixed(3)} as they arrived here`;
      const held = buffer.report().heldSeconds.toFixed(1);
      this.tell(`Read to its end: ${arrivals.length} tokens, ${quality}; the buffer held tokens for ${held} s in all.`);
    } catch (error) {
      if (stopping.signal.aborted) this.tell("Stopped.");
      else this.tell(`Broken off: ${error instanceof Error ? error.message.slice(0, 300) : "for no known reason"}`, "bad");
    } finally {
      clearInterval(drawing);
      if (this.stopping === stopping) draw();
      void buffer?.return();
    }
  }

  private fetched(slo: Record<string, number>, signal: AbortSignal): Promise<Response> {
    const value = (id: string) => byId<HTMLInputElement>(id).value;
    const chat = value("p-route") === "chat/completions", text = value("p-prompt");
    const body = {
      model: value("p-model"), max_tokens: Number(value("p-tokens")), stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...(chat ? { messages: [{ role: "user", content: text }] } : { prompt: text }),
    };
    const headers: Record<string, string> = { "content-type": "application/json", "x-slo-report": "1" };
    if (value("p-class") !== "default") headers["x-slo-class"] = value("p-class");
    for (const [name, target] of Object.entries(slo)) headers[`x-slo-${name.replace("_", "-")}`] = String(target);
    if (this.apiKey !== "") headers["authorization"] = `Bearer ${this.apiKey}`;
    return fetch(`../v1/${chat ? "chat/completions" : "completions"}`, {
      method: "POST", headers, body: JSON.stringify(body), signal, cache: "no-store", credentials: "omit", redirect: "error",
    });
  }

  private tell(text: string, look = ""): void {
    byId("told").textContent = text;
    byId("told").className = look;
  }
}

function stated(): Record<string, number> {
  const found: Record<string, number> = {};
  for (const [name, id] of Object.entries(TARGETS)) {
    const text = byId<HTMLInputElement>(`p-${id}`).value;
    if (text !== "") found[name] = Number(text);
  }
  return found;
}

async function* noted(chunks: ResponseChunks, note: (chunk: Chunk) => void): AsyncGenerator<Chunk> {
  for await (const chunk of chunks) {
    note(chunk);
    yield chunk;
  }
}

function textOf(chunk: Chunk): string {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta;
  return choice?.text ?? delta?.content ?? String(delta?.["reasoning_content"] ?? delta?.["reasoning"] ?? "");
}

/** Tokens up to each of some moments since the request was sent: delivered, digested, and as the reader expects. */
function points(arrivals: number[], releases: readonly number[], reader: { tds: number; ttftSeconds: number }, now: number): number[][] {
  const end = Math.max(now, 1), xs = Array.from({ length: POINTS + 1 }, (_, i) => (end * i) / POINTS);
  const expected = xs.map((x) => Math.min(Math.max((x - reader.ttftSeconds) * reader.tds, 0), arrivals.length));
  return [xs, upTo(xs, arrivals), upTo(xs, releases), expected];
}

function upTo(xs: number[], times: readonly number[]): number[] {
  let count = 0;
  return xs.map((x) => {
    while (count < times.length && times[count]! <= x) count++;
    return count;
  });
}

function reported(report: Report): void {
  const rows = Object.entries(report.targets ?? {}).map(([name, target]) => {
    const met = report.met?.[name.replace("_ms", "")];
    const got = report.achieved?.[name];
    return [called(name), String(target), got === undefined ? "–" : String(got),
      { text: met === undefined ? "" : met ? "met" : "missed", look: met === false ? ("bad" as const) : undefined }];
  });
  for (const name of ["outcome", "qoe", "waited_ms", "evictions", "preempted_ms", "paused_ms", "output_tokens"]) {
    if (report[name] !== undefined) rows.push([called(name), "", String(report[name]), { text: "", look: undefined }]);
  }
  table(byId("report"), 1, ["the server's report", "target", "got", "verdict"], rows);
}

/** A name of the report as people read it, with its unit. */
function called(name: string): string {
  const acronyms: Record<string, string> = { ttft_ms: "TTFT, ms", tpot_ms: "TPOT, ms", tds: "TDS, tokens/s", qoe: "QoE" };
  return acronyms[name] ?? name.replace(/_ms$/, ", ms").replaceAll("_", " ");
}

function choices(id: string, names: string[], before: string[]): void {
  const into = byId<HTMLSelectElement>(id), chosen = into.value;
  into.replaceChildren(...[...before, ...names].map((name) => {
    const one = document.createElement("option");
    one.value = one.textContent = name;
    return one;
  }));
  if ([...before, ...names].includes(chosen)) into.value = chosen;
}
