// One count for each future engine step. No Python, no torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sloserve/request_columns.h"

namespace sloserve {

inline constexpr std::int64_t kForever = std::int64_t{1} << 62;

namespace detail {

// Counts by step, from now on; 0 from some step on. The caller sees to it that none falls below 0 or exceeds 32 bits.
class FutureSteps {
 public:
  explicit FutureSteps(std::int64_t now) : now_(now), origin_(now) {}

  std::int64_t now() const { return now_; }
  // The first step from which on all are 0, or now.
  std::int64_t end() const { return std::max(origin_ + static_cast<std::int64_t>(cells_.size()), now_); }
  std::int64_t at(std::int64_t step) const { return step < end() ? *cell(step) : 0; }
  // Steps read or written since the beginning.
  std::int64_t visited() const { return visited_; }

  void extend(std::int64_t end) {
    if (end > this->end()) cells_.resize(static_cast<std::size_t>(end - origin_));
  }

  // Adds to each step of [begin, end), which must be within [now, end()).
  void add(std::int64_t begin, std::int64_t end, std::int64_t change) {
    const auto narrow = static_cast<std::int32_t>(change);
    std::int32_t* cells = cells_.data() + (begin - origin_);
    for (std::int64_t i = 0; i < end - begin; ++i) cells[i] += narrow;
    visited_ += end - begin;
  }

  // The first step of [begin, end), within [now, end()), whose count exceeds `most`; kForever if none does.
  std::int64_t first_above(std::int64_t begin, std::int64_t end, std::int64_t most) const {
    if (most < 0) return begin < end ? begin : kForever;
    const auto threshold = static_cast<std::int32_t>(std::min<std::int64_t>(most, std::numeric_limits<std::int32_t>::max()));
    for (std::int64_t step = begin; step < end; step += kStride) {
      const std::int32_t* first = cell(step);
      const std::int32_t* last = first + std::min(end - step, kStride);
      visited_ += last - first;
      // The sign bit tells of any: without a branch the compiler takes several cells at once. No count is negative.
      std::int32_t any = 0;
      for (const std::int32_t* at = first; at != last; ++at) any |= threshold - *at;
      if (any < 0) return step + (std::find_if(first, last, [&](std::int32_t c) { return c > threshold; }) - first);
    }
    return kForever;
  }

  void advance(std::int64_t step) {
    now_ = step;
    const auto past = std::min(static_cast<std::size_t>(now_ - origin_), cells_.size());
    if (2 * past < cells_.size()) return;
    // What is kept is no more than what goes, so that a step costs O(1) in the long run.
    cells_.erase(cells_.begin(), cells_.begin() + static_cast<std::ptrdiff_t>(past));
    origin_ = now_;
  }

 private:
  static constexpr std::int64_t kStride = 128;

  const std::int32_t* cell(std::int64_t step) const { return cells_.data() + (step - origin_); }

  std::int64_t now_;
  std::int64_t origin_;              // the step of the first cell
  std::vector<std::int32_t> cells_;  // those before now_ mean nothing
  mutable std::int64_t visited_ = 0;
};

}  // namespace detail

}  // namespace sloserve
