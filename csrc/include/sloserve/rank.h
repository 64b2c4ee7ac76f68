// Ranking of requests by a policy's key, and where class rank stands in it. No Python, no torch: plain arrays in, plain
// arrays out. The rule of class rank: sloserve/lso/ordering.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/request_columns.h"

namespace sloserve {

namespace detail {

struct Sorted {
  std::uint64_t key;
  std::int64_t index;
};

inline constexpr std::size_t kRadixFrom = 128;

// Ascends with `key`, 0 and -0 alike; NaN comes last.
inline std::uint64_t sortable(double key) {
  if (std::isnan(key)) return ~std::uint64_t{0};
  const double plain = key + 0.0;
  std::uint64_t bits;
  std::memcpy(&bits, &plain, sizeof bits);
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  return bits & kSign ? ~bits : bits | kSign;
}

// Sorts by key, equal keys staying in their order. Byte by byte, as comparisons of random keys are mispredicted: a third
// of std::sort's time at 1,000. Bytes that all keys share are passed over.
inline void sort_by_key(std::vector<Sorted>& items) {
  const std::size_t n = items.size();
  if (n < kRadixFrom) {
    std::stable_sort(items.begin(), items.end(), [](const Sorted& a, const Sorted& b) { return a.key < b.key; });
    return;
  }
  std::array<std::array<std::uint32_t, 256>, 8> counts{};
  for (const auto& item : items) {
    for (std::size_t byte = 0; byte < 8; ++byte) ++counts[byte][(item.key >> (8 * byte)) & 255];
  }
  std::vector<Sorted> other(n);
  for (std::size_t byte = 0; byte < 8; ++byte) {
    auto& count = counts[byte];
    if (count[(items[0].key >> (8 * byte)) & 255] == n) continue;
    std::uint32_t before = 0;
    for (auto& one : count) {
      const std::uint32_t here = one;
      one = before;
      before += here;
    }
    for (const auto& item : items) other[count[(item.key >> (8 * byte)) & 255]++] = item;
    items.swap(other);
  }
}

// The first k of n items by keys(i), then by before(a, b) of their indices, which must be a total order.
template <typename Keys, typename Before>
std::vector<std::int64_t> first_of(std::size_t n, std::size_t k, const Keys& keys, const Before& before) {
  k = std::min(k, n);
  if (k == 0) return {};
  std::vector<Sorted> items(n);
  for (std::size_t i = 0; i < n; ++i) items[i] = {sortable(keys(i)), static_cast<std::int64_t>(i)};
  if (k < n) {
    // Those that tie with the last one are sorted too: which of them is among the first `before` decides.
    std::vector<std::uint64_t> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = items[i].key;
    const auto last = values.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(values.begin(), last, values.end());
    items.erase(std::remove_if(items.begin(), items.end(), [most = *last](const Sorted& item) { return item.key > most; }),
                items.end());
  }
  sort_by_key(items);
  for (std::size_t begin = 0; begin < items.size();) {
    std::size_t end = begin + 1;
    while (end < items.size() && items[end].key == items[begin].key) ++end;
    if (end - begin > 1) {
      std::sort(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end),
                [&](const Sorted& a, const Sorted& b) { return before(a.index, b.index); });
    }
    begin = end;
  }
  std::vector<std::int64_t> indices(k);
  for (std::size_t i = 0; i < k; ++i) indices[i] = items[i].index;
  return indices;
}

inline void check_lengths(const char* name, std::size_t found, std::size_t keys) {
  if (found != keys) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(found) + " elements for " + std::to_string(keys) +
                                " keys; there must be one for each key");
  }
}

inline void check_most(std::int64_t k) {
  if (k < 0) throw std::invalid_argument("k: " + std::to_string(k) + " is negative; the least is 0");
}

}  // namespace detail

// Indices of the k smallest of n requests by (key, seq, index), ascending; all n of them, ranked, when k exceeds n. NaN keys
// rank last. O(n + k).
//
// keys, seqs: num_keys and num_seqs elements, which must agree.
// Throws std::invalid_argument when they do not, or k is negative, before any element is read.
inline std::vector<std::int64_t> top_k(const double* keys, std::size_t num_keys, const std::int64_t* seqs,
                                       std::size_t num_seqs, std::int64_t k) {
  detail::check_lengths("seqs", num_seqs, num_keys);
  detail::check_most(k);
  return detail::first_of(
      num_keys, static_cast<std::size_t>(k), [&](std::size_t i) { return keys[i]; },
      [&](std::int64_t a, std::int64_t b) { return seqs[a] != seqs[b] ? seqs[a] < seqs[b] : a < b; });
}

