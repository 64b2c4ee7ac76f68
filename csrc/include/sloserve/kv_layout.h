// How many blocks of the one KV cache a request takes, over all groups of its layers. No Python, no torch. The rules are
// vLLM's (v1/core/single_type_kv_cache_manager.py): sloserve/core/kernels/kv_layout.py says what each kind of layer keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sloserve/request_columns.h"

namespace sloserve {

// `count` KV cache groups that are counted alike. Fields as in sloserve/core/kernels/kv_layout.py; 0 where a rule does not hold.
struct KvGroups {
  std::int64_t count, block_size, window_tokens, chunk_tokens, states, checkpoints, spare_blocks, most_blocks, copied_blocks;
};

class KvLayout {
 public:
  // Throws std::invalid_argument without groups, for one that follows two rules, and for counts below 0 or above kMostCount.
  KvLayout(std::vector<KvGroups> groups, std::int64_t lookahead_tokens, std::int64_t max_model_len)
      : groups_(std::move(groups)), lookahead_(lookahead_tokens), max_model_len_(max_model_len) {
    if (groups_.empty()) throw std::invalid_argument("groups: there must be one at least");
    check_within("lookahead_tokens", lookahead_, 0, kMostLookahead);
    check_within("max_model_len", max_model_len_, 1, kMostCount);
    for (const KvGroups& g : groups_) {
      check_within("num_groups", g.count, 1, kMostGroups);
      check_within("block_size", g.block_size, 1, kMostCount);
      check_within("window_tokens", g.window_tokens, 0, kMostCount);
      check_within("chunk_tokens", g.chunk_tokens, 0, kMostCount);
      check_within("states", g.states, 0, kMostGroups);
      check_within("checkpoints", g.checkpoints, 0, 1);
      check_within("spare_blocks", g.spare_blocks, 0, kMostGroups);
      check_within("most_blocks", g.most_blocks, 0, kMostCount);
      check_within("copied_blocks", g.copied_blocks, 0, 1);
      if ((g.window_tokens > 0) + (g.chunk_tokens > 0) + (g.states > 0) > 1) {
        throw std::invalid_argument("groups: a window, chunks and states exclude one another");
      }
      count_ += g.count;
    }
    check_within("groups", count_, 1, kMostGroups);
    const KvGroups& g = groups_[0];
    const bool keeps_all = !(g.window_tokens | g.chunk_tokens | g.states | g.spare_blocks | g.most_blocks | g.copied_blocks);
    if (count_ == 1 && keeps_all && lookahead_ == 0) full_size_ = g.block_size;
  }

  // Blocks held once `computed` tokens have a slot, of which `in_flight` are not settled: what settled tokens no longer need
  // is given back. Exact but for states, where it is an upper bound while a prompt is computed.
  std::int64_t held(std::int64_t computed, std::int64_t in_flight) const {
    if (computed <= 0) return 0;
    if (full_size_) return blocks_of(computed, full_size_);
    const std::int64_t settled = std::max<std::int64_t>(computed - in_flight, 0);
    std::int64_t blocks = 0;
    for (const KvGroups& g : groups_) blocks += g.count * held_by(g, computed, settled);
    return blocks;
  }

  // Blocks that a step takes which computes `tokens` more after `computed`; what it gives back before is not counted.
  std::int64_t growth(std::int64_t computed, std::int64_t tokens) const {
    if (tokens <= 0) return 0;
    if (full_size_) return blocks_of(computed + tokens, full_size_) - blocks_of(computed, full_size_);
    std::int64_t blocks = 0;
    for (const KvGroups& g : groups_) blocks += g.count * growth_of(g, computed, tokens);
    return blocks;
  }

  // Most blocks that `requests` take in a step of so many tokens.
  std::int64_t most_growth(std::int64_t tokens, std::int64_t requests) const {
    std::int64_t blocks = 0;
    for (const KvGroups& g : groups_) {
      const std::int64_t each = 1 + blocks_of(lookahead_, g.block_size) + g.spare_blocks + g.checkpoints;
      blocks += g.count * (tokens / g.block_size + requests * each);
    }
    return blocks;
  }

