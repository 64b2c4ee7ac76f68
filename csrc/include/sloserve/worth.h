// What each request gains by being served now rather than later, and what serving it takes of the engine. No Python, no
// torch: plain arrays in, plain arrays out. The rules and their reasons: sloserve/scheduler/auto/worth.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/kv_layout.h"
#include "sloserve/rank.h"
#include "sloserve/request_columns.h"
#include "sloserve/survival.h"

namespace sloserve {

// Columns of the request table, by slot: targets, NaN where none is stated; seconds of one clock, first_token_s NaN while
// there is no token; tokens.
struct WorthColumns {
  const double *arrival_s, *ttft_s, *tpot_s, *tds, *e2e_s, *first_token_s;
  const std::int64_t *class_rank, *prompt_tokens, *output_tokens, *max_tokens;
};

// Of n requests, of which the first `queued` wait. left: tokens to come, expected. per_step: [n]; of these a step brings, at
// least 1. prefill: tokens to compute before the next
// one. again_s: [n - queued]; of those that run, the delay until their KV is back. weights: [ranks]; of each class rank, the
// last that of all beyond.
struct WorthRequests {
  Slots slots;
  std::size_t queued;
  const double *left, *per_step;
  const std::int64_t* prefill;
  const double* again_s;
  const double* weights;
  std::size_t ranks;
  double now_s;
};

// step_s .. step_wait_s: how fast the engine is, see the Python side. kv_blocks: that its cache holds. seats: requests that may
// run. wait_share: of the cost of what waits, after which a request that is not served now is; late_wait_share: the same where
// late_at of the promised requests, or more, have no chance any more and step time is short. reader_ttft_s, reader_tds: of a
// reader that states only the other. experience .. price_power: chosen, sloserve/scheduler/auto/constants.py. tail: an option
// of the policy, how much the longest waits of requests without targets count.
struct WorthEngine {
  double step_s, full_s, prompt_token_s, token_s, step_wait_s, kv_blocks, seats, wait_share, late_wait_share, late_at;
  double reader_ttft_s, reader_tds, experience, stretch, unhurried_s, price_power, tail;
};

// Gauss and Laguerre's rule of three nodes: the mean of f(T), T exponential with mean w, is the sum of weight * f(node * w).
inline constexpr std::array<double, 3> kWorthNodes = {0.41577455678348, 2.29428036027904, 6.28994508293748};
inline constexpr std::array<double, 3> kWorthNodeWeights = {0.711093009929173, 0.278517733569241, 0.0103892565015861};

// Fewer promised requests than these say little about how many are late: they count as so many.
inline constexpr std::size_t kFewPromised = 8;

namespace detail {

// The chance that at most `tokens` are still to come of the i-th request: between the steps ahead that are known the survival
// is a line.
inline double ends_within(double tokens, double most_left, const Chances& runs, std::size_t i) {
  if (!(tokens >= 1.0)) return 0.0;
  if (tokens >= most_left) return 1.0;
  const std::vector<double>& ahead = runs.ahead();
  const auto next = static_cast<std::size_t>(std::upper_bound(ahead.begin(), ahead.end(), tokens) - ahead.begin());
  if (next == ahead.size()) return 1.0 - runs.at(i, next - 1);
  const double part = (tokens - ahead[next - 1]) / (ahead[next] - ahead[next - 1]);
  const double before = runs.at(i, next - 1);
  return 1.0 - (before + part * (runs.at(i, next) - before));
}

struct WorthOf {
  double slack_s, dry_s, age_s, lived_s, target_s, due_s, token_s, gen_s, most_left, good;
  bool promised;
};

// Rates between which costs alone decide and ages alone.
inline constexpr double kLeastRate = 1e-12, kMostRate = 1e9;

// How early a waiting request without targets is served. The order is that of arrivals, each moved ahead by the boost
// -log(1 - e^(-rate * cost)) / rate. waits_s: the cost of all that wait.
inline double earliness(double age_s, double cost_s, double waits_s, double tail) {
  const double rate = std::clamp(tail / waits_s, 0.0, kMostRate);
  return rate * age_s - std::log(-std::expm1(-std::max(rate, kLeastRate) * cost_s));
}

// Waiting requests without targets: places, how early each is served, and the rate of its stretch per cost.
struct Unhurried {
  std::vector<std::int64_t> places;
  std::vector<double> early, rates;

