// The pack for two limits at once, weight and number: a price on weight decides between many light items and fewer heavy ones.
//
// At a price p the best max_items by gain - p * weight are what one would choose if weight could be bought; the higher the price,
// the lighter they are. Searched for is the lowest price at which they fit. At price 0 they are the best pack of all. Otherwise they
// lack, of what is best, less than the exchange of two items or the last one that did not fit (the linear programme's optimum has
// no more fractions), and what room is left is filled by gain / weight. A single item that gains more than all of them goes first
// instead, so that a pack is never below half of the exact one.
//
// Weights are summed as integers and prices follow from these sums alone, so neither the order of the items nor seq has a part in
// the search; both only order equals. No contraction (CMakeLists.txt), so the same on every platform.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "sloserve/knapsack.h"

namespace sloserve {
namespace detail {

constexpr int kMostProbes = 64;

struct Item {
  double gain;
  std::int64_t weight;
  std::int64_t index;

  double at(double price) const { return gain - price * static_cast<double>(weight); }
};

// What the best items at a price come to. threshold: the least of them is worth so much, or 0 if there are fewer than slots.
struct Probe {
  double price;
  double threshold;
  std::uint64_t weight;  // with those of in_; the most an uint64 holds, if more
  double bound;          // no pack within both limits gains more
};

// Packs one set of items after another; a pack starts its search at the price of the last. Holds the scratch of all.
class Pricer {
 public:
  // Whether a pack may gain `floor` or more; if so, `chosen` is it.
  bool pack(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, double floor, std::vector<std::int64_t>& chosen);

 private:
  bool search(double floor);
  Probe probe(double price);
  void narrow();
  double next_price(bool halve) const;
  template <typename InOrder>
  void take_lightest(InOrder in_order);
  void fill(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, std::vector<std::int64_t>& chosen);

