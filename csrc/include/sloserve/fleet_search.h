// The plan of a fleet: greedy by deadline and affinity, then a local search of a fixed number of moves.
//
// A function of its arguments alone, on every platform, as anneal.h. The start is the better of the last plan, with new groups put
// in, and one made from nothing; the result is never worse than either.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sloserve/fleet_queues.h"
#include "sloserve/random.h"
#include "sloserve/request_columns.h"

namespace sloserve {

struct FleetResult {
  std::vector<std::int64_t> order;  // groups, queue after queue
  std::vector<std::int64_t> sizes;  // of the queues
  double cost, late;
  double start_cost, start_late;  // of the last plan with new groups put in
};

namespace detail {

constexpr std::size_t kMostMoved = 64;   // groups of a model that one move takes along
constexpr std::int64_t kStages = 64;     // of falling temperature
constexpr double kFalling = 0.93;        // from stage to stage: to a thirtieth when it drops to nothing
constexpr std::int64_t kMostWalks = 8;   // from the same start: what one walk misses by up to 29 %, the best of 8 misses by 2 %
constexpr std::int64_t kLeastWalk = 10000, kLeastWalkAGroup = 200;  // moves
constexpr std::int64_t kMostMoves = std::int64_t{1} << 40;  // days

using GroupList = std::vector<std::int32_t>;

// Puts each group where it costs least: of every instance by its deadline, behind the last group of its model, and at the end.
// Among equals, where it ends first.
inline void put_in(const Fleet& fleet, FleetQueues& queues, GroupList groups) {
  std::stable_sort(groups.begin(), groups.end(), [&](std::int32_t a, std::int32_t b) {
    return fleet.last_due[static_cast<std::size_t>(a)] < fleet.last_due[static_cast<std::size_t>(b)];
  });
  GroupList trial, best_queue;
  std::vector<FleetPlace> places;
  for (const std::int32_t group : groups) {
    const auto g = static_cast<std::size_t>(group);
    double least = HUGE_VAL, soonest = HUGE_VAL;
    std::size_t best = fleet.instances, best_at = 0;
    for (std::size_t i = 0; i < fleet.instances; ++i) {
      if (!queues.serves(i, g)) continue;
      const GroupList& queue = queues.queue(i);
      std::size_t by_due = queue.size(), by_model = 0;
      while (by_due > 0 && fleet.last_due[static_cast<std::size_t>(queue[by_due - 1])] > fleet.last_due[g]) --by_due;
      for (std::size_t k = queue.size(); k > 0 && by_model == 0; --k) {
        if (fleet.model[static_cast<std::size_t>(queue[k - 1])] == fleet.model[g]) by_model = k;
      }
      std::size_t at[3] = {by_due, by_model, queue.size()};
      const bool known = by_model > 0 || fleet.active[i] == fleet.model[g];  // 0: before all, where its model is active already
      for (std::size_t c = 0; c < 3; ++c) {
        if ((c == 1 && (!known || at[1] == at[0])) || (c == 2 && (at[2] == at[0] || (known && at[2] == at[1])))) continue;
        trial.assign(queue.begin(), queue.end());
        trial.insert(trial.begin() + static_cast<std::ptrdiff_t>(at[c]), group);
        const double before = queues.end(i).cost;
        const double more = queues.trial(i, trial, at[c], before + least, places) - before;
        if (more > least) continue;
        const double ends = places[at[c] + 1].time;
        if (more < least || ends < soonest) {
          least = more, soonest = ends, best = i, best_at = at[c];
        }
      }
    }
    if (best == fleet.instances) throw std::invalid_argument("model: no instance serves that of group " + std::to_string(group));
    best_queue = queues.queue(best);
    best_queue.insert(best_queue.begin() + static_cast<std::ptrdiff_t>(best_at), group);
    queues.trial(best, best_queue, best_at, HUGE_VAL, places);
    queues.accept(best, best_queue, best_at, places);
  }
}

class FleetWalk {
 public:
  FleetWalk(const Fleet& fleet, FleetQueues& queues, std::uint64_t seed)
      : fleet_(fleet), queues_(queues), random_(seed), spot_(fleet.groups) {
    for (std::size_t i = 0; i < fleet.instances; ++i) note(i);
  }

