// KVC pipelining of EconoServe (Sec. 3.2): a request lends the second half of its allocated KV span to one that will have
// finished before the first half is full. No Python, no torch.
//
// A span of S blocks is lent as its halves: blocks S/2 to S to one guest, S/4 to S/2 to another, and so on; a guest lends of
// the span lent to it likewise. A guest of l tokens to come needs l + b <= the tokens in its span, and l + b <= the steps
// until its host's first half is full. With blocks of one token and guests that start with their host this is the paper's
// l <= L/2 - b, L/4 - b, ... for a host of L tokens.
//
// Where the text leaves it open: (1) it asks for 2 guests of L/2, 4 of L/4 and so on for each host, of which two do not fit
// beside their host: here 1, 2, 4, as in its Fig. 7. (2) What a guest lends is halved from the span it got, as in "L/4 - b",
// not from its own length. (3) Only the tokens to come are lent; what a request holds already (its prompt) is its own. (4) A
// span is lent in the step in which its owner starts, or not at all. (5) Guests and hosts of one size are mapped in order,
// not at random. (6) A host that ends early leaves its guests the spans they have. (7) Halves are whole blocks, the smaller
// one lent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sloserve/kv_reservation.h"

namespace sloserve {

// tokens: in the KV cache. grow_steps: tokens to come, with padding. buffer: b, in tokens.
struct KvCandidate {
  std::int64_t id;
  std::int64_t tokens;
  std::int64_t grow_steps;
  std::int64_t buffer;
};

struct KvHosted {
  std::int64_t candidate;  // its index
  std::int64_t host;       // the id of the request in whose span it grows
};

class KvHosting {
 public:
  KvHosting(std::int64_t capacity_blocks, std::int64_t block_size, std::int64_t now)
      : capacity_(capacity_blocks), block_size_(block_size), now_(now) {
    check_within("capacity_blocks", capacity_blocks, 1, std::numeric_limits<std::int32_t>::max());
    check_within("block_size", block_size, 1, kMostTokens);
    check_within("now", now, 0, kForever / 2);
  }

  // Exact allocation: blocks of its own for what the request holds and for all that is to come; 0 to come for one that waits
  // with its KV. It replaces what the request had. False, and nothing changes, where it would take more than is free beside
  // reserve_blocks.
  bool allocate(const KvCandidate& request, std::int64_t reserve_blocks) {
    check(request, 0, reserve_blocks);
    const std::int64_t base = blocks(request.tokens);
    const std::int64_t span = blocks(request.tokens + request.grow_steps) - base;
    return settle(request, {span, 0, 0, 0}, base + span, reserve_blocks);
  }

  // Guests for the spans of those that started in this step, from the largest span down: for each the longest candidate that
  // fits, the first of equals. Their own spans are lent in their turn. What a candidate holds is its own, or is taken of what
  // is free beside reserve_blocks.
  std::vector<KvHosted> host(const std::vector<KvCandidate>& candidates, std::int64_t reserve_blocks) {
    for (const KvCandidate& candidate : candidates) {
      check(candidate, 1, reserve_blocks);
      const auto known = entries_.find(candidate.id);
      if (known != entries_.end() && known->second.grows) {
        throw std::invalid_argument("id: " + std::to_string(candidate.id) +
                                    " grows already; allocate it with 0 grow_steps before it is hosted");
      }
    }
    Longest queue(candidates);
    std::vector<KvHosted> hosted;
    std::vector<Span> kept;
    while (!open_.empty()) {
      const Span span = open_.top();
      open_.pop();
      const auto host = entries_.find(span.host);
      if (host == entries_.end() || host->second.serial != span.serial) continue;
      const std::int64_t most = std::min(span.blocks * block_size_, reached(host->second, span.offset) - now_);
      for (;;) {
        const std::int64_t index = queue.take(most);
        if (index < 0) {
          kept.push_back(span);
          break;
        }
        // One whose own blocks find no room here finds none for another span either: it is left out.
        const KvCandidate& candidate = candidates[static_cast<std::size_t>(index)];
        if (contains(candidate.id) && entries_.at(candidate.id).grows) continue;  // named twice
        if (!settle(candidate, span, blocks(candidate.tokens), reserve_blocks)) continue;
        hosted.push_back({index, span.host});
        break;
      }
    }
    for (const Span& span : kept) open_.push(span);
    return hosted;
  }

  // Ended, preempted or moved away: what it held is free at once, but for what its guests grow in.
  void remove(std::int64_t id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) throw std::invalid_argument("id: " + std::to_string(id) + " is not known");
    reserved_ -= freed_by_removal(id);
    const Entry entry = std::move(found->second);
    entries_.erase(found);
    for (const std::int64_t guest : entry.guests) {
      Entry& moved = entries_.at(guest);
      moved.hosted = entry.hosted;
      moved.host = entry.host;
      moved.offset += entry.offset;
    }
    if (!entry.hosted) return;
    auto& guests = entries_.at(entry.host).guests;
    guests.erase(std::find(guests.begin(), guests.end(), id));
    guests.insert(guests.end(), entry.guests.begin(), entry.guests.end());
  }

  // The steps before this one have run. Spans that were not lent are no longer offered.
  void advance(std::int64_t step) {
    check_within("step", step, now_, kForever / 2);
    if (step != now_) open_ = {};
    now_ = step;
  }

