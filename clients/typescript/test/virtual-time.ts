/** Time that passes only when everybody waits for it. */
export class VirtualTime {
  now = 0;
  readonly #timers: { at: number; wake: () => void }[] = [];

  readonly sleep = (seconds: number): Promise<void> =>
    new Promise((wake) => this.#timers.push({ at: this.now + seconds, wake }));

  /** Lets time pass until `main` has ended. */
  async run<T>(main: () => Promise<T>): Promise<T> {
    let over = false;
    const result = main().finally(() => (over = true));
    result.catch(() => undefined);
    for (;;) {
      for (let turn = 0; turn < 40; turn++) await Promise.resolve();
      if (over) return result;
      const next = this.#timers.sort((a, b) => a.at - b.at).shift();
      if (next === undefined) throw new Error("everybody waits, and nothing is going to happen");
      this.now = Math.max(this.now, next.at);
      next.wake();
    }
  }
}

/** Gives each piece at its time, or throws it. */
export async function* stream<T>(time: VirtualTime, arrivals: readonly (readonly [number, T | Error])[]): AsyncGenerator<T> {
  for (const [at, piece] of arrivals) {
    if (at > time.now) await time.sleep(at - time.now);
    if (piece instanceof Error) throw piece;
    yield piece;
  }
}
