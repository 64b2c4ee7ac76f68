/**
 * Reads a stream to its end as fast as it comes, and notes when: the connection is never throttled and arrival times
 * are the server's, whatever pace the pieces are taken at. What is not taken yet is kept, at most the whole reply.
 */

/** A piece of the stream and when it came, or its end and what it raised. */
export type Came<T> =
  | { readonly end: false; readonly atSeconds: number; readonly piece: T }
  | { readonly end: true; readonly failure?: { readonly error: unknown } };

export class ReadAhead<T> {
  readonly #source: AsyncIterable<T>;
  readonly #iterator: AsyncIterator<T>;
  readonly #now: () => number;
  readonly #came: Came<T>[] = [];
  #wake: () => void = () => undefined;
  #stopped = false;

  constructor(source: AsyncIterable<T>, now: () => number) {
    this.#source = source;
    this.#iterator = source[Symbol.asyncIterator]();
    this.#now = now;
    void this.#read();
  }

  /** The next piece, once it is there. */
  async take(): Promise<Came<T>> {
    for (;;) {
      const came = this.#came.shift();
      if (came !== undefined) return came;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** Reads no further and closes the source, without waiting for a piece that it is about to give. */
  stop(): void {
    this.#stopped = true;
    this.#push({ end: true });
    // An async generator that awaits something ends only after that; the SDK's streams can be aborted at once.
    (this.#source as { controller?: { abort?: () => void } }).controller?.abort?.();
    void this.#iterator.return?.()?.catch(() => undefined);
  }

  async #read(): Promise<void> {
    try {
      for (;;) {
        const result = await this.#iterator.next();
        if (this.#stopped) return;
        if (result.done === true) break;
        this.#push({ end: false, atSeconds: this.#now(), piece: result.value });
      }
      this.#push({ end: true });
    } catch (error) {
      this.#push({ end: true, failure: { error } });
    }
  }

  #push(came: Came<T>): void {
    this.#came.push(came);
    this.#wake();
  }
}