  // Hands out the rates anew, the highest to the request that is served first.
  void hand_out(double* urgency) const {
    std::vector<Sorted> first(places.size()), highest(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      first[i] = {sortable(-early[i]), static_cast<std::int64_t>(i)};
      highest[i] = {sortable(-rates[i]), static_cast<std::int64_t>(i)};
    }
    sort_by_key(first);
    sort_by_key(highest);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto place = static_cast<std::size_t>(places[static_cast<std::size_t>(first[i].index)]);
      urgency[place] = rates[static_cast<std::size_t>(highest[i].index)];
    }
  }
};

inline double ratio2(double span, double late) {
  const double part = span / (span + late);
  return part * part;
}

}  // namespace detail

// gain, cost, urgency: [n]. runs: of these requests. layout: of the KV cache. The urgency is gain / cost, by which requests are
// ordered; among waiting requests without targets these are handed out anew, so that they go by boosted arrival. Returns the mean
// of the delay, in seconds.
// Throws std::invalid_argument where queued > n, steps or ranks is 0, and for tokens below 0 or above kMostCount.
inline double worth(const WorthColumns& columns, const WorthRequests& of, const Chances& runs, const KvLayout& layout,
                    const WorthEngine& engine, double* gain, double* cost, double* urgency) {
  const std::size_t n = of.slots.size;
  if (of.queued > n) {
    throw std::invalid_argument("queued: " + std::to_string(of.queued) + " of " + std::to_string(n) + " requests");
  }
  if (runs.steps() == 0) throw std::invalid_argument("ahead: there must be one step at least");
  if (of.ranks == 0) throw std::invalid_argument("weights: there must be one at least");
  check_tokens({{"prompt_tokens", columns.prompt_tokens}, {"output_tokens", columns.output_tokens}, {"max_tokens", columns.max_tokens}},
               of.slots);
  constexpr double kInf = std::numeric_limits<double>::infinity();

  // What each takes of step time, KV cache and seats, and the prices of these.
  std::array<double, 3> needed = {0.0, 0.0, 0.0};
  std::vector<std::array<double, 3>> taken(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t slot = of.slots[i];
    const double left = of.left[i], steps = left / std::fmax(of.per_step[i], 1.0), seconds = steps * engine.step_s;
    const double context = static_cast<double>(columns.prompt_tokens[slot] + columns.output_tokens[slot]);
    taken[i] = {static_cast<double>(of.prefill[i]) * engine.prompt_token_s + steps * engine.token_s,
                layout.filled(context + left / 2.0) * seconds / engine.kv_blocks, seconds / engine.seats};
    for (std::size_t k = 0; k < 3; ++k) needed[k] += taken[i][k];
  }
  const double most = std::max({needed[0], needed[1], needed[2], 1e-12});
  std::array<double, 3> price;
  for (std::size_t k = 0; k < 3; ++k) price[k] = std::pow(needed[k] / most, engine.price_power);
  for (std::size_t i = 0; i < n; ++i) {
    cost[i] = 0.0;
    for (std::size_t k = 0; k < 3; ++k) cost[i] += price[k] * taken[i][k];
    cost[i] = std::max(cost[i], 1e-9);
  }

  std::vector<detail::WorthOf> all(n);
  double waits = 0.0;
  std::size_t num_promised = 0, num_late = 0;
  for (std::size_t i = 0; i < n; ++i) {
    auto& one = all[i];
    const std::size_t slot = of.slots[i];
    const double age = std::max(of.now_s - columns.arrival_s[slot], 0.0), ttft = columns.ttft_s[slot];
    const double pace = token_pace_s(columns.tpot_s[slot], columns.tds[slot]), e2e = columns.e2e_s[slot];
    const double done = static_cast<double>(columns.output_tokens[slot]), left = of.left[i];
    const double since_first = of.now_s - columns.first_token_s[slot];
    const bool has_kv = of.prefill[i] <= 0;
    const double prefill_s = has_kv ? 0.0 : engine.step_wait_s + static_cast<double>(of.prefill[i]) * engine.prompt_token_s;
    const bool begun = !std::isnan(since_first), reads = !(std::isnan(ttft) && std::isnan(pace)), timed = !std::isnan(e2e);
    one.most_left = static_cast<double>(columns.max_tokens[slot] - columns.output_tokens[slot]);
    one.token_s = engine.step_s / std::fmax(of.per_step[i], 1.0);
    one.gen_s = left * one.token_s;
    // Begun, its mean pace must be kept to the end.
    const double slack = begun ? pace * (done + left) - since_first - prefill_s - one.gen_s : ttft - age - prefill_s;
    one.slack_s = std::isnan(slack) ? kInf : slack;
    if (begun && age - since_first > ttft) one.slack_s = -kInf;
    const double expected = std::isnan(ttft) ? engine.reader_ttft_s : ttft;
    const double reading = std::isnan(pace) ? 1.0 / engine.reader_tds : pace;
    one.dry_s = reads ? (begun ? reading * done - since_first : expected - age) - prefill_s : kInf;
    const double streamed = reads ? expected + (std::isnan(pace) ? 0.0 : pace * (done + left)) : engine.unhurried_s;
    one.target_s = timed ? e2e : streamed;
    one.age_s = age;
    one.lived_s = age + prefill_s;
    one.due_s = e2e - one.lived_s;
    one.promised = reads || timed;
    const double chance = timed ? detail::ends_within(one.due_s / one.token_s, one.most_left, runs, i) : 1.0;
    // The token that a decode has in flight is not counted yet, so its slack looks shorter by up to a step.
    const double least_slack_s = begun && has_kv ? -engine.full_s : 0.0;
    one.good = one.promised && one.slack_s >= least_slack_s ? chance : 0.0;
    num_promised += one.promised;
    num_late += one.promised && one.good <= 0.0;
    if (i < of.queued) waits += cost[i] * (one.promised ? one.good : 1.0);
  }
  const double late = static_cast<double>(num_late) / static_cast<double>(std::max(num_promised, kFewPromised));
  // Where KV is short and step time is not, those ahead of their pace can lend theirs: not all that is late is beyond help.
  const double depth = std::min(late / engine.late_at, 1.0) * std::sqrt(needed[0] / most);
  const double share = engine.wait_share * std::pow(engine.late_wait_share / engine.wait_share, depth);
  const double wait_s = std::max(waits * share, engine.full_s);
  detail::Unhurried unhurried;
  for (std::size_t i = 0; i < n; ++i) {
    const auto& one = all[i];
    const double again_s = i < of.queued ? 0.0 : of.again_s[i - of.queued];
    double in_time = 1.0, experience = 0.0, stretch = 0.0;
    const double ends_s = one.target_s + one.lived_s + one.gen_s;
    const bool timed = one.good > 0.0 && !std::isnan(one.due_s);
    const double span = std::max(one.gen_s, one.token_s);
    double later = 0.0;
    for (std::size_t k = 0; k < 3; ++k) {
      const double delay = again_s + wait_s * kWorthNodes[k];
      if (timed) {
        const double tokens = (one.due_s - delay) / one.token_s;
        later += kWorthNodeWeights[k] * detail::ends_within(tokens, one.most_left, runs, i);
      }
      if (one.dry_s < kInf) experience += kWorthNodeWeights[k] * detail::ratio2(span, std::max(delay - one.dry_s, 0.0));
      stretch += kWorthNodeWeights[k] / (ends_s + delay);
    }
    if (timed) in_time = std::min(later / one.good, 1.0);
    const double kept = -std::expm1(-std::max(one.slack_s - again_s, 0.0) / wait_s);
    gain[i] = one.good * (1.0 - in_time * kept);
    if (one.dry_s < kInf) gain[i] += engine.experience * (detail::ratio2(span, std::max(-one.dry_s, 0.0)) - experience);
    gain[i] += engine.stretch * one.target_s * (1.0 / ends_s - stretch);
    if (i < of.queued && !one.promised) {
      unhurried.places.push_back(static_cast<std::int64_t>(i));
      unhurried.early.push_back(detail::earliness(one.age_s, cost[i], waits, engine.tail));
      unhurried.rates.push_back(gain[i] / cost[i]);
    }
    urgency[i] = gain[i] / cost[i];
  }
  unhurried.hand_out(urgency);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t rank = std::max<std::int64_t>(columns.class_rank[of.slots[i]], 0);
    const double weight = of.weights[std::min(static_cast<std::size_t>(rank), of.ranks - 1)];
    gain[i] *= weight;
    urgency[i] *= weight;
  }
  return wait_s;
}

}  // namespace sloserve
