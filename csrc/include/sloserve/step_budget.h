// What the requests of a step can bear: decodes the length of the step, prompts the rate at which they are computed. No
// Python, no torch: plain arrays in, plain arrays out. The rules and their reasons: sloserve/lso/step_budget.py.
#pragma once

#include <algorithm>
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

namespace sloserve {

// Columns of the request table, by slot: targets, NaN where none is stated; seconds of one clock; tokens.
struct PromiseColumns {
  const double *arrival_s, *ttft_s, *tpot_s, *tds, *e2e_s, *first_token_s;
  const std::int64_t *output_tokens, *in_flight_tokens;

  double end_s(std::size_t slot) const { return arrival_s[slot] + e2e_s[slot]; }
  // Whether it states anything that long steps could break.
  bool promised(std::size_t slot) const { return !std::isnan(std::fmin(token_pace_s(tpot_s[slot], tds[slot]), end_s(slot))); }
};

// starts_s: when the step can begin. alone_s: of a step without prompts. headroom: share of the time that a request can bear
// which is planned for. spend_tokens: over which a lead is spent.
struct DecodeRules {
  double starts_s, alone_s, headroom, spend_tokens;
};

// Decodes that were promised a pace and are not late whatever is done, in order of the longest steps that they can bear until
// they end.
class Decoding {
 public:
  // left: [slots]; tokens to come, those in flight included. per_step: [slots]; tokens that a step is expected to bring.
  // Throws std::invalid_argument for tokens below 0 or above kMostCount.
  Decoding(const PromiseColumns& columns, const Slots& slots, const double* left, const double* per_step,
           const DecodeRules& rules)
      : alone_s_(rules.alone_s) {
    check_tokens({{"output_tokens", columns.output_tokens}, {"in_flight_tokens", columns.in_flight_tokens}}, slots);
    std::vector<detail::Sorted> order;
    std::vector<Decode> found;
    std::vector<double> unsorted;
    for (std::size_t i = 0; i < slots.size; ++i) {
      const std::size_t slot = slots[i];
      const double step_tokens = std::fmax(per_step[i], 1.0);
      const double in_flight = columns.in_flight_tokens[slot] > 0 ? step_tokens : 0.0;
      const double to_come = std::max(left[i] - in_flight, 1.0);
      const double pace = token_pace_s(columns.tpot_s[slot], columns.tds[slot]);
      const double known_s = columns.first_token_s[slot], first_s = std::isnan(known_s) ? rules.starts_s : known_s;
      const double before = static_cast<double>(columns.output_tokens[slot]) + in_flight - 1.0;
      // A lead over the pace is spent over the next tokens, a lag is made up over all that are still to come.
      const double lead_s = first_s + pace * before - rules.starts_s;
      const double by_pace = pace + lead_s / (lead_s > 0.0 ? std::min(to_come, rules.spend_tokens) : to_come);
      const double token_s = rules.headroom * std::fmin(by_pace, (columns.end_s(slot) - rules.starts_s) / to_come);
      const double bearable = token_s * step_tokens;
      if (!(bearable >= rules.alone_s)) continue;  // NaN too
      // A first token that came too late cannot be made good: the pace is kept where no other request pays for it.
      const bool counts = !(first_s - columns.arrival_s[slot] > columns.ttft_s[slot]);
      order.push_back({detail::sortable(bearable), static_cast<std::int64_t>(found.size())});
      found.push_back({to_come / step_tokens, to_come * token_s, columns.tds[slot] > 0.0, counts});
      unsorted.push_back(bearable);
      lost_already_ += !counts;
    }
    detail::sort_by_key(order);
    bearable_.reserve(order.size());
    decodes_.reserve(order.size());
    for (const auto& one : order) {
      bearable_.push_back(unsorted[static_cast<std::size_t>(one.index)]);
      decodes_.push_back(found[static_cast<std::size_t>(one.index)]);
    }
  }

  // [n]; the longest step that each can bear, in seconds, ascending.
  const std::vector<double>& bearable() const { return bearable_; }

  // How many of them cannot meet all their targets any more, whatever is done.
  std::int64_t lost_already() const { return lost_already_; }

