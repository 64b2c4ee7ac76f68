// Which requests to serve together: the most gain within the KV cache and a batch size (a knapsack of limited cardinality).
//
// Here the items and the paper's greedy pack, by gain per weight. knapsack_priced.h has the pack for use at each plan,
// knapsack_batch.h the choice of the batch size, knapsack_exact.h what tests and benchmarks measure them against.
//
// Source: Andes, Algorithm 1. Differs: leaves out who gains nothing and by default goes on behind one that does not fit.
//
// A function of its arguments alone, also across platforms: one division for each item, and no contraction (CMakeLists.txt).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

struct Dense {
  double density;
  std::int64_t index;
};

// Descending gain / weight, ties by seq, then by place.
struct Denser {
  const std::int64_t* seq;

  bool operator()(const Dense& a, const Dense& b) const {
    if (a.density != b.density) return a.density > b.density;
    if (seq[a.index] != seq[b.index]) return seq[a.index] < seq[b.index];
    return a.index < b.index;
  }
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

// The most by gain per weight of the items within sack.capacity, appended to `chosen`: of checked items, less those marked in
// `taken` if there is one. `items` is scratch. Items are ranked in chunks that double, best first: the batch size or the room
// usually ends the search long before all are ranked.
inline void pack_dense(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, bool stop_at_misfit,
                       std::vector<Dense>& items, std::vector<std::int64_t>& chosen, const std::uint8_t* taken = nullptr) {
  items.clear();
  for (std::size_t i = 0; i < sack.size; ++i) {
    // What never fits need not be ranked, unless it ends the search.
    if (sack.gain[i] > 0.0 && (stop_at_misfit || sack.weight[i] <= sack.capacity) && !(taken && taken[i])) {
      items.push_back({sack.gain[i] / static_cast<double>(sack.weight[i]), static_cast<std::int64_t>(i)});
    }
  }
  const Denser before{seq};
  std::int64_t room = sack.capacity;
  std::size_t slots = max_items;
  std::size_t chunk = std::max(kFirstChunk, std::min(slots, items.size()));
  auto next = items.begin();
  auto end = items.end();
  while (next != end && slots > 0) {
    const auto cut = next + static_cast<std::ptrdiff_t>(std::min(chunk, static_cast<std::size_t>(end - next)));
    if (cut != end) std::nth_element(next, cut, end, before);
    std::sort(next, cut, before);
    for (; next != cut && slots > 0; ++next) {
      const std::int64_t weight = sack.weight[next->index];
      if (weight <= room) {
        chosen.push_back(next->index);
        room -= weight;
        --slots;
      } else if (stop_at_misfit) {
        return;
      }
    }
    if (!stop_at_misfit) {
      // Room only shrinks: who does not fit now will not fit later.
      end = std::remove_if(next, end, [&](const Dense& item) { return sack.weight[item.index] > room; });
    }
    chunk *= 2;
  }
}

inline void check_sack(const Knapsack& sack, std::size_t num_weights, std::size_t num_seqs, std::int64_t max_items) {
  check_count("weight", num_weights, "gains", sack.size);
  check_count("seq", num_seqs, "gains", sack.size);
  check_not_negative("capacity", sack.capacity);
  check_not_negative("max_items", max_items);
  check_gains(sack.gain, sack.size);
  check_weights(sack.weight, sack.size);
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
  detail::check_sack(sack, num_weights, num_seqs, max_items);
  std::vector<detail::Dense> items;
  std::vector<std::int64_t> chosen;
  detail::pack_dense(sack, seq, static_cast<std::size_t>(max_items), stop_at_misfit, items, chosen);
  return chosen;
}

}  // namespace sloserve