  // Growing requests that at a step due, at most within_steps ahead, if they go on, need a block that is not theirs or that
  // their host needs; by (due, id). O(live log live).
  std::vector<KvOverrun> overrunners(std::int64_t within_steps) const {
    check_within("within_steps", within_steps, 0, kMostTokens);
    std::vector<KvOverrun> found;
    for (const auto& [id, entry] : entries_) {
      if (!entry.grows) continue;
      const std::int64_t due = std::min(full(entry, entry.span), returned(entry));
      if (due <= now_ + within_steps) found.push_back({id, due});
    }
    std::sort(found.begin(), found.end(),
              [](const KvOverrun& a, const KvOverrun& b) { return a.due != b.due ? a.due < b.due : a.id < b.id; });
    return found;
  }

  std::int64_t free_blocks() const { return capacity_ - reserved_; }
  std::int64_t now() const { return now_; }
  std::size_t live() const { return entries_.size(); }
  bool contains(std::int64_t id) const { return entries_.count(id) != 0; }

 private:
  struct Entry {
    std::int64_t tokens;  // when it started
    std::int64_t start;   // the step of its first further token
    std::int64_t base;    // blocks of its tokens
    std::int64_t span;    // blocks in which it grows, lent ones included
    std::int64_t host;    // in whose span this lies, if hosted
    std::int64_t offset;  // where in it
    std::int64_t serial;  // of the allocation
    bool grows;
    bool hosted;
    std::vector<std::int64_t> guests;
  };

  // Blocks [offset, offset + blocks) of the host's span. A serial of 0 stands for no host.
  struct Span {
    std::int64_t blocks;
    std::int64_t host;
    std::int64_t serial;
    std::int64_t offset;
    bool operator<(const Span& other) const {  // a heap has the greatest on top: largest, then of the first host
      if (blocks != other.blocks) return blocks < other.blocks;
      return serial != other.serial ? serial > other.serial : offset > other.offset;
    }
  };

  // Candidates by length with buffer; the longest up to a limit is found in O(log n), also when many have been taken.
  class Longest {
   public:
    explicit Longest(const std::vector<KvCandidate>& candidates) : left_(candidates.size() + 1) {
      for (const KvCandidate& one : candidates) {
        order_.emplace_back(one.grow_steps + one.buffer, -static_cast<std::int64_t>(order_.size()));
      }
      std::sort(order_.begin(), order_.end());
      std::iota(left_.begin(), left_.end(), std::size_t{0});
    }

    // The index of the first of the longest, -1 if none is short enough.
    std::int64_t take(std::int64_t most) {
      const auto beyond = std::upper_bound(order_.begin(), order_.end(), std::pair(most, std::int64_t{0}));
      auto at = static_cast<std::size_t>(beyond - order_.begin());
      while (left_[at] != at) at = left_[at] = left_[left_[at]];
      if (at == 0) return -1;
      left_[at] = at - 1;
      return -order_[at - 1].second;
    }

   private:
    std::vector<std::pair<std::int64_t, std::int64_t>> order_;  // length, -index
    std::vector<std::size_t> left_;  // of the first i, those up to left_[i] may be left: a union-find that only shrinks
  };

  std::int64_t blocks(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  void check(const KvCandidate& one, std::int64_t least_steps, std::int64_t reserve_blocks) const {
    check_within("tokens", one.tokens, 0, kMostTokens);
    check_within("grow_steps", one.grow_steps, least_steps, kMostTokens);
    check_within("buffer_tokens", one.buffer, 0, kMostTokens);
    check_within("reserve_blocks", reserve_blocks, 0, capacity_);
  }

  // The step at which its growth has filled this many blocks of its span and goes on into the next.
  std::int64_t full(const Entry& entry, std::int64_t filled) const {
    return entry.start + (entry.base + filled) * block_size_ - entry.tokens;
  }

  // The step at which the entry, or a host of it, needs the block at this offset of its span.
  std::int64_t reached(const Entry& entry, std::int64_t offset) const {
    return std::min(full(entry, offset), returned(entry) + offset * block_size_);
  }

  // The step at which its host needs the first block of its span.
  std::int64_t returned(const Entry& entry) const {
    return entry.hosted ? reached(entries_.at(entry.host), entry.offset) : kForever / 2;
  }

  // Blocks that remove() gives back: guests keep their spans, and what lies in a host's span stays the host's.
  std::int64_t freed_by_removal(std::int64_t id) const {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return 0;
    const Entry& entry = found->second;
    std::int64_t freed = entry.base;
    if (entry.hosted) return freed;
    freed += entry.span;
    for (const std::int64_t guest : entry.guests) freed -= entries_.at(guest).span;
    return freed;
  }

  // Gives the request `cost` blocks of its own, and the span to grow in, if there is room; halves of the span are offered.
  bool settle(const KvCandidate& request, const Span& span, std::int64_t cost, std::int64_t reserve_blocks) {
    const std::int64_t more = cost - freed_by_removal(request.id);
    if (more > 0 && more > free_blocks() - reserve_blocks) return false;
    if (contains(request.id)) remove(request.id);
    const bool hosted = span.serial != 0;
    if (hosted) entries_.at(span.host).guests.push_back(request.id);
    entries_.emplace(request.id, Entry{request.tokens, now_, blocks(request.tokens), span.blocks, span.host, span.offset,
                                       ++serial_, request.grow_steps > 0, hosted, {}});
    reserved_ += cost;
    for (std::int64_t left = span.blocks; left > 1; left -= left / 2) {
      open_.push({left / 2, request.id, serial_, left - left / 2});
    }
    return true;
  }

  std::int64_t capacity_;
  std::int64_t block_size_;
  std::int64_t now_;
  std::int64_t reserved_ = 0;
  std::int64_t serial_ = 0;
  std::unordered_map<std::int64_t, Entry> entries_;
  std::priority_queue<Span> open_;
};

}  // namespace sloserve