  // How many of the others cannot keep their pace if steps with prompts take step_s. One that can bear less is not lost if the
  // prompts will be computed soon, since then the other steps are short; unless it has a reader, who feels a lag that is made
  // up later.
  //
  // rate: prompt tokens per second, in such steps; above 0. pending: prompt tokens to compute. arrival_rate: prompt tokens
  // that arrive, per second. Throws std::invalid_argument for a rate that is not above 0.
  std::int64_t lost(double step_s, double rate, double pending, double arrival_rate) const {
    if (!(rate > 0.0)) throw std::invalid_argument("rate: " + std::to_string(rate) + " is not above 0");
    const auto below = static_cast<std::size_t>(std::lower_bound(bearable_.begin(), bearable_.end(), step_s) - bearable_.begin());
    std::int64_t lost = 0;
    for (std::size_t i = 0; i < below; ++i) {
      const Decode& one = decodes_[i];
      const double with_prompts_s = std::min((pending + arrival_rate * one.time_s) / rate, one.time_s);
      const double steps = with_prompts_s / step_s + (one.time_s - with_prompts_s) / alone_s_;
      lost += ((steps < one.left) | one.reads) & one.counts;
    }
    return lost;
  }

 private:
  // left: steps until its tokens have come. time_s: in which they must come. counts: whether it can still meet all its targets.
  struct Decode {
    double left, time_s;
    bool reads, counts;
  };

  double alone_s_;
  std::vector<double> bearable_;
  std::vector<Decode> decodes_;
  std::int64_t lost_already_ = 0;
};

// Prompts of a step in order of service: those in progress, then the first that can start.
class StepPrompts {
 public:
  // in_progress: requests that run, whose prompts are not computed. waiting: in order of admission, as many as have a slot.
  // free_blocks: KV blocks, of which those in progress take what they still need.
  // Throws std::invalid_argument for a slot that is none, counts below 0 or above kMostCount, and prompts that attend to more
  // pairs than 64 bits count.
  StepPrompts(const ProgressColumns& progress, std::size_t capacity, const Slots& in_progress, const Slots& waiting,
              const KvLayout& layout, std::int64_t free_blocks) {
    check_within("free_blocks", free_blocks, -kMostCount, kMostCount);
    for (const Slots& slots : {in_progress, waiting}) {
      slots.check(capacity);
      progress.check(slots);
    }
    for (std::size_t i = 0; i < in_progress.size; ++i) {
      const std::size_t slot = in_progress[i];
      const std::int64_t held = layout.held(progress.computed[slot], 0);
      free_blocks -= std::max<std::int64_t>(layout.to_admit(progress.context(slot)) - held, 0);
      add(progress, slot);
    }
    for (; startable_ < waiting.size; ++startable_) {
      const std::size_t slot = waiting[startable_];
      free_blocks -= layout.to_admit(progress.context(slot));
      if (free_blocks < 0) break;
      // What the host pool keeps is loaded, not computed.
      if (progress.uncomputed(slot) > 0) add(progress, slot);
    }
  }

  // [n]; their slots.
  const std::vector<std::int64_t>& slots() const { return slots_; }
  // How many of those that wait can start, those that compute nothing included.
  std::size_t startable() const { return startable_; }
  // [n]; prompt tokens of a step that computes each and those before it.
  const std::vector<std::int64_t>& ends() const { return ends_; }
  // [n]; tokens computed of each.
  const std::vector<std::int64_t>& prefix() const { return prefix_; }

  struct Load {
    std::int64_t tokens, prompts, pairs;
  };

