// What of a copy is decided before a byte moves: the layout of a block, checked, and which blocks go where.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/kv_copy_index.h"

namespace sloserve {

// Ids of blocks are 32 bits wide in the arguments of a kernel.
inline constexpr std::int64_t kMostKvBlocks = std::numeric_limits<std::int32_t>::max();

// The regions of a KV cache of num_blocks blocks. A packed block holds the bytes of its regions, in their order.
class KvCopyLayout {
 public:
  // Throws std::invalid_argument for no regions, for blocks of a region that overlap, or an extent beyond 63 bits.
  KvCopyLayout(const std::vector<KvRegion>& regions, std::int64_t num_blocks) : num_blocks_(num_blocks) {
    check("num_blocks", num_blocks, 1, kMostKvBlocks);
    if (regions.empty()) throw std::invalid_argument("regions: there is none; a KV cache has one at least");
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const KvRegion& one = regions[i];
      const std::string name = "regions[" + std::to_string(i) + "]";
      if (one.base == 0) throw std::invalid_argument(name + ".base: 0 is no address");
      check((name + ".bytes").c_str(), one.bytes, 1, kMost / kMostKvBlocks);
      check((name + ".stride").c_str(), one.stride, num_blocks > 1 ? one.bytes : 0, kMost / kMostKvBlocks);
      check((name + ".base").c_str(), static_cast<std::int64_t>(one.base), 1, kMost - one.stride * num_blocks);
      placed_.push_back({one, block_bytes_});
      block_bytes_ += one.bytes;
      check("regions: bytes of a block", block_bytes_, 1, kMost / kMostKvBlocks);
      widest_ = std::max(widest_, one.bytes);
    }
  }

  const std::vector<KvPlacedRegion>& regions() const { return placed_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t block_bytes() const { return block_bytes_; }
  // The bytes of the largest region.
  std::int64_t widest() const { return widest_; }
  // Whether a block is one run of bytes.
  bool one_run() const { return placed_.size() == 1; }
  // Whether in addition neighbouring blocks touch, so that several go in one piece.
  bool dense() const { return one_run() && placed_[0].region.stride == block_bytes_; }

  static void check(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) {
      throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) + " is not within " +
                                  std::to_string(least) + " to " + std::to_string(most));
    }
  }

 private:
  std::vector<KvPlacedRegion> placed_;
  std::int64_t num_blocks_;
  std::int64_t block_bytes_ = 0;
  std::int64_t widest_ = 0;
};

struct KvPair {
  std::int64_t device;
  std::int64_t host;
};

namespace detail {

inline void check_ids(const char* name, const std::int64_t* ids, std::size_t n, std::int64_t blocks, const char* owner) {
  std::vector<std::int64_t> sorted(ids, ids + n);
  std::sort(sorted.begin(), sorted.end());
  if (n && (sorted.front() < 0 || sorted.back() >= blocks)) {
    const std::int64_t wrong = sorted.front() < 0 ? sorted.front() : sorted.back();
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(wrong) + " is not within 0 to " +
                                std::to_string(blocks - 1) + ", the blocks of the " + owner);
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(*twice) + " is there twice; a block is copied once");
  }
}

}  // namespace detail

// Device block device_ids[i] goes to or comes from host block host_ids[i]. By host block, ascending, so that what lies
// side by side on the host goes in one transfer.
//
// Throws std::invalid_argument for ids of different number, out of range or given twice.
inline std::vector<KvPair> kv_pairs(const std::int64_t* device_ids, std::size_t num_device, const std::int64_t* host_ids,
                                    std::size_t num_host, std::int64_t num_blocks, std::int64_t pool_blocks) {
  if (num_device != num_host) {
    throw std::invalid_argument("host_ids: " + std::to_string(num_host) + " for " + std::to_string(num_device) +
                                " device_ids; there must be one for each");
  }
  detail::check_ids("device_ids", device_ids, num_device, num_blocks, "KV cache");
  detail::check_ids("host_ids", host_ids, num_host, pool_blocks, "host pool");
  std::vector<KvPair> pairs(num_device);
  for (std::size_t i = 0; i < num_device; ++i) pairs[i] = {device_ids[i], host_ids[i]};
  std::sort(pairs.begin(), pairs.end(), [](const KvPair& a, const KvPair& b) { return a.host < b.host; });
  return pairs;
}

// How many of pairs[first..last) have neighbouring host blocks, and neighbouring device blocks too where `both`.
inline std::size_t kv_run_length(const std::vector<KvPair>& pairs, std::size_t first, std::size_t last, bool both) {
  std::size_t end = first + 1;
  while (end < last && pairs[end].host == pairs[end - 1].host + 1 &&
         (!both || pairs[end].device == pairs[end - 1].device + 1)) {
    ++end;
  }
  return end - first;
}

}  // namespace sloserve
