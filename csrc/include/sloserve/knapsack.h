// Which requests to serve together: the most gain within the KV cache and a batch size (a knapsack of limited cardinality).
//
// Greedy by gain per weight for use at each plan, and an exact dynamic programme to measure it against.
//
// Source: Andes, Algorithms 1 and 2. Differs: the greedy pack leaves out who gains nothing and by default goes on behind one that
// does not fit; dp's third dimension is "weight at most m", so that its last cell is the answer (the paper's is "exactly m", which
// makes it search dp[N][B] for the best m).
//
// A function of its arguments alone, also across platforms: one division for each item, and no contraction (CMakeLists.txt).
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

struct BatchChoice {
  std::int64_t batch_size;
  std::vector<std::int64_t> chosen;
  double gain;
};

// Bytes of tables that pack_exact may fill.
constexpr std::size_t kMostExactBytes = std::size_t{2} << 30;

namespace detail {

struct Dense {
  double density;
  std::int64_t index;
};

constexpr std::size_t kFirstChunk = 64;

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

// The pack itself, of checked items. `items` is scratch. Items are ranked in chunks that double, best first: the batch size or
// the room usually ends the search long before all are ranked.
inline std::vector<std::int64_t> pack(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, bool stop_at_misfit,
                                      std::vector<Dense>& items) {
  items.clear();
  for (std::size_t i = 0; i < sack.size; ++i) {
    // What never fits need not be ranked, unless it ends the search.
    if (sack.gain[i] > 0.0 && (stop_at_misfit || sack.weight[i] <= sack.capacity)) {
      items.push_back({sack.gain[i] / static_cast<double>(sack.weight[i]), static_cast<std::int64_t>(i)});
    }
  }
  const auto before = [seq](const Dense& a, const Dense& b) {
    if (a.density != b.density) return a.density > b.density;
    if (seq[a.index] != seq[b.index]) return seq[a.index] < seq[b.index];
    return a.index < b.index;
  };
  std::vector<std::int64_t> chosen;
  std::int64_t room = sack.capacity;
  std::size_t chunk = std::max(kFirstChunk, std::min(max_items, items.size()));
  auto next = items.begin();
  auto end = items.end();
  while (next != end && chosen.size() < max_items) {
    const auto cut = next + static_cast<std::ptrdiff_t>(std::min(chunk, static_cast<std::size_t>(end - next)));
    if (cut != end) std::nth_element(next, cut, end, before);
    std::sort(next, cut, before);
    for (; next != cut && chosen.size() < max_items; ++next) {
      const std::int64_t weight = sack.weight[next->index];
      if (weight <= room) {
        chosen.push_back(next->index);
        room -= weight;
      } else if (stop_at_misfit) {
        return chosen;
      }
    }
    if (!stop_at_misfit) {
      // Room only shrinks: who does not fit now will not fit later.
      end = std::remove_if(next, end, [&](const Dense& item) { return sack.weight[item.index] > room; });
    }
    chunk *= 2;
  }
  return chosen;
}

inline double gain_of(const double* gain, const std::vector<std::int64_t>& chosen) {
  double sum = 0.0;
  for (const std::int64_t i : chosen) sum += gain[i];
  return sum;
}

}  // namespace detail

// At most max_items indices in descending gain / weight, ties by seq, then by place; none whose gain is not above 0.
//
// stop_at_misfit: end at the first item that does not fit, as the paper does; else pass it over and go on, which fills the room
// but lets light items overtake a heavy one for as long as they come. O(n log n), O(n) where few are chosen of many.
// Throws std::invalid_argument when counts disagree, a weight is below 1, a gain not finite or a limit negative.
inline std::vector<std::int64_t> pack_greedy(const Knapsack& sack, std::size_t num_weights, const std::int64_t* seq,
                                             std::size_t num_seqs, std::int64_t max_items, bool stop_at_misfit) {
  detail::check_count("weight", num_weights, "gains", sack.size);
  detail::check_count("seq", num_seqs, "gains", sack.size);
  detail::check_not_negative("capacity", sack.capacity);
  detail::check_not_negative("max_items", max_items);
  detail::check_gains(sack.gain, sack.size);
  detail::check_weights(sack.weight, sack.size);
  std::vector<detail::Dense> items;
  items.reserve(sack.size);
  return detail::pack(sack, seq, static_cast<std::size_t>(max_items), stop_at_misfit, items);
}

// Of several batch sizes the one whose greedy pack of at most so many items gains most, the first of equals.
//
// sack.gain: num_rows rows of sack.size gains, one row for each batch size.
// Throws as pack_greedy, and without a batch size or for one below 1.
inline BatchChoice best_batch(const Knapsack& sack, std::size_t num_rows, std::size_t num_weights, const std::int64_t* seq,
                              std::size_t num_seqs, const std::int64_t* batch_sizes, std::size_t num_batch_sizes,
                              bool stop_at_misfit) {
  if (num_batch_sizes == 0) throw std::invalid_argument("batch_sizes: there is none to choose from; give one at least");
  detail::check_count("gain_by_batch", num_rows, "batch sizes", num_batch_sizes);
  detail::check_count("weight", num_weights, "gains of each batch size", sack.size);
  detail::check_count("seq", num_seqs, "gains of each batch size", sack.size);
  detail::check_not_negative("capacity", sack.capacity);
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (batch_sizes[row] < 1) {
      throw std::invalid_argument("batch_sizes: " + std::to_string(batch_sizes[row]) + "; the least is 1");
    }
  }
  detail::check_gains(sack.gain, num_rows * sack.size);
  detail::check_weights(sack.weight, sack.size);
  std::vector<detail::Dense> items;
  items.reserve(sack.size);
  BatchChoice best{batch_sizes[0], {}, 0.0};
  for (std::size_t row = 0; row < num_rows; ++row) {
    const Knapsack one{sack.gain + row * sack.size, sack.weight, sack.size, sack.capacity};
    std::vector<std::int64_t> chosen = detail::pack(one, seq, static_cast<std::size_t>(batch_sizes[row]), stop_at_misfit, items);
    const double gain = detail::gain_of(one.gain, chosen);
    if (gain > best.gain) best = {batch_sizes[row], std::move(chosen), gain};
  }
  return best;
}

// The indices, ascending, of exactly num_items items of most gain whose weights fit, or of at most so many with at_most; nothing
// where no num_items items fit. Unlike the greedy pack it takes items that gain nothing if the number asks for them.
//
// O(n * num_items * capacity) time and as many bits.
// Throws std::invalid_argument as pack_greedy, and when the tables would be larger than kMostExactBytes.
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
                                std::to_string(kMostExactBytes >> 20) + " MiB: count weights in larger blocks or use pack_greedy");
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
