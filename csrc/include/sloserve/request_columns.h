// What follows from the columns of the request table for some of its slots, each rule once. No Python, no torch: plain
// arrays in, plain arrays out. The columns: sloserve/core/rows.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace sloserve {

// Slots of a table of `capacity` rows. Throws std::invalid_argument for one that it has not.
struct Slots {
  const std::int64_t* data;
  std::size_t size;

  void check(std::size_t capacity) const {
    for (std::size_t i = 0; i < size; ++i) {
      if (data[i] < 0 || static_cast<std::size_t>(data[i]) >= capacity) {
        throw std::invalid_argument("slot " + std::to_string(data[i]) + " of " + std::to_string(capacity));
      }
    }
  }
  std::size_t operator[](std::size_t i) const { return static_cast<std::size_t>(data[i]); }
};

// Throws std::invalid_argument for a value that is not within least..most.
inline void check_within(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) + " is not within " + std::to_string(least) +
                                " to " + std::to_string(most));
  }
}

// The most tokens, or blocks, of one value: what 32 bits hold. The request table keeps to half of it (MAX_TOKENS in
// sloserve/engine/columns.py). Sums over the columns, and over as many slots as memory holds, stay within 64 bits.
inline constexpr std::int64_t kMostCount = (std::int64_t{1} << 32) - 1;

// A column of tokens, by slot.
struct TokenColumn {
  const char* name;
  const std::int64_t* tokens;
};

// Throws std::invalid_argument for tokens below 0 or above kMostCount in one of the slots.
inline void check_tokens(std::initializer_list<TokenColumn> columns, const Slots& slots) {
  std::uint64_t seen = 0;  // has a bit above the lower 32 where one of the values has it
  for (const TokenColumn& column : columns) {
    for (std::size_t i = 0; i < slots.size; ++i) seen |= static_cast<std::uint64_t>(column.tokens[slots[i]]);
  }
  if (seen <= static_cast<std::uint64_t>(kMostCount)) return;
  for (const TokenColumn& column : columns) {
    for (std::size_t i = 0; i < slots.size; ++i) {
      check_within((std::string(column.name) + " of slot " + std::to_string(slots[i])).c_str(), column.tokens[slots[i]], 0,
                   kMostCount);
    }
  }
}

// Seconds a token may take after the first: the tighter of a TPOT and a reader's speed; NaN where neither is stated.
inline double token_pace_s(double tpot_s, double tds) { return std::fmin(tpot_s, 1.0 / tds); }

// Tokens, by slot; those of the slots that are asked for are checked before.
struct ProgressColumns {
  const std::int64_t *prompt, *output, *computed, *swapped, *hit;

  void check(const Slots& slots) const {
    check_tokens({{"prompt_tokens", prompt},
                  {"output_tokens", output},
                  {"computed_tokens", computed},
                  {"swapped_tokens", swapped},
                  {"hit_tokens", hit}},
                 slots);
  }

  std::int64_t context(std::size_t slot) const { return prompt[slot] + output[slot]; }

  // See tokens_without_kv in sloserve/lso/decode_first.py.
  std::int64_t without_kv(std::size_t slot) const {
    // Of what is kept for a request only the part beyond its hit in the prefix cache is loaded.
    return context(slot) - computed[slot] - std::max(swapped[slot], hit[slot]);
  }

  // See uncomputed_tokens there.
  std::int64_t uncomputed(std::size_t slot) const {
    // The last token of a reply has no KV yet, unless the step that computes it is in flight.
    const std::int64_t left = without_kv(slot);
    return left <= (output[slot] > 0) ? 0 : left;
  }
};

// KV blocks that hold so many tokens. See sloserve/lso/blocks.py.
inline std::int64_t blocks_of(std::int64_t tokens, std::int64_t block_size) { return (tokens + block_size - 1) / block_size; }

}  // namespace sloserve