  // One move: takes a group, or the block of its model, elsewhere, or exchanges two groups, tails or blocks. Accepts it if it costs
  // at most `temperature` times a random number more.
  void move(double temperature) {
    const auto g = pick();
    const std::size_t a = spot_[g].first, from = spot_[g].second;
    const double allowance = temperature > 0.0 ? temperature * random_.exponential() : 0.0;
    switch (random_.below(6)) {
      case 0: exchange(g, a, from, allowance); break;
      case 1: exchange_tails(a, from, allowance); break;
      case 2: exchange_blocks(a, from, allowance); break;
      default: take(g, a, from, allowance);
    }
  }

 private:
  // Of two groups the one that costs more: those in time have no need to move.
  std::size_t pick() {
    const std::size_t one = random_.below(fleet_.groups), other = random_.below(fleet_.groups);
    return own_cost(one) >= own_cost(other) ? one : other;
  }

  double own_cost(std::size_t g) const {
    const auto [i, k] = spot_[g];
    return queues_.places(i)[k + 1].cost - queues_.places(i)[k].cost;
  }

  void note(std::size_t i, std::size_t from = 0) {
    const GroupList& queue = queues_.queue(i);
    for (std::size_t k = from; k < queue.size(); ++k) spot_[static_cast<std::size_t>(queue[k])] = {i, k};
  }

  // A place to go to: beside a group of the same model, at the head, where its deadline belongs, or anywhere.
  std::pair<std::size_t, std::size_t> target(std::size_t g) {
    const std::size_t way = random_.below(4);
    if (way == 0) {
      for (int tries = 0; tries < 8; ++tries) {
        const std::size_t other = random_.below(fleet_.groups);
        if (other != g && fleet_.model[other] == fleet_.model[g]) return {spot_[other].first, spot_[other].second + 1};
      }
    }
    const std::size_t i = random_.below(fleet_.instances);
    const GroupList& queue = queues_.queue(i);
    if (way == 1) return {i, 0};
    if (way == 2) {
      std::size_t k = queue.size();
      while (k > 0 && fleet_.last_due[static_cast<std::size_t>(queue[k - 1])] > fleet_.last_due[g]) --k;
      return {i, k};
    }
    return {i, random_.below(queue.size() + 1)};
  }

  void take(std::size_t g, std::size_t a, std::size_t from, double allowance) {
    std::size_t count = 1;
    const GroupList& queue = queues_.queue(a);
    const auto same = [&](std::size_t k) { return fleet_.model[static_cast<std::size_t>(queue[k])] == fleet_.model[g]; };
    if (random_.below(3) == 0) {
      while (from > 0 && same(from - 1) && count < kMostMoved) --from, ++count;
      while (from + count < queue.size() && same(from + count) && count < kMostMoved) ++count;
    }
    auto [b, to] = target(g);
    if (!queues_.serves(b, g)) return;
    const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(from + count);
    one_.assign(queue.begin(), queue.end());
    if (a == b) {
      if (to >= from && to <= from + count) return;
      const auto at = static_cast<std::ptrdiff_t>(to);
      if (to < from) std::rotate(one_.begin() + at, one_.begin() + first, one_.begin() + last);
      else std::rotate(one_.begin() + first, one_.begin() + last, one_.begin() + at);
      keep_if(a, std::min(from, to), allowance);
      return;
    }
    const GroupList& there = queues_.queue(b);
    other_.assign(there.begin(), there.end());
    other_.insert(other_.begin() + static_cast<std::ptrdiff_t>(to), one_.begin() + first, one_.begin() + last);
    one_.erase(one_.begin() + first, one_.begin() + last);
    keep_if(a, from, b, to, allowance);
  }

