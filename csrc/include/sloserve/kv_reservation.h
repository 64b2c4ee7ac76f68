// How many KV blocks the live requests will hold at each future engine step, and what may still be admitted. No Python, no
// torch: integers in, integers out.
//
// A request holds its tokens for some steps (prefill, a pause), then takes one token a step until its predicted end, and
// holds nothing from there on. A step is counted as it is while it runs: with its tokens allocated, and none of what ends
// with it freed.
//
// The sum is kept as one number for each future step. A change or a question costs the future steps of the one request, in
// sequence and several at a time, whatever the number n of live ones; and O(log n) for the order of their ends. Trees do not
// do better: blocks rise at steps of each request's own phase, so with lazy additions there is one range addition for every
// block, 2 log2(steps) node visits where the array has block_size additions in a row; and with slopes, a maximum under
// additions of linear functions takes a convex hull in each node, for each phase.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sloserve/kv_future.h"

namespace sloserve {

// The most tokens and steps of one request: more than any context has, and the array of steps stays below 256 MiB.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

// tokens: in the KV cache, or taken at once (a whole prompt, however it is chunked). They are held for hold_steps, kForever
// for a pause of unknown length; then grow_steps follow with one token more each.
struct KvProfile {
  std::int64_t tokens;
  std::int64_t hold_steps;
  std::int64_t grow_steps;
};

struct KvOverrun {
  std::int64_t id;
  std::int64_t due;
};

class KvReservation {
 public:
  KvReservation(std::int64_t capacity_blocks, std::int64_t block_size, std::int64_t now)
      : capacity_(capacity_blocks), block_size_(block_size), future_(now) {
    check_within("capacity_blocks", capacity_blocks, 1, std::numeric_limits<std::int32_t>::max());
    check_within("block_size", block_size, 1, kMostTokens);
    check_within("now", now, 0, kForever / 2);
  }

  // States what a request holds and will hold from this step on, in place of what was stated before. Facts are not refused:
  // first_over() tells what they lead to.
  void put(std::int64_t id, const KvProfile& profile) {
    const Entry entry = entry_of(profile);
    const auto found = entries_.find(id);
    const std::int64_t sum = sum_ + entry.most - (found == entries_.end() ? 0 : found->second.most);
    if (sum > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("tokens: the requests would hold " + std::to_string(sum) +
                                  " blocks together; the most that can be counted is 2147483647");
    }
    if (found != entries_.end()) take_out(found);
    entries_.emplace(id, entry);
    if (entry.end != kForever) ends_.emplace(entry.end, id);
    sum_ += entry.most;
    count(entry, 1);
  }

  // Whether at no future step more than capacity - reserve_blocks would be held after put(). What the request itself was
  // stated to hold before does not count against it.
  bool fits(std::int64_t id, const KvProfile& profile, std::int64_t reserve_blocks) {
    return clash(id, entry_of(profile), limit(reserve_blocks)) == kForever;
  }

  // put(), if it fits; else all stays as it was.
  bool admit(std::int64_t id, const KvProfile& profile, std::int64_t reserve_blocks) {
    if (!fits(id, profile, reserve_blocks)) return false;
    put(id, profile);
    return true;
  }

  // The most grow_steps, up to the profile's, with which it fits; 0 also where not even what it holds does.
  std::int64_t grantable(std::int64_t id, const KvProfile& profile, std::int64_t reserve_blocks) {
    const Entry entry = entry_of(profile);
    const std::int64_t step = clash(id, entry, limit(reserve_blocks));
    return std::clamp<std::int64_t>(step - entry.grow_from, 0, profile.grow_steps);
  }

  // Ended, preempted or moved away: what it held is free at once.
  void remove(std::int64_t id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) throw std::invalid_argument("id: " + std::to_string(id) + " is not known");
    take_out(found);
  }

  // The steps before this one have run. What was to end and was not removed has overrun: it is counted with what it held
  // last until it is removed or put anew.
  void advance(std::int64_t step) {
    check_within("step", step, now(), kForever / 2);
    auto end = ends_.lower_bound({now() + 1, std::numeric_limits<std::int64_t>::min()});
    for (; end != ends_.end() && end->first <= step; ++end) held_ += entries_.at(end->second).most;
    future_.advance(step);
  }

  // Requests whose predicted end has come, or comes in within_steps, by (end, id). due: the first step at which it would take
  // a block that is not counted, if it goes on; not before its end.
  std::vector<KvOverrun> overrunners(std::int64_t within_steps) const {
    check_within("within_steps", within_steps, 0, kMostTokens);
    std::vector<KvOverrun> found;
    for (const auto& [end, id] : ends_) {
      if (end > now() + within_steps) break;
      const Entry& entry = entries_.at(id);
      found.push_back({id, end + entry.most * block_size_ - (entry.tokens + end - entry.grow_from)});
    }
    return found;
  }

