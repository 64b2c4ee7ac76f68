// A plan of batches and its moves, each judged without visiting what it leaves as it is (anneal.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sloserve/batch_plan.h"
#include "sloserve/random.h"

namespace sloserve::detail {

// Batches through which a request may push others on.
constexpr std::size_t kReach = 8;

// A plan that can be changed by a move, with what a move needs to be judged without visiting what it leaves as it is.
class Walk {
 public:
  Walk(const std::vector<BatchRequest>& requests, std::int64_t max_batch, std::int64_t fixed)
      : requests_(requests),
        max_batch_(static_cast<std::size_t>(max_batch)),
        fixed_(static_cast<std::size_t>(fixed)),
        batch_of_(requests.size()),
        latest_(requests.size()),
        trial_latest_(requests.size()),
        margin_(requests.size()),
        met_before_(requests.size() + 1, 0) {
    for (const BatchRequest& request : requests) waited_s_ += request.waited;
  }

  // The requests in this order, in batches as large as they may be.
  void start(std::vector<std::int64_t> order) {
    order_ = std::move(order);
    start_.clear();
    for (std::size_t at = 0; at < order_.size(); at += max_batch_) start_.push_back(at);
    start_.push_back(order_.size());
    const std::size_t batches = start_.size() - 1;
    duration_.assign(batches, 0.0);
    exec_sum_.assign(batches, 0.0);
    wait_.assign(batches, 0.0);
    for (std::size_t k = 0; k < batches; ++k) {
      set_batch(k, measure(start_[k], start_[k + 1]));
    }
    latest_.swap(trial_latest_);
    refresh(0);
  }

  const Score& score() const { return score_; }
  const std::vector<std::int64_t>& order() const { return order_; }
  const std::vector<std::size_t>& starts() const { return start_; }

  // Draws a move and tells whether there is one to judge; `trial()` is then its score, `accept()` or `undo()` its end.
  bool propose(Random& random) {
    const std::size_t p = fixed_ + random.below(order_.size() - fixed_);
    const std::size_t kind = random.below(3);
    const std::size_t k = batch_of_[p];
    if ((kind == 0 && squeeze(p, k, random)) || (kind == 1 && delay(p, k, random))) {
      judge_tiles();
      return true;
    }
    return swap(p, k, random);
  }

  const Score& trial() const { return trial_; }

  void undo() { std::swap(order_[swap_p_], order_[swap_q_]); }

  void accept() {
    if (tiles_.empty()) {
      keep_trial(start_[first_], start_[first_ + 1]);
      keep_trial(start_[last_], start_[last_ + 1]);
      set_batch(first_, left_);
      set_batch(last_, right_);
    } else {
      keep_trial(start_[first_], tiles_.back().end);
      resize_batches(first_, last_ + 1 - first_, tiles_.size());
      for (std::size_t t = 0; t < tiles_.size(); ++t) {
        start_[first_ + t + 1] = tiles_[t].end;
        set_batch(first_ + t, tiles_[t]);
      }
    }
    refresh(first_);
  }

 private:
  struct Tile {
    std::size_t end;
    double duration_s, exec_sum_s;
  };

  static std::ptrdiff_t offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

  std::size_t size(std::size_t k) const { return start_[k + 1] - start_[k]; }
  bool has_room(std::size_t k) const { return size(k) < max_batch_; }

  // How many go along: one, or with a chance of a half any number up to the most.
  static std::size_t several(Random& random, std::size_t most) {
    return most > 1 && random.below(2) ? 1 + random.below(most) : 1;
  }

  void exchange(std::size_t p, std::size_t q) {
    swap_p_ = p;
    swap_q_ = q;
    std::swap(order_[p], order_[q]);
  }

  // Replaces batches first..last by batches that end where `tile` says.
  void tiles_from(std::size_t first, std::size_t last) {
    first_ = first;
    last_ = last;
    tiles_.clear();
  }
  void tile(std::size_t end) { tiles_.push_back({end, 0.0, 0.0}); }

