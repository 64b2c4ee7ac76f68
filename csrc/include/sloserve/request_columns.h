// What follows from the columns of the request table for some of its slots, each rule once. No Python, no torch: plain
// arrays in, plain arrays out. The columns: sloserve/core/rows.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

// Seconds a token may take after the first: the tighter of a TPOT and a reader's speed; NaN where neither is stated.
inline double token_pace_s(double tpot_s, double tds) { return std::fmin(tpot_s, 1.0 / tds); }

// Tokens, by slot.
struct ProgressColumns {
  const std::int64_t *prompt, *output, *computed, *swapped, *hit;

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