  void exchange(std::size_t g, std::size_t a, std::size_t from, double allowance) {
    const std::size_t h = random_.below(fleet_.groups);
    const auto [b, to] = spot_[h];
    if (g == h || !queues_.serves(b, g) || !queues_.serves(a, h)) return;
    one_ = queues_.queue(a);
    if (a == b) {
      std::swap(one_[from], one_[to]);
      keep_if(a, std::min(from, to), allowance);
      return;
    }
    other_ = queues_.queue(b);
    std::swap(one_[from], other_[to]);
    keep_if(a, from, b, to, allowance);
  }

  // Of two queues, what follows a place in each.
  void exchange_tails(std::size_t a, std::size_t from, double allowance) {
    const std::size_t b = random_.below(fleet_.instances);
    if (a == b) return;
    const GroupList &one = queues_.queue(a), &other = queues_.queue(b);
    from += random_.below(2);
    const std::size_t to = random_.below(other.size() + 1);
    const auto here = static_cast<std::ptrdiff_t>(from), there = static_cast<std::ptrdiff_t>(to);
    for (auto g = one.begin() + here; g != one.end(); ++g) {
      if (!queues_.serves(b, static_cast<std::size_t>(*g))) return;
    }
    for (auto g = other.begin() + there; g != other.end(); ++g) {
      if (!queues_.serves(a, static_cast<std::size_t>(*g))) return;
    }
    one_.assign(one.begin(), one.begin() + here);
    one_.insert(one_.end(), other.begin() + there, other.end());
    other_.assign(other.begin(), other.begin() + there);
    other_.insert(other_.end(), one.begin() + here, one.end());
    keep_if(a, from, b, to, allowance);
  }

  // The block of one model and the next one behind it.
  void exchange_blocks(std::size_t a, std::size_t at, double allowance) {
    one_ = queues_.queue(a);
    const auto same = [&](std::size_t k, std::size_t as) {
      return fleet_.model[static_cast<std::size_t>(one_[k])] == fleet_.model[static_cast<std::size_t>(one_[as])];
    };
    std::size_t first = at, middle = at + 1;
    while (first > 0 && same(first - 1, at)) --first;
    while (middle < one_.size() && same(middle, at)) ++middle;
    if (middle == one_.size()) return;
    std::size_t last = middle + 1;
    while (last < one_.size() && same(last, middle)) ++last;
    std::rotate(one_.begin() + static_cast<std::ptrdiff_t>(first), one_.begin() + static_cast<std::ptrdiff_t>(middle),
                one_.begin() + static_cast<std::ptrdiff_t>(last));
    keep_if(a, first, allowance);
  }

  void keep_if(std::size_t a, std::size_t from, double allowance) {
    const double limit = queues_.end(a).cost + allowance;
    if (queues_.trial(a, one_, from, limit, one_places_) > limit) return;
    queues_.accept(a, one_, from, one_places_);
    note(a, from);
  }

  void keep_if(std::size_t a, std::size_t from, std::size_t b, std::size_t to, double allowance) {
    const double limit = queues_.end(a).cost + queues_.end(b).cost + allowance;
    const double less = queues_.trial(a, one_, from, limit, one_places_);
    if (less > limit || less + queues_.trial(b, other_, to, limit - less, other_places_) > limit) return;
    queues_.accept(a, one_, from, one_places_);
    queues_.accept(b, other_, to, other_places_);
    note(a, from);
    note(b, to);
  }

