// How a reader digests a streamed reply, and what QoE the reply will have if it is served or left waiting. No Python, no
// torch: plain arrays in, plain arrays out.
//
// Source: Andes, Sec. 3.1 (digest curve, Eq. 1) and 4.1 (QoE when served and when waiting). Differs: both are closed
// forms of a curve that is kept exactly, one update a delivery; tokens to come are a line, not steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace sloserve {

// The curve A(t) of one reader, all seconds since the request's arrival. Within a busy period the reader digests `tds`
// tokens per second, between two of them nothing.
//
// tokens: delivered. busy_from_s: start of the last busy period. busy_tokens: digested before it. busy_area: area under
// A up to it, token seconds. dry_s: when all that was delivered is digested, the end of that period.
struct DigestCurve {
  double tokens = 0.0;
  double busy_from_s = 0.0;
  double busy_tokens = 0.0;
  double busy_area = 0.0;
  double dry_s = 0.0;

  // Area under A from 0 to t_s if no token comes any more; t_s no earlier than the last delivery.
  double area(double t_s, double tds) const {
    const double busy_s = std::min(t_s, dry_s) - busy_from_s;
    return busy_area + (busy_tokens + 0.5 * tds * busy_s) * busy_s + tokens * std::max(t_s - dry_s, 0.0);
  }

  // `count` tokens arrive at once.
  void deliver(double count, double t_s, double tds) {
    if (t_s > dry_s) {
      busy_area = area(t_s, tds);
      busy_tokens = tokens;
      busy_from_s = t_s;
      dry_s = t_s;
    }
    dry_s += count / tds;
    tokens += count;
  }
};

inline constexpr std::size_t kDigestColumns = 5;
static_assert(sizeof(DigestCurve) == kDigestColumns * sizeof(double));

// What is expected of a reply, and foreseen.
//
// now_s: since arrival. ttft_s, tds: expected. left: tokens still to come, 1 at least where they are foreseen. prefill_s: computing that precedes
// its next token. first_s: of the first token, NaN while there is none.
struct ReplyOutlook {
  double now_s, ttft_s, tds, left, prefill_s, first_s;
};

// The fields of ReplyOutlook as columns, [n] each.
struct ReplyColumns {
  const double *now_s, *ttft_s, *tds, *left, *prefill_s, *first_s;

  ReplyOutlook at(std::size_t i) const { return {now_s[i], ttft_s[i], tds[i], left[i], prefill_s[i], first_s[i]}; }
};

namespace detail {

inline double expected_area(double tokens, double ttft_s, double tds, double until_s) {
  const double since_s = std::max(until_s - ttft_s, 0.0);
  const double reading_s = tokens / tds;
  const double ramp_s = std::min(since_s, reading_s);
  return 0.5 * tds * ramp_s * ramp_s + tokens * (since_s - ramp_s);
}

// QoE up to until_s when tokens come from from_s on, one each step_s. alpha: see sloserve/core/qoe.py; 1 for none.
inline double quality(const DigestCurve& curve, const ReplyOutlook& reply, double from_s, double step_s, double until_s,
                      double alpha) {
  const double expected = expected_area(curve.tokens + reply.left, reply.ttft_s, reply.tds, until_s);
  if (expected <= 0.0) return 1.0;
  double area = curve.area(std::min(from_s, until_s), reply.tds);
  if (until_s > from_s) {
    const double tail_s = until_s - from_s;
    const double rate = 1.0 / step_s;
    const double undigested = std::max(curve.dry_s - from_s, 0.0) * reply.tds;
    // Digests at its own speed while anything is there; after that as fast as tokens come.
    double full_s = tail_s;
    if (rate < reply.tds) full_s = std::min(full_s, undigested / (reply.tds - rate));
    const double slow_s = tail_s - full_s;
    const double before = curve.tokens - undigested;
    area += before * tail_s + 0.5 * reply.tds * full_s * full_s + (reply.tds * full_s + 0.5 * rate * slow_s) * slow_s;
  }
  double ratio = std::min(area / expected, 1.0);
  if (alpha < 1.0) {
    const double first_s = std::isnan(reply.first_s) ? std::min(from_s, until_s) : reply.first_s;
    ratio *= std::pow(alpha, std::max(first_s - reply.ttft_s, 0.0));
  }
  return ratio;
}

inline void check_left(const double* left, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!(left[i] >= 1.0)) throw std::invalid_argument("left_tokens: " + std::to_string(left[i]) + "; the least is 1");
  }
}

inline void check_slots(const std::int64_t* slots, std::size_t n, std::size_t capacity) {
  for (std::size_t i = 0; i < n; ++i) {
    if (slots[i] < 0 || static_cast<std::size_t>(slots[i]) >= capacity) {
      throw std::invalid_argument("slots: " + std::to_string(slots[i]) + " is outside 0.." +
                                  std::to_string(capacity) + ", the end excluded");
    }
  }
}

}  // namespace detail

// Books tokens[i] tokens at times_s[i] for the reader in slots[i]. curves: [capacity]. O(n).
// Throws std::invalid_argument for a slot out of range, before anything is changed.
inline void deliver(DigestCurve* curves, std::size_t capacity, const std::int64_t* slots, const std::int64_t* tokens,
                    const double* times_s, const double* tds, std::size_t n) {
  detail::check_slots(slots, n, capacity);
  for (std::size_t i = 0; i < n; ++i) {
    curves[slots[i]].deliver(static_cast<double>(tokens[i]), times_s[i], tds[i]);
  }
}

// QoE of n replies if served from now on, and if left waiting for horizon_s, for each of num_steps times of a step.
// Throws std::invalid_argument for a slot out of range, less than one token to come, and a step that is not above 0 s.
//
// QoE at the horizon, or at the last token of a reply that is served and ends sooner. serve: [num_steps, n], wait: [n],
// written.
inline void foresee(const DigestCurve* curves, std::size_t capacity, const std::int64_t* slots,
                    const ReplyColumns& replies, std::size_t n, const double* steps_s, std::size_t num_steps, double horizon_s, double alpha,
                    double* serve, double* wait) {
  detail::check_slots(slots, n, capacity);
  detail::check_left(replies.left, n);
  for (std::size_t b = 0; b < num_steps; ++b) {
    if (!(steps_s[b] > 0.0)) throw std::invalid_argument("steps_s: " + std::to_string(steps_s[b]) + " is not above 0");
  }
  constexpr double never = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    const DigestCurve& curve = curves[slots[i]];
    const ReplyOutlook reply = replies.at(i);
    const double until_s = reply.now_s + horizon_s;
    wait[i] = detail::quality(curve, reply, never, 1.0, until_s, alpha);
    for (std::size_t b = 0; b < num_steps; ++b) {
      const double from_s = reply.now_s + reply.prefill_s + steps_s[b];
      const double end_s = from_s + (reply.left - 1.0) * steps_s[b];
      serve[b * n + i] = detail::quality(curve, reply, from_s, steps_s[b], std::min(end_s, until_s), alpha);
    }
  }
}

// QoE of n replies so far, [n]. Throws std::invalid_argument for a slot out of range.
inline void stand(const DigestCurve* curves, std::size_t capacity, const std::int64_t* slots,
                  const ReplyColumns& replies, std::size_t n, double alpha, double* current) {
  detail::check_slots(slots, n, capacity);
  constexpr double never = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    const ReplyOutlook reply = replies.at(i);
    current[i] = detail::quality(curves[slots[i]], reply, never, 1.0, reply.now_s, alpha);
  }
}

}  // namespace sloserve
