// Which requests to serve together, solved exactly by a dynamic programme: for the policy andes-paper, tests and benchmarks.
//
// Source: Andes, Algorithm 2. Differs: the third dimension is "weight at most m", so that the last cell is the answer (the paper's
// is "exactly m", which makes it search dp[N][B] for the best m).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sloserve {

// Items to choose from: n gains and n weights, and what their weights may sum to.
struct Knapsack {
  const double* gain;
  const std::int64_t* weight;
  std::size_t size;
  std::int64_t capacity;
};

namespace detail {

inline void check_count(const char* name, std::size_t found, const char* of, std::size_t wanted) {
  if (found == wanted) return;
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(found) + " for " + std::to_string(wanted) + " " + of +
                              "; there must be one for each");
}

inline void check_not_negative(const char* name, std::int64_t value) {
  if (value >= 0) return;
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) + " is negative; the least is 0");
}

inline void check_gains(const double* gain, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    if (!std::isfinite(gain[i])) {
      throw std::invalid_argument("gain: " + std::to_string(gain[i]) + " of item " + std::to_string(i) + " is not finite");
    }
  }
}

inline void check_weights(const std::int64_t* weight, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    if (weight[i] < 1) {
      throw std::invalid_argument("weight: " + std::to_string(weight[i]) + " of item " + std::to_string(i) + "; the least is 1");
    }
  }
}

}  // namespace detail

// Bytes of tables that pack_exact may fill.
constexpr std::size_t kMostExactBytes = std::size_t{2} << 30;

// The indices, ascending, of exactly num_items items of most gain whose weights fit, or of at most so many with at_most; nothing
// where no num_items items fit. It takes items that gain nothing if the number asks for them.
//
// O(n * num_items * capacity) time and as many bits.
// Throws std::invalid_argument when counts disagree, a weight is below 1, a gain not finite or a limit negative, and when the
// tables would be larger than kMostExactBytes.
inline std::optional<std::vector<std::int64_t>> pack_exact(const Knapsack& sack, std::size_t num_weights, std::int64_t num_items,
                                                           bool at_most) {
  detail::check_count("weight", num_weights, "gains", sack.size);
  detail::check_not_negative("capacity", sack.capacity);
  detail::check_not_negative("num_items", num_items);
  detail::check_gains(sack.gain, sack.size);
  detail::check_weights(sack.weight, sack.size);
  const std::size_t n = sack.size;
  if (static_cast<std::uint64_t>(num_items) > n) {
    if (!at_most) return std::nullopt;
    num_items = static_cast<std::int64_t>(n);
  }
  // More room than all that fit would fill together needs no columns.
  std::int64_t room = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (sack.weight[i] <= sack.capacity) room += std::min(sack.weight[i], sack.capacity - room);
  }

  const std::size_t rows = static_cast<std::size_t>(num_items) + 1;
  const std::size_t columns = static_cast<std::size_t>(room) + 1;
  const std::size_t words = columns / 64 + 1;
  const double words_a_row = static_cast<double>(n) * static_cast<double>(words) + static_cast<double>(columns);
  const double bytes = 8.0 * static_cast<double>(rows) * words_a_row;
  if (bytes > static_cast<double>(kMostExactBytes)) {
    throw std::invalid_argument("capacity: exact tables for " + std::to_string(n) + " items, " + std::to_string(num_items) +
                                " to choose and a capacity of " + std::to_string(room) + " take " +
                                std::to_string(static_cast<std::int64_t>(bytes / (1 << 20))) + " MiB; the most is " +
                                std::to_string(kMostExactBytes >> 20) + " MiB: count weights in larger blocks");
  }
  // most[b][m]: the most gain of b of the items so far that weigh at most m; -inf where no b items do, which no sum leaves.
  std::vector<double> most(rows * columns, -std::numeric_limits<double>::infinity());
  std::fill_n(most.begin(), columns, 0.0);
  std::vector<std::uint64_t> taken(n * rows * words, 0);
  for (std::size_t i = 0; i < n; ++i) {
    if (sack.weight[i] > room) continue;
    const std::size_t weight = static_cast<std::size_t>(sack.weight[i]);
    // Downwards, so that the row below is still the one without item i.
    for (std::size_t b = std::min(i + 1, rows - 1); b >= 1; --b) {
      const double* below = &most[(b - 1) * columns];
      double* here = &most[b * columns];
      std::uint64_t* bits = &taken[(i * rows + b) * words];
      for (std::size_t m = weight; m < columns; ++m) {
        const double with = below[m - weight] + sack.gain[i];
        const bool better = with > here[m];
        here[m] = better ? with : here[m];
        bits[m / 64] |= static_cast<std::uint64_t>(better) << (m % 64);
      }
    }
  }
  std::size_t b = rows - 1;
  std::size_t m = columns - 1;
  if (at_most) {
    for (std::size_t fewer = rows - 1; fewer-- > 0;) {
      if (most[fewer * columns + m] >= most[b * columns + m]) b = fewer;
    }
  } else if (std::isinf(most[b * columns + m])) {
    return std::nullopt;
  }
  std::vector<std::int64_t> chosen;
  for (std::size_t i = n; i-- > 0;) {
    if (!(taken[(i * rows + b) * words + m / 64] >> (m % 64) & 1U)) continue;
    chosen.push_back(static_cast<std::int64_t>(i));
    m -= static_cast<std::size_t>(sack.weight[i]);
    --b;
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace sloserve
