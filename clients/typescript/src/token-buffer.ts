import { Pace, type BufferReport } from "./pace.js";
import { TextCounter } from "./pieces.js";
import { DEFAULT_TDS, DEFAULT_TTFT_SECONDS } from "./qoe.js";
import { ReadAhead, type Came } from "./read-ahead.js";
import { ResponseChunks, type Chunk } from "./sse.js";

export interface TokenBufferOptions {
  /** Tokens per second at which the reader digests. */
  readonly tds?: number;
  /** In which the reader expects the first token; for the report alone. */
  readonly ttftSeconds?: number;
  /** When the request was sent, by `now`; by default now. */
  readonly sentSeconds?: number;
  /** The time in seconds since any moment; by default `performance.now() / 1000`. */
  readonly now?: () => number;
  /** Waits that many seconds. */
  readonly sleep?: (seconds: number) => Promise<void>;
}

/**
 * A stream of tokens at its reader's pace (Andes, Sec. 5 and Fig. 8).
 *
 * The server may send as fast as it likes, pause the request to serve others, and go on: the reader sees tokens at
 * `tds`, for as long as the buffer holds any. A late token is never kept. The source is read ahead from the making of
 * the buffer on.
 *
 * Every piece comes out, unchanged and in order; an error of the source is thrown after all that came before it;
 * leaving the loop, or `return()`, closes the source and drops what is still held. For one consumer.
 */
export class TokenBuffer<T> implements AsyncIterableIterator<T> {
  readonly #pace: Pace;
  readonly #counter = new TextCounter();
  readonly #ahead: ReadAhead<T>;
  readonly #now: () => number;
  readonly #sleep: (seconds: number) => Promise<void>;
  #turn: Promise<unknown> = Promise.resolve();
  #over = false;
  #failed = false;

  /** @throws RangeError for an expectation that is not positive, or a request sent in the future. */
  constructor(source: AsyncIterable<T>, options: TokenBufferOptions = {}) {
    const { tds = DEFAULT_TDS, ttftSeconds = DEFAULT_TTFT_SECONDS, now = monotonicSeconds } = options;
    const started = now();
    const sent = options.sentSeconds ?? started;
    if (!(sent <= started)) throw new RangeError(`sentSeconds: ${sent} is after now, ${started}`);
    this.#pace = new Pace({ ttftSeconds, tds });
    this.#now = () => now() - sent;
    this.#sleep = options.sleep ?? timerSleep;
    this.#ahead = new ReadAhead(source, this.#now);
  }

  /** A buffer over the server-sent events of a streamed answer. */
  static fromResponse(response: Response, options: TokenBufferOptions = {}): TokenBuffer<Chunk> {
    return new TokenBuffer(new ResponseChunks(response), options);
  }

  /** How the reply went for its reader, up to the piece handed on last. */
  report(): BufferReport {
    return this.#pace.report(this.#failed);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<T>> {
    // Who asks again without waiting is served in turn.
    const result = this.#turn.then(() => this.#next());
    this.#turn = result.catch(() => undefined);
    return result;
  }

  /** Ends the iteration and closes the source. */
  return(): Promise<IteratorResult<T>> {
    if (!this.#over) {
      this.#over = true;
      this.#ahead.stop();
    }
    return Promise.resolve({ done: true, value: undefined });
  }

  async #next(): Promise<IteratorResult<T>> {
    const came: Came<T> = this.#over ? { end: true } : await this.#ahead.take();
    if (this.#over || came.end) return this.#end(came);
    this.#pace.arrive(came.atSeconds, this.#counter.textTokens(came.piece));
    const wait = this.#pace.wait(this.#now());
    if (wait > 0) await this.#sleep(wait);
    this.#pace.release(this.#now());
    return { done: false, value: came.piece };
  }

  /** Throws what the source threw; nothing once the buffer was closed. */
  #end(came: Came<T>): IteratorResult<T> {
    const failure = !this.#over && came.end ? came.failure : undefined;
    this.#over = true;
    if (failure !== undefined) {
      this.#failed = true;
      throw failure.error;
    }
    return { done: true, value: undefined };
  }
}

function monotonicSeconds(): number {
  return performance.now() / 1000;
}

function timerSleep(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}
