/**
 * How many tokens of text a piece of an OpenAI stream brings its reader: chat and completion chunks, events of the
 * Responses API, plain strings.
 *
 * Without a tokenizer: a chunk that says how many tokens there are so far (vLLM's `continuous_usage_stats`) counts for
 * what it adds, any other with text for one. Tokens of text that is held back count for the next chunk that has text.
 * Tool calls are not read, so they count for none.
 */

const TEXT_KEYS = ["content", "reasoning_content", "reasoning", "refusal"];
const TEXT_EVENTS = new Set<unknown>([
  "response.output_text.delta",
  "response.reasoning_summary_text.delta",
  "response.reasoning_text.delta",
  "response.refusal.delta",
]);

/** Counts a stream's tokens, piece by piece; each choice of several has its count, and one reader reads them all. */
export class TextCounter {
  readonly #counted = new Map<unknown, number>();

  /** Tokens that `piece` brings; 0 for one without text, at least 1 for one with. */
  textTokens(piece: unknown): number {
    if (typeof piece === "string") return piece === "" ? 0 : 1;
    const choices = field(piece, "choices");
    if (!Array.isArray(choices) || choices.length === 0) {
      return TEXT_EVENTS.has(field(piece, "type")) && field(piece, "delta") ? 1 : 0;
    }
    // Whose tokens the usage counts is not said where there are several.
    if (choices.length > 1) return choices.filter(hasText).length;
    const soFar = field(field(piece, "usage"), "completion_tokens");
    return this.#ofChoice(choices[0], typeof soFar === "number" ? soFar : undefined);
  }

  /** `soFar`: tokens of the choice up to here, if the server says. */
  #ofChoice(choice: unknown, soFar: number | undefined): number {
    const index = field(choice, "index");
    const counted = this.#counted.get(index) ?? 0;
    if (!hasText(choice)) {
      if (soFar !== undefined && isFilled(field(field(choice, "delta"), "tool_calls"))) {
        this.#counted.set(index, Math.max(counted, soFar));
      }
      return 0;
    }
    const tokens = soFar === undefined ? 1 : Math.max(1, soFar - counted);
    this.#counted.set(index, counted + tokens);
    return tokens;
  }
}

function hasText(choice: unknown): boolean {
  const delta = field(choice, "delta");
  return Boolean(field(choice, "text")) || TEXT_KEYS.some((key) => Boolean(field(delta, key)));
}

function isFilled(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0;
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined;
}