  // The earliest step at which more than capacity - reserve_blocks would be held.
  std::optional<std::int64_t> first_over(std::int64_t reserve_blocks) const {
    const std::int64_t room = limit(reserve_blocks) - held_;
    if (room < 0) return now();
    const std::int64_t step = future_.first_above(now(), future_.end(), room);
    return step == kForever ? std::nullopt : std::optional(step);
  }

  std::int64_t occupied(std::int64_t step) const {
    check_within("step", step, now(), kForever);
    return held_ + future_.at(step);
  }

  std::int64_t now() const { return future_.now(); }
  std::int64_t capacity() const { return capacity_; }
  std::size_t live() const { return entries_.size(); }
  bool contains(std::int64_t id) const { return entries_.count(id) != 0; }
  // Future steps read or written since the beginning: what changes and queries have cost.
  std::int64_t visited() const { return future_.visited(); }

 private:
  struct Entry {
    std::int64_t tokens;
    std::int64_t grow_from;  // the first step that takes a further token
    std::int64_t end;        // the first step that holds nothing, kForever if none
    std::int64_t most;       // blocks in the last step
  };

  std::int64_t blocks(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  std::int64_t limit(std::int64_t reserve_blocks) const {
    check_within("reserve_blocks", reserve_blocks, 0, capacity_);
    return capacity_ - reserve_blocks;
  }

  Entry entry_of(const KvProfile& profile) const {
    check_within("tokens", profile.tokens, 0, kMostTokens);
    check_within("grow_steps", profile.grow_steps, 0, kMostTokens);
    if (profile.hold_steps == kForever) return {profile.tokens, kForever, kForever, blocks(profile.tokens)};
    check_within("hold_steps", profile.hold_steps, 0, kMostTokens);
    const std::int64_t grow_from = now() + profile.hold_steps;
    return {profile.tokens, grow_from, grow_from + profile.grow_steps, blocks(profile.tokens + profile.grow_steps)};
  }

  // Calls visit(begin, end, blocks) for each run of steps with as many blocks, from now to `until`, while it returns true.
  template <typename Visit>
  void for_runs(const Entry& entry, std::int64_t until, Visit visit) const {
    const std::int64_t growth = std::min(until, entry.grow_from);
    if (now() < growth && !visit(now(), growth, blocks(entry.tokens))) return;
    for (std::int64_t step = std::max(now(), entry.grow_from); step < until;) {
      const std::int64_t held = blocks(entry.tokens + step - entry.grow_from + 1);
      const std::int64_t next = std::min(until, entry.grow_from + held * block_size_ - entry.tokens);
      if (!visit(step, next, held)) return;
      step = next;
    }
  }

  // No end is predicted, or it has passed: counted at all steps alike.
  bool constant(const Entry& entry) const { return entry.end == kForever || entry.end <= now(); }

  void count(const Entry& entry, std::int64_t sign) {
    if (constant(entry)) {
      held_ += sign * entry.most;
      return;
    }
    future_.extend(entry.end);
    for_runs(entry, entry.end, [&](std::int64_t begin, std::int64_t end, std::int64_t held) {
      future_.add(begin, end, sign * held);
      return true;
    });
  }

  void take_out(std::unordered_map<std::int64_t, Entry>::iterator found) {
    const auto [id, entry] = *found;
    entries_.erase(found);
    if (entry.end != kForever) ends_.erase({entry.end, id});
    sum_ -= entry.most;
    count(entry, -1);
  }

  // The first step at which the entry, in place of what its id was stated to hold, would exceed `most`; kForever if none.
  std::int64_t clash(std::int64_t id, Entry entry, std::int64_t most) {
    // What ends at once is counted until it is removed.
    if (constant(entry)) entry.grow_from = entry.end = kForever;
    const auto known = entries_.find(id);
    if (known != entries_.end()) count(known->second, -1);
    const std::int64_t room = most - held_;
    const std::int64_t horizon = future_.end();
    std::int64_t step = kForever;
    for_runs(entry, std::min(entry.end, horizon), [&](std::int64_t begin, std::int64_t end, std::int64_t held) {
      step = future_.first_above(begin, end, room - held);
      return step == kForever;
    });
    if (step == kForever && horizon < entry.end) {  // beyond the horizon the others stay as they are
      const std::int64_t tokens = room * block_size_ - entry.tokens;
      const std::int64_t full = tokens < 0 ? horizon : std::max(horizon, entry.grow_from + tokens);
      if (full < entry.end) step = full;
    }
    if (known != entries_.end()) count(known->second, 1);
    return step;
  }

  std::int64_t capacity_;
  std::int64_t block_size_;
  detail::FutureSteps future_;  // blocks of the requests whose end is predicted and has not come
  std::int64_t held_ = 0;       // blocks of the others
  std::int64_t sum_ = 0;        // the most of each, added up, so that no count can overflow
  std::unordered_map<std::int64_t, Entry> entries_;
  std::set<std::pair<std::int64_t, std::int64_t>> ends_;  // (end, id) of all that have one
};

}  // namespace sloserve