  // The request at p, and maybe others of batch k, into the batch before; if that is full, one of it moves on to the one before,
  // and so on to a batch with room.
  bool squeeze(std::size_t p, std::size_t k, Random& random) {
    if (k == 0) return false;
    std::size_t into = k - 1;
    while (!has_room(into) && into > 0 && k - into < kReach && start_[into] >= fixed_) --into;
    if (!has_room(into)) return false;
    const std::size_t moved = into + 1 == k ? several(random, std::min(max_batch_ - size(into), size(k))) : 1;
    exchange(p, start_[k]);
    tiles_from(into, k);
    for (std::size_t j = into; j < k; ++j) tile(start_[j + 1] + moved);
    if (start_[k] + moved < start_[k + 1]) tile(start_[k + 1]);
    return true;
  }

  // The request at p, and maybe others of batch k, into the next batch; if that is full, into one of their own behind batch k, or
  // one of each next batch moves on to a batch with room, or to a new one.
  bool delay(std::size_t p, std::size_t k, Random& random) {
    const std::size_t movable = std::min(start_[k + 1] - std::max(start_[k], fixed_), size(k) - 1);
    if (movable == 0) return false;
    const std::size_t batches = wait_.size();
    exchange(p, start_[k + 1] - 1);
    if (k + 1 < batches && has_room(k + 1)) {
      tiles_from(k, k + 1);
      tile(start_[k + 1] - several(random, std::min(max_batch_ - size(k + 1), movable)));
      tile(start_[k + 2]);
    } else if (k + 1 == batches || random.below(2)) {
      tiles_from(k, k);
      tile(start_[k + 1] - several(random, movable));
      tile(start_[k + 1]);
    } else {
      std::size_t into = k + 2;
      while (into < batches && !has_room(into) && into - k < kReach) ++into;
      const bool joins = into < batches && has_room(into);
      const std::size_t last = joins ? into : into - 1;
      tiles_from(k, last);
      for (std::size_t j = k; j < last; ++j) tile(start_[j + 1] - 1);
      if (!joins) tile(start_[last + 1] - 1);
      tile(start_[last + 1]);
    }
    return true;
  }

  // The request at p with one of another batch.
  bool swap(std::size_t p, std::size_t k, Random& random) {
    const std::size_t begin = std::max(start_[k], fixed_);
    const std::size_t inside = start_[k + 1] - begin;
    const std::size_t outside = order_.size() - fixed_ - inside;
    if (outside == 0) return false;
    std::size_t q = fixed_ + random.below(outside);
    if (q >= begin) q += inside;
    exchange(p, q);
    tiles_.clear();
    first_ = std::min(k, batch_of_[q]);
    last_ = std::max(k, batch_of_[q]);
    judge_swap();
    return true;
  }

  // A batch of the requests at these positions; notes their latest starts.
  Tile measure(std::size_t begin, std::size_t end) {
    const double batch = static_cast<double>(end - begin);
    Tile found{end, 0.0, 0.0};
    for (std::size_t at = begin; at < end; ++at) {
      const BatchRequest& request = requests_[static_cast<std::size_t>(order_[at])];
      const double exec_s = request.exec(batch);
      found.exec_sum_s += exec_s;
      found.duration_s = std::max(found.duration_s, exec_s * request.share);
      trial_latest_[at] = request.latest_start(batch);
    }
    return found;
  }

  // How many at these positions are still met when their batches start later by this much.
  std::int64_t met_if_later(std::size_t begin, std::size_t end, double later_s) const {
    if (later_s == 0.0) return met_before_[end] - met_before_[begin];
    std::int64_t met = 0;
    for (std::size_t at = begin; at < end; ++at) met += margin_[at] >= later_s;
    return met;
  }

  std::int64_t met_if_start(std::size_t begin, std::size_t end, double wait_s) const {
    std::int64_t met = 0;
    for (std::size_t at = begin; at < end; ++at) met += trial_latest_[at] >= wait_s;
    return met;
  }

  void judge_tiles() {
    std::size_t begin = start_[first_];
    double wait_s = wait_[first_];
    trial_ = {met_before_[begin], score_.latency_s};
    for (std::size_t k = first_; k <= last_; ++k) trial_.latency_s -= held_s(k);
    for (Tile& one : tiles_) {
      one = measure(begin, one.end);
      trial_.met += met_if_start(begin, one.end, wait_s);
      trial_.latency_s += wait_s * static_cast<double>(one.end - begin) + one.exec_sum_s;
      wait_s += one.duration_s;
      begin = one.end;
    }
    behind(begin, wait_s - (wait_[last_] + duration_[last_]));
  }