  // Blocks that must be free for a request of so many tokens before its first step, if the prefix cache has none of them.
  std::int64_t to_admit(std::int64_t tokens) const {
    if (full_size_) return blocks_of(std::max<std::int64_t>(tokens, 0), full_size_);
    std::int64_t blocks = 0;
    for (const KvGroups& g : groups_) {
      std::int64_t most = blocks_of(std::max<std::int64_t>(tokens, 0), g.block_size) + g.spare_blocks;
      if (g.states) most = std::min(most, 1 + g.spare_blocks + g.checkpoints);
      if (g.most_blocks) most = std::min(most, g.most_blocks);
      blocks += g.count * (most + g.copied_blocks);
    }
    return blocks;
  }

  // Blocks that so many tokens fill, not rounded up: of what decodes, on average over where it stands in window and chunk.
  double filled(double tokens) const {
    if (full_size_) return tokens / static_cast<double>(full_size_);
    double blocks = 0.0;
    for (const KvGroups& g : groups_) blocks += static_cast<double>(g.count) * filled_by(g, tokens);
    return blocks;
  }

  // Tokens of a block, where all that there is is one group of full attention; else 0. mean() is then tokens / size + 0.5.
  double full_size() const { return static_cast<double>(full_size_); }

  // filled(), and the empty half of each group's last block.
  double mean(double tokens) const { return filled(tokens) + 0.5 * static_cast<double>(count_); }

 private:
  static constexpr std::int64_t kMostGroups = std::int64_t{1} << 16, kMostLookahead = std::int64_t{1} << 16;

  // Blocks of so many tokens, if all were kept.
  std::int64_t up_to(const KvGroups& g, std::int64_t tokens) const {
    // Of states vLLM counts no lookahead: it would break the alignment of blocks and chunks.
    const std::int64_t slots = g.states ? tokens : std::max(tokens, std::min(tokens + lookahead_, max_model_len_));
    return blocks_of(slots, g.block_size) + g.spare_blocks;
  }

  static std::int64_t skipped(const KvGroups& g, std::int64_t settled) {
    if (g.window_tokens) return std::max<std::int64_t>(settled - g.window_tokens + 1, 0) / g.block_size;
    if (g.chunk_tokens) return settled / g.chunk_tokens * g.chunk_tokens / g.block_size;
    return 0;
  }

  std::int64_t held_by(const KvGroups& g, std::int64_t computed, std::int64_t settled) const {
    if (!g.states) return up_to(g, computed) - std::min(skipped(g, settled), up_to(g, computed));
    // The states inside and at the ends of the chunks in flight, and the last settled one.
    const std::int64_t spanned = (computed - 1) / g.block_size - std::max<std::int64_t>(settled - 1, 0) / g.block_size + 1;
    return g.spare_blocks + std::min(spanned, g.states * (1 + g.checkpoints) + (settled > 0));
  }

  std::int64_t growth_of(const KvGroups& g, std::int64_t computed, std::int64_t tokens) const {
    if (computed <= 0) return g.states ? 1 + g.spare_blocks + g.checkpoints : up_to(g, tokens);
    if (!g.states) return up_to(g, computed + tokens) - up_to(g, computed);
    return std::min((computed + tokens - 1) / g.block_size - (computed - 1) / g.block_size, 1 + g.checkpoints);
  }

  static double filled_by(const KvGroups& g, double tokens) {
    const double size = static_cast<double>(g.block_size), spare = static_cast<double>(g.spare_blocks);
    // One block, of which the other half is counted as empty.
    if (g.states || g.window_tokens == kStateWindow) return 0.5 + spare;
    const double all = tokens / size + spare;
    if (g.window_tokens) return std::min(all, static_cast<double>(g.window_tokens - 1) / size + 0.5);
    if (g.chunk_tokens) return std::min(all, static_cast<double>(g.chunk_tokens) / 2.0 / size);
    return all;
  }

  // Of a Mamba state that needs the last token alone.
  static constexpr std::int64_t kStateWindow = 2;

  std::vector<KvGroups> groups_;
  std::int64_t lookahead_, max_model_len_;
  std::int64_t count_ = 0;      // groups in all
  std::int64_t full_size_ = 0;  // of a block, where all that there is is one group of full attention: the way to be quick
};

}  // namespace sloserve
