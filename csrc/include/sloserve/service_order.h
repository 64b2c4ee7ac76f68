// Decodes before unfinished prompts, and last those that the engine should preempt first. No Python, no torch: plain arrays
// in, plain arrays out. The rule and its reasons: sloserve/lso/decode_first.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sloserve/kv_layout.h"
#include "sloserve/request_columns.h"

namespace sloserve {

// layout: of the KV cache. free_blocks: that are free; below 0 where some are promised. token_budget: tokens that the step may
// compute. decode_tokens: of each decode.
struct StepRoom {
  const KvLayout& layout;
  std::int64_t free_blocks, token_budget, decode_tokens;

  void check() const {
    check_within("free_blocks", free_blocks, -kMostCount, kMostCount);
    check_within("token_budget", token_budget, 0, kMostCount);
    check_within("decode_tokens", decode_tokens, 0, kMostCount);
  }
};

namespace detail {

// Which of `order` the engine should preempt first if blocks run out in the next step: the last that it may, as many as hold
// what is missing. left: prefill tokens of each.
inline std::vector<bool> next_victims(const ProgressColumns& progress, const bool* preemptable, const Slots& order,
                                      const std::vector<std::int64_t>& left, std::int64_t decodes, const StepRoom& step) {
  std::vector<bool> victims(order.size, false);
  const std::int64_t decodes_tokens = step.decode_tokens * decodes;
  const auto requests = static_cast<std::int64_t>(order.size);
  if (step.free_blocks > step.layout.most_growth(std::max(step.token_budget, decodes_tokens), requests)) return victims;
  std::int64_t room = std::max<std::int64_t>(step.token_budget - decodes_tokens, 0), missing = -step.free_blocks;
  for (std::size_t i = 0; i < order.size; ++i) {
    const std::int64_t computed = progress.computed[order[i]];
    const std::int64_t chunk = left[i] > 0 ? std::min(room, left[i]) : step.decode_tokens;
    if (left[i] > 0) room -= chunk;
    missing += step.layout.growth(computed, chunk);
  }
  for (std::size_t i = order.size; i-- > 0 && missing > 0;) {
    if (!preemptable[order[i]]) continue;
    victims[i] = true;
    missing -= step.layout.held(progress.computed[order[i]], 0);
  }
  return victims;
}

}  // namespace detail

// Running requests in a policy's order of service as a plan should have them: decodes, unfinished prompts, the next victims,
// each part in that order. Empty where that is the order given. Throws std::invalid_argument for counts below 0 or above
// kMostCount.
inline std::vector<std::int64_t> service_order(const ProgressColumns& progress, const bool* preemptable, const Slots& order,
                                               const StepRoom& step) {
  step.check();
  progress.check(order);
  std::vector<std::int64_t> left(order.size);
  std::int64_t decodes = 0;
  for (std::size_t i = 0; i < order.size; ++i) {
    left[i] = progress.uncomputed(order[i]);
    decodes += left[i] == 0;
  }
  if (decodes == static_cast<std::int64_t>(order.size)) return {};
  const std::vector<bool> victims = detail::next_victims(progress, preemptable, order, left, decodes, step);
  std::vector<std::int64_t> found;
  found.reserve(order.size);
  const auto add = [&](const auto& belongs) {
    for (std::size_t i = 0; i < order.size; ++i) {
      if (belongs(i)) found.push_back(order.data[i]);
    }
  };
  add([&](std::size_t i) { return !victims[i] && left[i] == 0; });
  add([&](std::size_t i) { return !victims[i] && left[i] > 0; });
  add([&](std::size_t i) { return victims[i]; });
  return found;
}

}  // namespace sloserve
