// Requests served in successive batches: how many meet their targets and how long they take together, for a given order and
// given batch sizes. No Python, no torch: plain arrays in, plain values out.
//
// The model (simulated-annealing paper, Eq. 2-12 and 16-19): the requests of a batch start together; each is prefilled, then
// decoded, in times that are linear in the batch's size; the next batch starts when the slowest of the batch has ended. Differs:
// Eq. 11 is read as "if a_i >= 1"; a request may delay those behind it by only a share of its time (1 is the paper's).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace sloserve {

// The columns of a matrix [kColumns, n] of requests, in seconds but for kShare; NaN where a request has no such target.
enum Column : std::size_t {
  kPrefillBase,   // prefill takes base + slope * batch size
  kPrefillSlope,
  kDecodeBase,    // all its decode steps take base + slope * batch size
  kDecodeSlope,
  kShare,         // of its time, during which the next batch cannot start; 0..1
  kWaited,        // since its arrival
  kTtft,          // targets
  kDecodeLimit,   // TPOT target * output tokens
  kE2e,
  kColumns
};

struct BatchRequest {
  double prefill_base, prefill_slope, decode_base, decode_slope, share, waited;
  double first_token_left, decode_limit, finish_left;  // infinite where there is no target

  double prefill(double batch) const { return prefill_base + prefill_slope * batch; }
  double decode(double batch) const { return decode_base + decode_slope * batch; }
  double exec(double batch) const { return prefill(batch) + decode(batch); }

  // The latest start, from now, with which it meets its targets in a batch of this size; -inf if none does.
  double latest_start(double batch) const {
    const double decode_s = decode(batch);
    const double prefill_s = prefill(batch);
    const double latest = std::min(first_token_left - prefill_s, finish_left - (prefill_s + decode_s));
    return decode_s <= decode_limit ? latest : -std::numeric_limits<double>::infinity();
  }
};

// The longest time, in seconds, and the largest slope: sums over all requests stay finite, and so have an order.
constexpr double kMostSeconds = 1e12;

// Throws std::invalid_argument unless there are kColumns rows and times, slopes and shares are possible.
inline std::vector<BatchRequest> batch_requests(const double* columns, std::size_t rows, std::size_t n) {
  if (rows != kColumns) {
    throw std::invalid_argument("requests: " + std::to_string(rows) + " columns; there must be " + std::to_string(kColumns));
  }
  const auto target = [](double value, double waited) {
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : value - waited;
  };
  std::vector<BatchRequest> requests(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = [&](Column column) { return columns[column * n + i]; };
    for (const Column column : {kPrefillBase, kPrefillSlope, kDecodeBase, kDecodeSlope, kShare, kWaited}) {
      const double most = column == kShare ? 1.0 : kMostSeconds;
      if (!(at(column) >= 0.0 && at(column) <= most)) {
        throw std::invalid_argument("requests: column " + std::to_string(column) + " of request " + std::to_string(i) + ": " +
                                    std::to_string(at(column)) + " is not within 0 to " + std::to_string(most));
      }
    }
    requests[i] = {at(kPrefillBase), at(kPrefillSlope), at(kDecodeBase), at(kDecodeSlope), at(kShare), at(kWaited),
                   target(at(kTtft), at(kWaited)), target(at(kDecodeLimit), 0.0), target(at(kE2e), at(kWaited))};
  }
  return requests;
}

// What a plan achieves: requests that meet every target they have, and the sum of all end-to-end latencies in seconds.
struct Score {
  std::int64_t met = 0;
  double latency_s = 0.0;

  // G of the paper, to compare plans by: where nobody meets a target the shorter latency is better, and any plan that meets
  // one is better still (unless it takes a thousand times as long).
  double value() const { return (met > 0 ? static_cast<double>(met) : 1e-3) / latency_s; }
};

// Which requests, as indices, in which batches: the first sizes[0] of order, the next sizes[1], and so on.
struct BatchPlan {
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> sizes;
  Score score;
};

inline Score score_of(const std::vector<BatchRequest>& requests, const std::vector<std::int64_t>& order,
                      const std::vector<std::int64_t>& sizes) {
  Score score;
  double wait_s = 0.0;
  std::size_t at = 0;
  for (const std::int64_t size : sizes) {
    const double batch = static_cast<double>(size);
    double duration_s = 0.0;
    for (const std::size_t end = at + static_cast<std::size_t>(size); at < end; ++at) {
      const BatchRequest& request = requests[static_cast<std::size_t>(order[at])];
      const double exec_s = request.exec(batch);
      score.met += wait_s <= request.latest_start(batch);
      score.latency_s += request.waited + wait_s + exec_s;
      duration_s = std::max(duration_s, exec_s * request.share);
    }
    wait_s += duration_s;
  }
  return score;
}

// Throws std::invalid_argument unless the first `fixed` of n requests fit into one batch of at most max_batch.
inline void check_batch_limits(std::size_t n, std::int64_t max_batch, std::int64_t fixed) {
  if (max_batch < 1) {
    throw std::invalid_argument("max_batch: " + std::to_string(max_batch) + "; the least is 1");
  }
  if (fixed < 0 || fixed > max_batch || static_cast<std::size_t>(fixed) > n) {
    throw std::invalid_argument("fixed: " + std::to_string(fixed) + " is not within 0.." +
                                std::to_string(std::min(max_batch, static_cast<std::int64_t>(n))) +
                                ", the requests and places of the first batch");
  }
}

}  // namespace sloserve
