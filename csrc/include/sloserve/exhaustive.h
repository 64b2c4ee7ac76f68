// For tests and benchmarks: the best plan of all, by trying them. Time grows faster than n!, hence the limit.
// It is part of the one extension module: a second one for tests alone would be a build target of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/batch_plan.h"

namespace sloserve {

constexpr std::size_t kMostExhaustive = 12;

namespace detail {

// Depth first over batches; a batch is a set, so its members are chosen ascending. A branch is left when even if all that
// remain met their targets and started at once the score would not beat the best.
class Exhaustive {
 public:
  Exhaustive(const std::vector<BatchRequest>& requests, std::int64_t max_batch)
      : requests_(requests), max_batch_(max_batch), used_(requests.size(), false) {
    for (const BatchRequest& request : requests) least_.push_back(request.waited + request.exec(1.0));
  }

  BatchPlan run(std::int64_t fixed) {
    best_.score = {-1, 1.0};
    for (std::int64_t i = 0; i < fixed; ++i) take(static_cast<std::size_t>(i));
    choose(0, static_cast<std::size_t>(fixed), Score{}, 0.0);
    best_.score = score_of(requests_, best_.order, best_.sizes);
    return best_;
  }

 private:
  void take(std::size_t i) {
    used_[i] = true;
    order_.push_back(static_cast<std::int64_t>(i));
  }

  void drop(std::size_t i) {
    used_[i] = false;
    order_.pop_back();
  }

  // Adds members from `next` on to the batch that begins at position `begin`; or closes it, if it has any.
  void choose(std::size_t begin, std::size_t next, Score so_far, double wait_s) {
    const std::size_t size = order_.size() - begin;
    if (size > 0) close(begin, so_far, wait_s);
    if (size == static_cast<std::size_t>(max_batch_)) return;
    for (std::size_t i = next; i < requests_.size(); ++i) {
      if (used_[i]) continue;
      take(i);
      choose(begin, i + 1, so_far, wait_s);
      drop(i);
    }
  }

  void close(std::size_t begin, Score score, double wait_s) {
    const double batch = static_cast<double>(order_.size() - begin);
    double duration_s = 0.0;
    for (std::size_t at = begin; at < order_.size(); ++at) {
      const BatchRequest& request = requests_[static_cast<std::size_t>(order_[at])];
      const double exec_s = request.exec(batch);
      score.met += wait_s <= request.latest_start(batch);
      score.latency_s += request.waited + wait_s + exec_s;
      duration_s = std::max(duration_s, exec_s * request.share);
    }
    wait_s += duration_s;
    sizes_.push_back(static_cast<std::int64_t>(order_.size() - begin));
    Score bound = score;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (used_[i]) continue;
      ++bound.met;
      bound.latency_s += wait_s + least_[i];
    }
    if (order_.size() == requests_.size()) {
      if (best_.score.met < 0 || score.value() > best_.score.value()) best_ = {order_, sizes_, score};
    } else if (best_.score.met < 0 || bound.value() > best_.score.value()) {
      choose(order_.size(), 0, score, wait_s);
    }
    sizes_.pop_back();
  }

  const std::vector<BatchRequest>& requests_;
  const std::int64_t max_batch_;
  std::vector<bool> used_;
  std::vector<double> least_;
  std::vector<std::int64_t> order_, sizes_;
  BatchPlan best_;
};

}  // namespace detail

// The plan of the greatest score, the first `fixed` requests in the first batch.
// Throws std::invalid_argument for more than kMostExhaustive requests or impossible limits.
inline BatchPlan exhaustive(const std::vector<BatchRequest>& requests, std::int64_t max_batch, std::int64_t fixed) {
  check_batch_limits(requests.size(), max_batch, fixed);
  if (requests.size() > kMostExhaustive) {
    throw std::invalid_argument("requests: " + std::to_string(requests.size()) + " are too many to try every order; the most is " +
                                std::to_string(kMostExhaustive));
  }
  if (requests.empty()) return {};
  return detail::Exhaustive(requests, max_batch).run(fixed);
}

}  // namespace sloserve