  // The step that computes so many prompt tokens, in order: its tokens, chunks, and twice the pairs attended.
  // Throws std::invalid_argument for tokens below 0.
  Load load(std::int64_t tokens) const {
    if (tokens < 0) throw std::invalid_argument("tokens: " + std::to_string(tokens) + " is negative; the least is 0");
    const auto whole = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), tokens) - ends_.begin());
    Load found{0, static_cast<std::int64_t>(whole), 0};
    if (whole) found = {ends_[whole - 1], found.prompts, pairs_[whole - 1]};
    const std::int64_t part = whole < ends_.size() ? tokens - found.tokens : 0;
    if (part) found = {found.tokens + part, found.prompts + 1, found.pairs + part * (part + 2 * prefix_[whole])};
    return found;
  }

  // As load(), where no chunk is longer than `longest`, and one that does not end its prompt ends at a multiple: what a chunk
  // leaves goes to the prompts after it. Throws std::invalid_argument for tokens below 0, and others that are not above 0.
  Load in_chunks(std::int64_t tokens, std::int64_t longest, std::int64_t multiple) const {
    check_within("tokens", tokens, 0, kMostCount);
    check_within("longest", longest, 1, kMostCount);
    check_within("multiple", multiple, 1, kMostCount);
    Load found{0, 0, 0};
    for (std::size_t i = 0; i < slots_.size() && found.tokens < tokens; ++i) {
      const std::int64_t left = ends_[i] - (i ? ends_[i - 1] : 0);
      std::int64_t chunk = std::min({left, longest, tokens - found.tokens});
      if (chunk < left) chunk = std::max<std::int64_t>((prefix_[i] + chunk) / multiple * multiple - prefix_[i], 0);
      found.tokens += chunk;
      found.prompts += chunk > 0;
      found.pairs += chunk * (chunk + 2 * prefix_[i]);
    }
    return found;
  }

  // Says when each must be computed. left: [n]; tokens of its reply to come. step_s: that each of them takes. starts_s: when
  // the step can begin. Throws std::invalid_argument for tokens below 0 or above kMostCount.
  void promise(const PromiseColumns& columns, const double* left, double step_s, double starts_s) {
    check_tokens({{"output_tokens", columns.output_tokens}}, {slots_.data(), slots_.size()});
    slack_s_.clear();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const auto slot = static_cast<std::size_t>(slots_[i]);
      const std::int64_t output = columns.output_tokens[slot];
      double due_s = columns.arrival_s[slot] + columns.ttft_s[slot];
      if (output > 0) {
        due_s = columns.first_token_s[slot] +
                token_pace_s(columns.tpot_s[slot], columns.tds[slot]) * static_cast<double>(output);
      }
      slack_s_.push_back(std::fmin(due_s, columns.end_s(slot) - left[i] * step_s) - starts_s);
    }
  }

  // [n]; after promise(): seconds from starts_s on in which each must be computed, NaN where nothing says when.
  const std::vector<double>& slack() const { return slack_s_; }

  // After promise(): how many come too late at `rate` prompt tokens per second that would be in time at full_rate.
  std::int64_t late(double rate, double full_rate) const {
    return count_late([&](double end) { return end / rate; }, [&](double end) { return end / full_rate; });
  }
  // As late, where a prompt token takes token_s and full_token_s seconds.
  std::int64_t late_by_token(double token_s, double full_token_s) const {
    return count_late([&](double end) { return end * token_s; }, [&](double end) { return end * full_token_s; });
  }

 private:
  void add(const ProgressColumns& progress, std::size_t slot) {
    const std::int64_t left = progress.uncomputed(slot), prefix = progress.computed[slot];
    const std::int64_t before = pairs_.empty() ? 0 : pairs_.back();
    if (static_cast<double>(before) + static_cast<double>(left) * static_cast<double>(left + 2 * prefix) > kMostPairs) {
      throw std::invalid_argument("prompt_tokens: " + std::to_string(left) + " after " + std::to_string(prefix) +
                                  " computed ones of slot " + std::to_string(slot) + ": more pairs than can be counted");
    }
    slots_.push_back(static_cast<std::int64_t>(slot));
    prefix_.push_back(prefix);
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + left);
    pairs_.push_back(before + left * (left + 2 * prefix));
  }

  template <typename Ready, typename FullReady>
  std::int64_t count_late(const Ready& ready_s, const FullReady& full_ready_s) const {
    std::int64_t late = 0;
    for (std::size_t i = 0; i < slack_s_.size(); ++i) {
      const double end = static_cast<double>(ends_[i]);
      late += full_ready_s(end) <= slack_s_[i] && ready_s(end) > slack_s_[i];
    }
    return late;
  }

  static constexpr double kMostPairs = 0x1p62;

  std::vector<std::int64_t> slots_, ends_, prefix_, pairs_;
  std::vector<double> slack_s_;
  std::size_t startable_ = 0;
};

}  // namespace sloserve
