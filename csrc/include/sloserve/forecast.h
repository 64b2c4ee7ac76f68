// Who fits the KV cache to the end of all, by how likely each is to run on. No Python, no torch: plain arrays in, plain
// arrays out. The forecast and its reasons: sloserve/lso/forecast.py.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/kv_layout.h"
#include "sloserve/survival.h"

namespace sloserve {

// How many of `asked`, in order, fit beside all of `held`: none after the first that does not.
//
// runs: of n requests, that each still runs at a step. tokens: [n]; in its KV now. grown: [steps]; tokens that come until a
// step. layout: of the KV cache. held, asked: places of requests, from 0 to n - 1. capacity: blocks that there are. sigmas:
// standard deviations of the sum that stay free.
// Throws std::invalid_argument for a place that is none, and where a look-up throws.
inline std::size_t how_many_fit(const Chances& runs, const std::int64_t* tokens, const double* grown, const KvLayout& layout,
                                const std::int64_t* held, std::size_t num_held, const std::int64_t* asked,
                                std::size_t num_asked, double capacity, double sigmas) {
  const std::size_t n = runs.size(), steps = runs.steps();
  const auto checked = [n](std::int64_t place) {
    if (place < 0 || static_cast<std::size_t>(place) >= n) {
      throw std::invalid_argument("place " + std::to_string(place) + " of " + std::to_string(n));
    }
    return static_cast<std::size_t>(place);
  };
  std::vector<double> mean(steps, 0.0), variance(steps, 0.0), row(steps);
  const auto add = [&](std::size_t i, const auto& blocks_of_tokens) {
    const std::size_t most = runs.row(i, row.data());
    const double now = static_cast<double>(tokens[i]);
    for (std::size_t k = 0; k < most; ++k) {
      const double blocks = blocks_of_tokens(now + grown[k]);
      const double expected = blocks * row[k];
      mean[k] += expected;
      variance[k] += expected * (blocks - expected);
    }
  };
  const auto fit = [&](const auto& blocks_of_tokens) {
    for (std::size_t i = 0; i < num_held; ++i) add(checked(held[i]), blocks_of_tokens);
    for (std::size_t i = 0; i < num_asked; ++i) {
      add(checked(asked[i]), blocks_of_tokens);
      for (std::size_t k = 0; k < steps; ++k) {
        if (mean[k] + sigmas * std::sqrt(variance[k]) > capacity) return i;
      }
    }
    return num_asked;
  };
  // Chosen here and not for each step ahead, where it would cost a third more.
  const double size = layout.full_size();
  if (size > 0.0) return fit([size](double count) { return count / size + 0.5; });
  return fit([&layout](double count) { return layout.mean(count); });
}

}  // namespace sloserve
