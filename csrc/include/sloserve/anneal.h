// Order of service and batch boundaries together, by simulated annealing.
//
// Source: SLO-aware scheduling by simulated annealing, Algorithm 1. Differs: its line 36 is inverted as printed, and G is so small
// beside its temperatures that the walk would be a plain hill climb; here a worse plan is accepted by Metropolis's rule on the
// relative change of G, with temperatures of that size (`Cooling`). The best plan seen is returned, not the last. A request delayed behind a
// full batch opens one of its own, without which many plans cannot be reached. A third start: see `on_time_order`.
//
// A function of its arguments alone, also across platforms: own random numbers, no library function whose last bit may differ.
// Built without contraction of a * b + c for the same reason (CMakeLists.txt).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "sloserve/anneal_walk.h"
#include "sloserve/batch_plan.h"
#include "sloserve/on_time_order.h"
#include "sloserve/random.h"

namespace sloserve {

// Temperatures are losses of G, in units of what one of n requests is worth, G / n: initial, then times tau after each `moves`
// moves, until below final.
struct Cooling {
  double initial, final, tau;
  std::int64_t moves;
};

namespace detail {

inline BatchPlan plan_of(const Walk& walk) {
  BatchPlan plan{walk.order(), {}, walk.score()};
  for (std::size_t k = 0; k + 1 < walk.starts().size(); ++k) {
    plan.sizes.push_back(static_cast<std::int64_t>(walk.starts()[k + 1] - walk.starts()[k]));
  }
  return plan;
}

}  // namespace detail

// A plan for the requests, given in order of arrival; the first `fixed` run already and stay in the first batch.
//
// Starts from the best of three orders: as given, by ascending execution time, and `on_time_order`. Returns the second at once if
// batches hold one request and it meets every target, since no order has a smaller summed latency then. The paper exits for any
// batch size, where that does not follow: it cost up to 16 % of G.
// Throws std::invalid_argument for impossible limits or a cooling that would not end.
inline BatchPlan anneal(const std::vector<BatchRequest>& requests, std::int64_t max_batch, std::int64_t fixed,
                        const Cooling& cooling, std::uint64_t seed) {
  check_batch_limits(requests.size(), max_batch, fixed);
  if (!std::isfinite(cooling.initial) || !(cooling.final > 0.0) || !(cooling.tau > 0.0 && cooling.tau < 1.0) || cooling.moves < 0) {
    throw std::invalid_argument("cooling: the final temperature is above 0, tau between 0 and 1, moves at least 0, and all are finite");
  }
  const std::size_t n = requests.size();
  const auto first = static_cast<std::size_t>(fixed);
  if (n == 0) return {};
  const double batch = static_cast<double>(std::min(static_cast<std::size_t>(max_batch), n));

  detail::Walk walk(requests, max_batch, fixed);
  std::vector<std::int64_t> arrival(n);
  std::iota(arrival.begin(), arrival.end(), 0);
  std::vector<double> exec_s(n);
  for (std::size_t i = 0; i < n; ++i) exec_s[i] = requests[i].exec(batch);
  std::vector<std::int64_t> sorted = arrival;
  std::stable_sort(sorted.begin() + fixed, sorted.end(), [&](std::int64_t a, std::int64_t b) {
    return exec_s[static_cast<std::size_t>(a)] < exec_s[static_cast<std::size_t>(b)];
  });
  walk.start(sorted);
  BatchPlan best = detail::plan_of(walk);
  const bool optimal = max_batch == 1 && best.score.met == static_cast<std::int64_t>(n);
  if (optimal || first == n) return best;

  std::vector<std::int64_t> on_time(arrival.begin(), arrival.begin() + fixed);
  const auto behind = detail::on_time_order(requests, first, batch);
  on_time.insert(on_time.end(), behind.begin(), behind.end());
  for (const auto* order : {&on_time, &arrival}) {
    walk.start(*order);
    if (walk.score().value() > best.score.value()) best = detail::plan_of(walk);
  }
  walk.start(best.order);

  detail::Random random(seed);
  double best_value = best.score.value();
  double value = best_value;
  const double unit = 1.0 / static_cast<double>(n);
  for (double temperature = cooling.initial; temperature >= cooling.final; temperature *= cooling.tau) {
    for (std::int64_t move = 0; move < cooling.moves; ++move) {
      if (!walk.propose(random)) continue;
      const double trial = walk.trial().value();
      if (trial < value && value - trial >= value * unit * temperature * random.exponential()) {
        walk.undo();
        continue;
      }
      walk.accept();
      value = walk.score().value();
      if (value > best_value) {
        best_value = value;
        best = detail::plan_of(walk);
      }
    }
  }
  return best;
}

}  // namespace sloserve
