// Gathers blocks of a KV cache into staging memory, or scatters them back: what one lane of one warp does. The GPU runs it in
// all lanes at once; a host runs it lane by lane, for the tests.
#pragma once

#include <cstdint>
#include <cstring>

#include "sloserve/kv_copy_index.h"

namespace sloserve {

inline constexpr std::uint32_t kKvLanes = 32;
// What fits into the 4 KiB that a kernel's arguments may have, so that no upload of ids comes before a launch.
inline constexpr std::uint32_t kKvIdsPerLaunch = 960;

// staging: packed blocks, of which that at position i belongs to block ids[i] of the cache.
struct KvPackArgs {
  const KvPlacedRegion* regions;
  unsigned char* staging;
  std::int64_t block_bytes;
  std::uint32_t num_regions;
  std::uint32_t parts;  // of the widest region
  std::uint32_t num_ids;
  std::int32_t ids[kKvIdsPerLaunch];
};
static_assert(sizeof(KvPackArgs) <= 4096);

// Work items of a launch; below 2^32, see kv_blocks_per_launch.
SLOSERVE_HOST_DEVICE inline std::uint32_t kv_items(const KvPackArgs& args) { return args.num_ids * args.num_regions * args.parts; }

namespace detail {

struct alignas(16) KvUnit {
  std::uint32_t words[4];
};

SLOSERVE_HOST_DEVICE inline KvUnit load_unit(std::uint64_t from) {
  KvUnit unit;
#ifdef __CUDA_ARCH__
  // Read once: not kept in the caches, which the running model needs.
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
  unit = {{words.x, words.y, words.z, words.w}};
#else
  std::memcpy(&unit, __builtin_assume_aligned(reinterpret_cast<const void*>(from), kKvUnitBytes), sizeof(unit));
#endif
  return unit;
}

SLOSERVE_HOST_DEVICE inline void store_unit(std::uint64_t to, const KvUnit& unit) {
#ifdef __CUDA_ARCH__
  __stwb(reinterpret_cast<uint4*>(to), make_uint4(unit.words[0], unit.words[1], unit.words[2], unit.words[3]));
#else
  std::memcpy(__builtin_assume_aligned(reinterpret_cast<void*>(to), kKvUnitBytes), &unit, sizeof(unit));
#endif
}

// This lane's units and bytes of a part.
SLOSERVE_HOST_DEVICE inline void copy_part(std::uint64_t to, std::uint64_t from, std::int64_t bytes, std::uint32_t lane) {
  constexpr int kPerLane = static_cast<int>(kKvPartBytes / kKvUnitBytes / kKvLanes);
  const std::int64_t units = kv_units(to, from, bytes);
  const std::uint64_t first = lane * static_cast<std::uint64_t>(kKvUnitBytes);
  constexpr std::uint64_t kRow = kKvLanes * static_cast<std::uint64_t>(kKvUnitBytes);
  if (units * kKvUnitBytes == kKvPartBytes) {
    // All loads are under way before the first store waits for one.
    KvUnit held[kPerLane];
    SLOSERVE_UNROLL
    for (int i = 0; i < kPerLane; ++i) held[i] = load_unit(from + first + static_cast<std::uint64_t>(i) * kRow);
    SLOSERVE_UNROLL
    for (int i = 0; i < kPerLane; ++i) store_unit(to + first + static_cast<std::uint64_t>(i) * kRow, held[i]);
    return;
  }
  for (std::int64_t i = lane; i < units; i += kKvLanes) {
    const auto at = static_cast<std::uint64_t>(i * kKvUnitBytes);
    store_unit(to + at, load_unit(from + at));
  }
  for (std::int64_t i = units * kKvUnitBytes + lane; i < bytes; i += kKvLanes) {
    *reinterpret_cast<unsigned char*>(to + static_cast<std::uint64_t>(i)) =
        *reinterpret_cast<const unsigned char*>(from + static_cast<std::uint64_t>(i));
  }
}

}  // namespace detail

// What lane `lane` of warp `warp`, of `warps` in the launch, copies.
template <bool kToStaging>
SLOSERVE_HOST_DEVICE inline void kv_pack_lane(const KvPackArgs& args, std::uint32_t warp, std::uint32_t warps,
                                              std::uint32_t lane) {
  const std::uint32_t items = kv_items(args);
  for (std::uint64_t item = warp; item < items; item += warps) {
    const KvWork work = kv_work(static_cast<std::uint32_t>(item), args.num_regions, args.parts);
    const KvRun run = kv_part(kv_run(args.regions[work.region], args.ids[work.position], work.position, args.block_bytes), work.part);
    const std::uint64_t packed = reinterpret_cast<std::uint64_t>(args.staging) + static_cast<std::uint64_t>(run.packed);
    if (kToStaging) {
      detail::copy_part(packed, run.cache, run.bytes, lane);
    } else {
      detail::copy_part(run.cache, packed, run.bytes, lane);
    }
  }
}

}  // namespace sloserve
