/** The chunks of a streamed answer, read from its server-sent events. */

/** A chunk of `/v1/chat/completions` or `/v1/completions`, as far as most readers care. */
export interface Chunk {
  readonly choices?: readonly {
    readonly index?: number;
    readonly text?: string | null;
    readonly delta?: { readonly role?: string; readonly content?: string | null; readonly [key: string]: unknown };
    readonly finish_reason?: string | null;
  }[];
  readonly usage?: { readonly completion_tokens?: number; readonly [key: string]: unknown } | null;
  readonly [key: string]: unknown;
}

const DONE = "[DONE]";

/**
 * The chunks of `response`, to its `[DONE]`.
 *
 * Raises an Error for an answer that is none (the status and what the server said) and for one that breaks off with an
 * error. `return()` cancels the body at once, also while a chunk is awaited.
 */
export class ResponseChunks implements AsyncIterableIterator<Chunk> {
  readonly #response: Response;
  readonly #events = new EventParser();
  readonly #ready: string[] = [];
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #over = false;

  constructor(response: Response) {
    this.#response = response;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Chunk>> {
    try {
      while (!this.#over) {
        const data = this.#ready.shift();
        if (data === undefined) await this.#fill();
        else if (data === DONE) await this.return();
        else return { done: false, value: parsed(data) };
      }
    } catch (error) {
      await this.return().catch(() => undefined);
      throw error;
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<Chunk>> {
    this.#over = true;
    await (this.#reader ?? this.#response.body)?.cancel();
    return { done: true, value: undefined };
  }

  async #fill(): Promise<void> {
    if (this.#reader === undefined) {
      if (!this.#response.ok) throw new Error(`${this.#response.status}: ${await this.#response.text()}`);
      if (this.#response.body === null) throw new Error("the answer has no body to stream");
      this.#reader = this.#response.body.getReader();
    }
    const { done, value } = await this.#reader.read();
    if (done) this.#over = true;
    else this.#ready.push(...this.#events.feed(value));
  }
}

/** Throws what the server says went wrong. */
function parsed(data: string): Chunk {
  const chunk = JSON.parse(data) as Chunk;
  const error = chunk["error"] as { message?: string } | string | null | undefined;
  if (error === undefined || error === null) return chunk;
  throw new Error(typeof error === "string" ? error : (error.message ?? data));
}

/** The data of server-sent events out of bytes that may break anywhere. */
class EventParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #data: string[] = [];

  feed(bytes: Uint8Array): string[] {
    const found: string[] = [];
    // A trailing CR may be half of a CR LF.
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
      else if (line === "" && this.#data.length > 0) {
        found.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return found;
  }
}
