// Ranking of requests by a policy's key. No Python, no torch: plain arrays in, plain arrays out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sloserve {

namespace detail {

struct Ranked {
  double key;
  std::int64_t seq;
  std::int64_t index;
};

// Total order: numbers before NaN, then key, then seq, then place in the input. Without the NaN rule the comparison would
// not be a strict weak ordering, and std::sort may then read past the end.
inline bool ranks_before(const Ranked& a, const Ranked& b) {
  const bool a_nan = std::isnan(a.key);
  const bool b_nan = std::isnan(b.key);
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.key != b.key) return a.key < b.key;
  if (a.seq != b.seq) return a.seq < b.seq;
  return a.index < b.index;
}

}  // namespace detail

// Indices of the k smallest of n requests by (key, seq), ascending; all n of them, ranked, when k exceeds n. NaN keys rank
// last. O(n + k log k).
//
// keys, seqs: num_keys and num_seqs elements, which must agree.
// Throws std::invalid_argument when they do not, or k is negative, before any element is read.
inline std::vector<std::int64_t> top_k(const double* keys, std::size_t num_keys, const std::int64_t* seqs,
                                       std::size_t num_seqs, std::int64_t k) {
  if (num_keys != num_seqs) {
    throw std::invalid_argument("seqs: " + std::to_string(num_seqs) + " elements for " + std::to_string(num_keys) +
                                " keys; there must be one for each key");
  }
  if (k < 0) {
    throw std::invalid_argument("k: " + std::to_string(k) + " is negative; the least is 0");
  }
  const std::size_t count = std::min(static_cast<std::size_t>(k), num_keys);
  if (count == 0) return {};

  std::vector<detail::Ranked> ranked(num_keys);
  for (std::size_t i = 0; i < num_keys; ++i) {
    ranked[i] = {keys[i], seqs[i], static_cast<std::int64_t>(i)};
  }
  const auto cut = ranked.begin() + static_cast<std::ptrdiff_t>(count);
  if (cut != ranked.end()) std::nth_element(ranked.begin(), cut, ranked.end(), detail::ranks_before);
  std::sort(ranked.begin(), cut, detail::ranks_before);

  std::vector<std::int64_t> indices(count);
  for (std::size_t i = 0; i < count; ++i) indices[i] = ranked[i].index;
  return indices;
}

}  // namespace sloserve
