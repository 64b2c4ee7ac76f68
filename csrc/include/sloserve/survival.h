// How likely requests are to go on, looked up in a table of each class. No Python, no torch: plain arrays in, plain arrays
// out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/request_columns.h"

namespace sloserve {

// longer, beyond: [classes, lengths]; P(length > place * stride), above 0, and its sum over all lengths from there on;
// `beyond` may be nullptr where no mean is asked for.
struct LengthTable {
  const double *longer, *beyond;
  std::size_t classes, lengths;
  std::int64_t stride;
};

// class_id, output_tokens, max_tokens: columns of the request table; tokens from 0.
struct LengthColumns {
  const std::int64_t *class_id, *output_tokens, *max_tokens;
};

namespace detail {

inline void check_classes(const LengthTable& table, const LengthColumns& columns, const Slots& slots) {
  for (std::size_t i = 0; i < slots.size; ++i) {
    const std::int64_t one = columns.class_id[slots[i]];
    if (one < 0 || static_cast<std::size_t>(one) >= table.classes) {
      throw std::invalid_argument("class_id: " + std::to_string(one) + " of " + std::to_string(table.classes));
    }
  }
}

inline void check_look_up(const LengthTable& table, const LengthColumns& columns, const Slots& slots) {
  check_within("stride", table.stride, 1, kMostCount);
  if (table.lengths == 0) throw std::invalid_argument("longer: a row must not be empty");
  check_tokens({{"output_tokens", columns.output_tokens}, {"max_tokens", columns.max_tokens}}, slots);
  check_classes(table, columns, slots);
}

[[noreturn]] inline void refuse_longer(double longer) {
  throw std::invalid_argument("longer: " + std::to_string(longer) + " is not above 0");
}

// A chance that others are divided by.
inline double above_0(double longer) {
  if (!(longer > 0.0)) refuse_longer(longer);
  return longer;
}

}  // namespace detail

// P(more than ahead[k] tokens are still to come), of requests that have emitted output_tokens: looked up when asked for, so
// that what nobody asks costs nothing. ahead: [steps]; ascends from 0.
//
// known_row: [n]; the row of `known`, [rows, steps], of a request of which more is known than its class; -1 where nothing
// is; nullptr where that holds for all.
class Chances {
 public:
  // Throws std::invalid_argument for a class that has no row, a stride below 1, an empty row, tokens below 0 or above
  // kMostCount, and an `ahead` that does not ascend from 0; all look-ups for a chance to be divided by that is not above 0.
  Chances(const LengthTable& table, const LengthColumns& columns, const Slots& slots, const std::int64_t* ahead,
          std::size_t steps, const double* known, const std::int64_t* known_row)
      : table_(table), columns_(columns), slots_(slots), ahead_(ahead), steps_(steps), known_(known), known_row_(known_row) {
    detail::check_look_up(table, columns, slots);
    // (a + b) / stride from the quotients and remainders of a and b: a division for each look-up takes most of the time.
    quotient_.resize(steps);
    remainder_.resize(steps);
    ahead_tokens_.resize(steps);
    for (std::size_t k = 0; k < steps; ++k) {
      if (k > 0 ? ahead[k] <= ahead[k - 1] || ahead[k] > kMostCount : ahead[k] != 0) {
        throw std::invalid_argument("ahead[" + std::to_string(k) + "]: " + std::to_string(ahead[k]) + "; it ascends from 0 to " +
                                    std::to_string(kMostCount) + " at most");
      }
      quotient_[k] = ahead[k] / table.stride;
      remainder_[k] = ahead[k] % table.stride;
      ahead_tokens_[k] = static_cast<double>(ahead[k]);
    }
  }

  // Throws std::invalid_argument where a class has no row any more: a look-up reads the column anew.
  void check() const { detail::check_classes(table_, columns_, slots_); }

  std::size_t size() const { return slots_.size; }
  std::size_t steps() const { return steps_; }
  // [steps]; tokens.
  const std::vector<double>& ahead() const { return ahead_tokens_; }

  double at(std::size_t i, std::size_t k) const {
    if (is_known(i)) return known_[static_cast<std::size_t>(known_row_[i]) * steps_ + k];
    return Looked(*this, slots_[i]).at(k);
  }

  // Those of the i-th request, up to the first that is 0, as are all after it; returns how many. row: [steps].
  std::size_t row(std::size_t i, double* row) const {
    if (is_known(i)) {
      const double* known = known_ + static_cast<std::size_t>(known_row_[i]) * steps_;
      std::copy(known, known + steps_, row);
      return steps_;
    }
    const Looked looked(*this, slots_[i]);
    std::size_t k = 0;
    for (; k < steps_ && ahead_[k] < looked.left; ++k) row[k] = looked.at(k);
    return k;
  }

 private:
  bool is_known(std::size_t i) const { return known_row_ != nullptr && known_row_[i] >= 0; }

  struct Looked {
    const Chances& of;
    const double* row;
    std::int64_t last, so_far, over, left;
    double reached;

    Looked(const Chances& chances, std::size_t slot) : of(chances) {
      const auto& table = of.table_;
      row = table.longer + static_cast<std::size_t>(of.columns_.class_id[slot]) * table.lengths;
      last = static_cast<std::int64_t>(table.lengths) - 1;
      const std::int64_t output = of.columns_.output_tokens[slot];
      so_far = output / table.stride;
      over = output % table.stride;
      left = of.columns_.max_tokens[slot] - output;
      reached = detail::above_0(row[std::clamp<std::int64_t>(so_far, 0, last)]);
    }
    double at(std::size_t k) const {
      const std::int64_t place = so_far + of.quotient_[k] + (over + of.remainder_[k] >= of.table_.stride);
      return of.ahead_[k] >= left ? 0.0 : row[std::clamp<std::int64_t>(place, 0, last)] / reached;
    }
  };

  LengthTable table_;
  LengthColumns columns_;
  Slots slots_;
  const std::int64_t* ahead_;
  std::size_t steps_;
  const double* known_;
  const std::int64_t* known_row_;
  std::vector<std::int64_t> quotient_, remainder_;
  std::vector<double> ahead_tokens_;
};

// mean: [slots]; tokens still to come, expected: at least 1, at most what max_tokens leaves. Throws as Chances.
inline void mean_left(const LengthTable& table, const LengthColumns& columns, const Slots& slots, double* mean) {
  detail::check_look_up(table, columns, slots);
  const std::int64_t last = static_cast<std::int64_t>(table.lengths) - 1;
  const auto place = [&](std::int64_t tokens) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(tokens / table.stride, 0, last));
  };
  for (std::size_t i = 0; i < slots.size; ++i) {
    const std::size_t slot = slots[i];
    const std::int64_t output = columns.output_tokens[slot], most = columns.max_tokens[slot];
    const std::size_t row = static_cast<std::size_t>(columns.class_id[slot]) * table.lengths, at = row + place(output);
    // What would come beyond the cap does not count; the table ends before most caps, and has nothing to take off.
    const double beyond_cap = most > last * table.stride ? 0.0 : table.beyond[row + place(most)];
    const double left = static_cast<double>(most - output);
    mean[i] = std::max(std::min((table.beyond[at] - beyond_cap) / detail::above_0(table.longer[at]), left), 1.0);
  }
}

}  // namespace sloserve