// key: [n]; each lowered, where no target decides it, to the least of any less urgent class, once those are lowered.
//
// rank: [n]; of each request's class, 0 the most urgent. undecided: [n], whose keys no target decides; nullptr for all.
inline std::vector<double> by_class(const double* key, const std::int64_t* rank, const bool* undecided, std::size_t n) {
  std::vector<double> lowered(key, key + n);
  std::vector<std::int64_t> ranks;  // few
  for (std::size_t i = 0; i < n; ++i) {
    if (std::find(ranks.begin(), ranks.end(), rank[i]) == ranks.end()) ranks.push_back(rank[i]);
  }
  if (ranks.size() < 2) return lowered;
  std::sort(ranks.rbegin(), ranks.rend());
  double least = std::numeric_limits<double>::infinity();
  for (const std::int64_t one : ranks) {
    double of_class = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
      if (rank[i] != one) continue;
      if ((undecided == nullptr || undecided[i]) && lowered[i] > least) lowered[i] = least;
      if (lowered[i] < of_class) of_class = lowered[i];
    }
    least = std::min(least, of_class);
  }
  return lowered;
}

// Indices of the first k of n requests by (lowered, rank, key, seq, index), ascending, where `lowered` is what by_class made
// of `key`; by (key, seq, index) where all are of one class. All n where k exceeds n. NaN ranks last. O(n + k) but for
// requests that were lowered to the same key.
//
// key, lowered, rank, seq: of the lengths n[0], n[1], n[2], n[3], which must agree.
// Throws std::invalid_argument when they do not, or k is negative.
inline std::vector<std::int64_t> first_places(const double* key, const double* lowered, const std::int64_t* rank,
                                              const std::int64_t* seq, const std::array<std::size_t, 4>& n, std::int64_t k) {
  detail::check_lengths("lowered", n[1], n[0]);
  detail::check_lengths("rank", n[2], n[0]);
  detail::check_lengths("seq", n[3], n[0]);
  detail::check_most(k);
  if (std::all_of(rank, rank + n[2], [&](std::int64_t one) { return one == rank[0]; })) return top_k(key, n[0], seq, n[3], k);
  return detail::first_of(
      n[0], static_cast<std::size_t>(k), [&](std::size_t i) { return lowered[i]; },
      [&](std::int64_t a, std::int64_t b) {
        if (rank[a] != rank[b]) return rank[a] < rank[b];
        const std::uint64_t of_a = detail::sortable(key[a]), of_b = detail::sortable(key[b]);
        if (of_a != of_b) return of_a < of_b;
        return seq[a] != seq[b] ? seq[a] < seq[b] : a < b;
      });
}

// Of requests of which the first `queued` wait and the others run: `key` lowered by by_class, and each part's places in order,
// counted from the first of the part; of those that wait the first `most`.
struct Ranked {
  std::vector<double> lowered;
  std::vector<std::int64_t> waiting, running;
};

// key, slots, undecided: [n]; see by_class. class_rank, seq: columns, by slot; class_rank is nullptr where nothing reads it.
// Throws std::invalid_argument where queued > n or most is negative.
inline Ranked ranked(const double* key, const Slots& slots, std::size_t queued, const std::int64_t* class_rank,
                     const std::int64_t* seq, const bool* undecided, std::int64_t most) {
  const std::size_t n = slots.size;
  if (queued > n) throw std::invalid_argument("queued: " + std::to_string(queued) + " of " + std::to_string(n) + " requests");
  std::vector<std::int64_t> rank(n, 0), seqs(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (class_rank != nullptr) rank[i] = class_rank[slots[i]];
    seqs[i] = seq[slots[i]];
  }
  Ranked found{by_class(key, rank.data(), undecided, n), {}, {}};
  const auto part = [&](std::size_t begin, std::size_t size, std::int64_t k) {
    return first_places(key + begin, found.lowered.data() + begin, rank.data() + begin, seqs.data() + begin,
                        {size, size, size, size}, k);
  };
  found.waiting = part(0, queued, most);
  found.running = part(queued, n - queued, static_cast<std::int64_t>(n - queued));
  return found;
}

}  // namespace sloserve