  void judge_swap() {
    left_ = measure(start_[first_], start_[first_ + 1]);
    right_ = measure(start_[last_], start_[last_ + 1]);
    const double later_s = left_.duration_s - duration_[first_];
    const double right_wait_s = wait_[last_] + later_s;
    trial_.met = met_before_[start_[first_]] + met_if_start(start_[first_], start_[first_ + 1], wait_[first_]) +
                 met_if_later(start_[first_ + 1], start_[last_], later_s) +
                 met_if_start(start_[last_], start_[last_ + 1], right_wait_s);
    trial_.latency_s = score_.latency_s - exec_sum_[first_] - exec_sum_[last_] + left_.exec_sum_s + right_.exec_sum_s +
                       later_s * static_cast<double>(start_[last_ + 1] - start_[first_ + 1]);
    behind(start_[last_ + 1], later_s + right_.duration_s - duration_[last_]);
  }

  // Adds what becomes of the requests from this position on, whose batches start later by this much.
  void behind(std::size_t begin, double later_s) {
    trial_.met += met_if_later(begin, order_.size(), later_s);
    trial_.latency_s += later_s * static_cast<double>(order_.size() - begin);
  }

  double held_s(std::size_t k) const { return wait_[k] * static_cast<double>(size(k)) + exec_sum_[k]; }

  void keep_trial(std::size_t begin, std::size_t end) {
    std::copy(trial_latest_.begin() + offset(begin), trial_latest_.begin() + offset(end), latest_.begin() + offset(begin));
  }

  void set_batch(std::size_t k, const Tile& measured) {
    duration_[k] = measured.duration_s;
    exec_sum_[k] = measured.exec_sum_s;
  }

  // Makes room for `now` batches in place of `before`, from batch `first` on; their entries are to be set.
  void resize_batches(std::size_t first, std::size_t before, std::size_t now) {
    const auto resize = [&](auto& entries, std::size_t at) {
      if (now > before) entries.insert(entries.begin() + offset(at), now - before, {});
      if (now < before) entries.erase(entries.begin() + offset(at), entries.begin() + offset(at + before - now));
    };
    resize(start_, first + 1);
    resize(duration_, first);
    resize(exec_sum_, first);
    resize(wait_, first);
  }

  // Waiting times and what follows from them, anew from batch `from` on: nothing accumulates rounding errors.
  void refresh(std::size_t from) {
    double wait_s = from > 0 ? wait_[from - 1] + duration_[from - 1] : 0.0;
    for (std::size_t k = from; k < wait_.size(); ++k) {
      wait_[k] = wait_s;
      for (std::size_t at = start_[k]; at < start_[k + 1]; ++at) {
        batch_of_[at] = k;
        margin_[at] = latest_[at] - wait_s;
        met_before_[at + 1] = met_before_[at] + (margin_[at] >= 0.0);
      }
      wait_s += duration_[k];
    }
    score_ = {met_before_[order_.size()], waited_s_};
    for (std::size_t k = 0; k < wait_.size(); ++k) score_.latency_s += held_s(k);
  }

  const std::vector<BatchRequest>& requests_;
  const std::size_t max_batch_, fixed_;
  double waited_s_ = 0.0;
  Score score_, trial_;
  std::vector<std::int64_t> order_;                         // by position
  std::vector<std::size_t> batch_of_;                       // by position
  std::vector<double> latest_, trial_latest_, margin_;      // by position: latest start, and how much later than its start
  std::vector<std::int64_t> met_before_;                    // requests met at the positions before this one
  std::vector<std::size_t> start_;                          // by batch: first position; then the number of requests
  std::vector<double> duration_, exec_sum_, wait_;          // by batch
  std::size_t swap_p_ = 0, swap_q_ = 0;                     // the move: positions exchanged
  std::size_t first_ = 0, last_ = 0;                        // batches it changes: all from first to last into tiles_,
  std::vector<Tile> tiles_;                                 // or, where that is empty, these two
  Tile left_{}, right_{};
};

}  // namespace sloserve::detail
