// How likely requests are to go on, looked up in a table of each class. No Python, no torch: plain arrays in, plain arrays
// out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sloserve {

namespace detail {

inline void check_classes(const std::int64_t* class_id, std::size_t n, std::size_t classes, std::size_t lengths,
                          std::int64_t stride) {
  if (stride < 1 || lengths == 0) throw std::invalid_argument("longer: rows and stride must not be empty");
  for (std::size_t i = 0; i < n; ++i) {
    if (class_id[i] < 0 || static_cast<std::size_t>(class_id[i]) >= classes) {
      throw std::invalid_argument("class_id: " + std::to_string(class_id[i]) + " of " + std::to_string(classes));
    }
  }
}

}  // namespace detail

// runs: [n, steps]; P(more than ahead[k] tokens are still to come), of requests that have emitted output_tokens.
//
// longer: [classes, lengths]; P(length > place * stride); above 0. class_id, output_tokens, max_tokens: [n]; tokens from 0.
// Throws std::invalid_argument for a class that has no row, a stride below 1 or an empty row, before anything is written.
inline void survival(const double* longer, std::size_t classes, std::size_t lengths, std::int64_t stride,
                     const std::int64_t* class_id, const std::int64_t* output_tokens, const std::int64_t* max_tokens,
                     std::size_t n, const std::int64_t* ahead, std::size_t steps, double* runs) {
  detail::check_classes(class_id, n, classes, lengths, stride);
  const std::int64_t last = static_cast<std::int64_t>(lengths) - 1;
  // (a + b) / stride from the quotients and remainders of a and b: a division for each look-up takes most of the time.
  std::vector<std::int64_t> quotient(steps), remainder(steps);
  for (std::size_t k = 0; k < steps; ++k) {
    quotient[k] = ahead[k] / stride;
    remainder[k] = ahead[k] % stride;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double* row = longer + static_cast<std::size_t>(class_id[i]) * lengths;
    const std::int64_t so_far = output_tokens[i] / stride, over = output_tokens[i] % stride;
    const std::int64_t left = max_tokens[i] - output_tokens[i];
    const double reached = row[std::clamp<std::int64_t>(so_far, 0, last)];
    for (std::size_t k = 0; k < steps; ++k) {
      const std::int64_t place = so_far + quotient[k] + (over + remainder[k] >= stride);
      runs[i * steps + k] = ahead[k] >= left ? 0.0 : row[std::clamp<std::int64_t>(place, 0, last)] / reached;
    }
  }
}

// mean: [n]; tokens still to come, expected: at least 1, at most what max_tokens leaves.
//
// longer, beyond: [classes, lengths]; P(length > place * stride), above 0, and its sum over all lengths from there on.
// class_id, output_tokens, max_tokens: [n]; tokens from 0. Throws as survival.
inline void mean_left(const double* longer, const double* beyond, std::size_t classes, std::size_t lengths,
                      std::int64_t stride, const std::int64_t* class_id, const std::int64_t* output_tokens,
                      const std::int64_t* max_tokens, std::size_t n, double* mean) {
  detail::check_classes(class_id, n, classes, lengths, stride);
  const std::int64_t last = static_cast<std::int64_t>(lengths) - 1;
  const auto place = [&](std::int64_t tokens) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(tokens / stride, 0, last));
  };
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = static_cast<std::size_t>(class_id[i]) * lengths, at = row + place(output_tokens[i]);
    // What would come beyond the cap does not count; the table ends before most caps, and has nothing to take off.
    const double beyond_cap = max_tokens[i] > last * stride ? 0.0 : beyond[row + place(max_tokens[i])];
    const double left = static_cast<double>(max_tokens[i] - output_tokens[i]);
    mean[i] = std::max(std::min((beyond[at] - beyond_cap) / longer[at], left), 1.0);
  }
}

}  // namespace sloserve