  const Fleet& fleet_;
  FleetQueues& queues_;
  Random random_;
  std::vector<std::pair<std::size_t, std::size_t>> spot_;
  GroupList one_, other_;
  std::vector<FleetPlace> one_places_, other_places_;
};

// A random walk from `start`, whose temperature falls to nothing in the last quarter of the moves; the best of its stages.
inline FleetQueues walk(const Fleet& fleet, const FleetQueues& start, std::int64_t moves, std::uint64_t seed) {
  FleetQueues queues = start, best = start;
  FleetWalk walk(fleet, queues, seed);
  double least = start.cost();
  double temperature = 2.0 * least / static_cast<double>(fleet.groups);
  for (std::int64_t stage = 0; stage < kStages && least > 0.0; ++stage) {
    const bool cold = stage >= kStages * 3 / 4;
    const std::int64_t until = moves * (stage + 1) / kStages - moves * stage / kStages;
    for (std::int64_t move = 0; move < until; ++move) walk.move(cold ? 0.0 : temperature);
    temperature *= kFalling;
    if (const double cost = queues.cost(); cost < least) {
      least = cost;
      best = queues;
    }
  }
  return best;
}

inline FleetQueues best_walk(const Fleet& fleet, const FleetQueues& start, std::int64_t moves, std::uint64_t seed) {
  const std::int64_t each = std::max(kLeastWalk, kLeastWalkAGroup * static_cast<std::int64_t>(fleet.groups));
  const std::int64_t walks = std::clamp(moves / each, std::int64_t{1}, kMostWalks);
  FleetQueues best = start;
  for (std::int64_t k = 0; k < walks && best.cost() > 0.0; ++k) {
    FleetQueues found = walk(fleet, start, moves / walks, seed + static_cast<std::uint64_t>(k));
    if (found.cost() < best.cost()) best = std::move(found);
  }
  return best;
}

}  // namespace detail

// last: queues of an earlier plan, `order` cut by `sizes` [instances]; groups that it lacks are put in. moves: 0 for the last plan
// with these groups put in. Throws std::invalid_argument for values out of range, and for a group whose model no instance serves.
inline FleetResult fleet_search(const Fleet& fleet, const std::vector<std::int64_t>& order, const std::vector<std::int64_t>& sizes,
                                std::int64_t moves, std::uint64_t seed) {
  detail::check_fleet(fleet);
  if (sizes.size() != fleet.instances) throw std::invalid_argument("sizes: one for each instance");
  check_within("moves", moves, 0, detail::kMostMoves);
  detail::FleetQueues queues(fleet);
  detail::GroupList missing(fleet.groups);
  std::iota(missing.begin(), missing.end(), 0);
  const detail::GroupList all = missing;
  std::size_t at = 0;
  for (std::size_t i = 0; i < fleet.instances; ++i) {
    detail::GroupList queue;
    check_within("sizes", sizes[i], 0, static_cast<std::int64_t>(order.size()));
    for (std::int64_t k = 0; k < sizes[i]; ++k, ++at) {
      if (at >= order.size() || order[at] < 0 || static_cast<std::size_t>(order[at]) >= fleet.groups) {
        throw std::invalid_argument("order: names no group, or has fewer than the sizes say");
      }
      const auto g = static_cast<std::size_t>(order[at]);
      if (missing[g] < 0) throw std::invalid_argument("order: names group " + std::to_string(g) + " twice");
      if (!queues.serves(i, g)) throw std::invalid_argument("order: group " + std::to_string(g) + " is where none serves it");
      missing[g] = -1;
      queue.push_back(static_cast<std::int32_t>(g));
    }
    queues.set(i, std::move(queue));
  }
  if (at != order.size()) throw std::invalid_argument("order: has more groups than the sizes say");
  missing.erase(std::remove(missing.begin(), missing.end(), -1), missing.end());
  const bool from_nothing = missing.size() == fleet.groups;
  detail::put_in(fleet, queues, missing);
  const double start_cost = queues.cost(), start_late = queues.late();
  if (moves > 0 && start_cost > 0.0) {
    if (!from_nothing) {
      detail::FleetQueues fresh(fleet);
      detail::put_in(fleet, fresh, all);
      if (fresh.cost() < start_cost) queues = fresh;
    }
    queues = detail::best_walk(fleet, queues, moves, seed);
  }
  FleetResult result{{}, {}, queues.cost(), queues.late(), start_cost, start_late};
  for (std::size_t i = 0; i < fleet.instances; ++i) {
    result.order.insert(result.order.end(), queues.queue(i).begin(), queues.queue(i).end());
    result.sizes.push_back(static_cast<std::int64_t>(queues.queue(i).size()));
  }
  return result;
}

}  // namespace sloserve