  std::int64_t capacity_ = 0;
  double start_ = 0.0;         // where the last search ended
  Probe low_, high_;           // too heavy at the one, not at the other; threshold of low_ infinite where not yet probed
  double likely_ = 0.0;        // a threshold is probably above it, which leaves few to select from
  double gain_in_ = 0.0;
  std::vector<Item> in_;       // in the best at every price between the two
  std::vector<Item> open_;     // at some
  std::size_t slots_ = 0;      // left for open_, as is room_
  std::int64_t room_ = 0;
  std::vector<double> values_;
  std::vector<std::int64_t> ties_;
  std::vector<std::uint8_t> taken_;
  std::vector<Dense> dense_;
};

inline Probe Pricer::probe(double price) {
  values_.resize(open_.size());
  const auto above = [&](double least) {
    std::size_t found = 0;
    for (const Item& item : open_) {
      const double value = item.at(price);
      values_[found] = value;
      found += value > least;
    }
    return found;
  };
  std::size_t found = above(likely_);
  if (found < slots_ && likely_ > 0.0) found = above(0.0);
  Probe probe{price, 0.0, static_cast<std::uint64_t>(capacity_ - room_), gain_in_ + price * static_cast<double>(room_)};
  if (found >= slots_) {
    const auto last = values_.begin() + static_cast<std::ptrdiff_t>(slots_) - 1;
    std::nth_element(values_.begin(), last, values_.begin() + static_cast<std::ptrdiff_t>(found), std::greater<>());
    probe.threshold = *last;
    found = slots_;
  }
  likely_ = probe.threshold * 0.8;
  for (std::size_t i = 0; i < found; ++i) probe.bound += values_[i];
  const auto weigh = [&probe](std::int64_t weight) {
    const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - probe.weight;
    probe.weight += std::min(static_cast<std::uint64_t>(weight), most);
  };
  ties_.clear();
  for (const Item& item : open_) {
    const double value = item.at(price);
    if (value < probe.threshold || value <= 0.0) continue;
    if (value == probe.threshold) {
      ties_.push_back(item.weight);
    } else {
      weigh(item.weight);
      --found;
    }
  }
  if (ties_.size() > found) std::sort(ties_.begin(), ties_.end());
  for (std::size_t i = 0; i < found; ++i) weigh(ties_[i]);
  return probe;
}

// Values only fall with the price, and so does the threshold: it lies between those of the two ends.
inline void Pricer::narrow() {
  std::size_t kept = 0;
  for (const Item& item : open_) {
    const double most = item.at(low_.price);
    if (item.at(high_.price) > low_.threshold) {
      in_.push_back(item);
      gain_in_ += item.gain;
      room_ -= item.weight;
      --slots_;
    } else if (most >= high_.threshold && most > 0.0) {
      open_[kept++] = item;
    }
  }
  open_.resize(kept);
}

// A price between the two ends, at which the weight should about meet the capacity; one of the ends where there is none between.
inline double Pricer::next_price(bool halve) const {
  const double capacity = static_cast<double>(capacity_);
  const auto excess = [capacity](const Probe& probe) {
    const double weight = static_cast<double>(probe.weight);
    return (weight - capacity) / (weight + capacity);
  };
  const double over = static_cast<double>(low_.weight) / capacity;
  double next;
  if (high_.weight > 0) {
    next = low_.price + (high_.price - low_.price) * (excess(low_) / (excess(low_) - excess(high_)));
  } else if (low_.price > 0.0) {
    next = low_.price * std::clamp(over, 1.125, 2.0);
  } else {
    // What the last item of those too heavy gains for each unit of weight that it may have.
    const double least = low_.threshold > 0.0 ? low_.threshold : high_.price / 4.0;
    next = least * static_cast<double>(slots_ + in_.size()) / capacity * std::min(over - 1.0, 1.0);
  }
  if (!halve && next > low_.price && next < high_.price) return next;
  return low_.price + (high_.price - low_.price) / 2.0;
}

// Whether a pack may gain `floor`; if so, in_ and open_ hold its items and those to choose from.
inline bool Pricer::search(double floor) {
  double price = start_;
  for (int probes = 1; probes <= kMostProbes; ++probes) {
    const Probe found = probe(price);
    // Slack, for the bound is summed in another order than the gain of a pack.
    if (found.bound < floor * (1.0 - 1e-9)) return false;
    const bool fits = found.weight <= static_cast<std::uint64_t>(capacity_);
    if (fits) high_ = found;
    if (!fits || price == 0.0) low_ = found;
    narrow();
    start_ = high_.weight > 0 ? high_.price : low_.price;
    if (std::isinf(low_.threshold)) {
      price = 0.0;
      continue;
    }
    if (open_.size() <= 2 || slots_ == 0 || high_.price == 0.0) break;
    price = next_price(probes % 4 == 0);
    if (!(price > low_.price && price < high_.price)) break;
  }
  return true;
}

// Of the open items, which are worth the same at the last price: the lightest that fill all slots, then heavier ones for as long as
// they fit and gain more.
template <typename InOrder>
void Pricer::take_lightest(InOrder in_order) {
  if (open_.size() < slots_ || slots_ == 0) return;
  std::sort(open_.begin(), open_.end(), [in_order](const Item& a, const Item& b) {
    return a.weight != b.weight ? a.weight < b.weight : in_order(a.index, b.index);
  });
  std::int64_t room = room_;
  for (std::size_t i = 0; i < slots_; ++i) {
    if (open_[i].weight > room) return;
    room -= open_[i].weight;
  }
  std::size_t first = 0;
  for (; first + slots_ < open_.size(); ++first) {
    const Item& lightest = open_[first];
    const Item& heavier = open_[first + slots_];
    if (heavier.gain <= lightest.gain || heavier.weight - lightest.weight > room) break;
    room -= heavier.weight - lightest.weight;
  }
  const auto begin = open_.begin() + static_cast<std::ptrdiff_t>(first);
  in_.insert(in_.end(), begin, begin + static_cast<std::ptrdiff_t>(slots_));
  room_ = room;
  slots_ = 0;
}

inline void Pricer::fill(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, std::vector<std::int64_t>& chosen) {
  if (chosen.size() >= max_items) return;
  Knapsack rest = sack;
  taken_.assign(sack.size, 0);
  for (const std::int64_t i : chosen) {
    taken_[static_cast<std::size_t>(i)] = 1;
    rest.capacity -= sack.weight[i];
  }
  if (rest.capacity > 0) pack_dense(rest, seq, max_items - chosen.size(), false, dense_, chosen, taken_.data());
}

inline bool Pricer::pack(const Knapsack& sack, const std::int64_t* seq, std::size_t max_items, double floor,
                         std::vector<std::int64_t>& chosen) {
  chosen.clear();
  in_.clear();
  open_.resize(sack.size);
  std::size_t found = 0;
  double most = 0.0;
  for (std::size_t i = 0; i < sack.size; ++i) {
    open_[found] = {sack.gain[i], sack.weight[i], static_cast<std::int64_t>(i)};
    const bool may_be_in = sack.gain[i] > 0.0 && sack.weight[i] <= sack.capacity;
    found += may_be_in;
    most = may_be_in ? std::max(most, sack.gain[i]) : most;
  }
  open_.resize(found);
  slots_ = std::min(max_items, open_.size());
  if (slots_ == 0) return true;
  capacity_ = room_ = sack.capacity;
  gain_in_ = 0.0;
  low_ = {0.0, std::numeric_limits<double>::infinity(), 0, 0.0};
  high_ = {most, 0.0, 0, 0.0};
  if (start_ >= most) start_ = 0.0;
  if (!search(floor)) return false;
  const auto in_order = [seq](std::int64_t a, std::int64_t b) { return seq[a] != seq[b] ? seq[a] < seq[b] : a < b; };
  take_lightest(in_order);
  for (const Item& item : in_) chosen.push_back(item.index);
  fill(sack, seq, max_items, chosen);
  if (gain_of(sack.gain, chosen) < most) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(sack.size); ++i) {
      if (sack.gain[i] != most || sack.weight[i] > sack.capacity) continue;
      if (best < 0 || sack.weight[i] < sack.weight[best] || (sack.weight[i] == sack.weight[best] && in_order(i, best))) best = i;
    }
    chosen.assign(1, best);
    fill(sack, seq, max_items, chosen);
  }
  // Not by the last price: it depends on where the search began.
  dense_.clear();
  for (const std::int64_t i : chosen) dense_.push_back({sack.gain[i] / static_cast<double>(sack.weight[i]), i});
  std::sort(dense_.begin(), dense_.end(), Denser{seq});
  std::transform(dense_.begin(), dense_.end(), chosen.begin(), [](const Dense& item) { return item.index; });
  return true;
}

}  // namespace detail

// At most max_items indices of much gain whose weights fit, in the order of pack_greedy; none whose gain is not above 0.
//
// At least half as much as the exact pack gains, all of it where the best max_items by gain fit. O(n) for each probe of a price, of
// which there are kMostProbes at most and few over all n.
// Throws as pack_greedy.
inline std::vector<std::int64_t> pack_priced(const Knapsack& sack, std::size_t num_weights, const std::int64_t* seq,
                                             std::size_t num_seqs, std::int64_t max_items) {
  detail::check_sack(sack, num_weights, num_seqs, max_items);
  std::vector<std::int64_t> chosen;
  detail::Pricer().pack(sack, seq, static_cast<std::size_t>(max_items), 0.0, chosen);
  return chosen;
}

}  // namespace sloserve
