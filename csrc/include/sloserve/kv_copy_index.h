// Which bytes of a KV cache belong to a block, and where they lie in the block's copy on the host. Bytes only: no torch, no
// CUDA headers. The CPU's copy and the GPU's kernels compile these lines alike.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SLOSERVE_HOST_DEVICE __host__ __device__
#else
#define SLOSERVE_HOST_DEVICE
#endif
#ifdef __CUDA_ARCH__
#define SLOSERVE_UNROLL _Pragma("unroll")
#else
#define SLOSERVE_UNROLL
#endif

namespace sloserve {

// One run of bytes of every block: that of block b begins at base + b * stride.
struct KvRegion {
  std::uint64_t base;
  std::int64_t stride;
  std::int64_t bytes;
};

// offset: where the region's bytes begin within a packed block, in which the runs of all regions follow each other.
struct KvPlacedRegion {
  KvRegion region;
  std::int64_t offset;
};

// cache: an address. packed: an offset into packed blocks.
struct KvRun {
  std::uint64_t cache;
  std::int64_t packed;
  std::int64_t bytes;
};

// What one warp copies at a time: eight units of 16 bytes a lane.
inline constexpr std::int64_t kKvUnitBytes = 16;
inline constexpr std::int64_t kKvPartBytes = 32 * 8 * kKvUnitBytes;

SLOSERVE_HOST_DEVICE inline KvRun kv_run(const KvPlacedRegion& placed, std::int64_t block, std::int64_t packed_block,
                                         std::int64_t block_bytes) {
  return {placed.region.base + static_cast<std::uint64_t>(block) * static_cast<std::uint64_t>(placed.region.stride),
          packed_block * block_bytes + placed.offset, placed.region.bytes};
}

SLOSERVE_HOST_DEVICE inline std::int64_t kv_parts(std::int64_t bytes) { return (bytes + kKvPartBytes - 1) / kKvPartBytes; }

// Part number `part` of a run; of no bytes beyond its end.
SLOSERVE_HOST_DEVICE inline KvRun kv_part(const KvRun& run, std::int64_t part) {
  const std::int64_t begin = part * kKvPartBytes;
  const std::int64_t left = run.bytes - begin;
  return {run.cache + static_cast<std::uint64_t>(begin), run.packed + begin,
          left < 0 ? 0 : (left < kKvPartBytes ? left : kKvPartBytes)};
}

// Work item number `item` of a launch that gives each region of each block `parts` parts, block by block. 32 bits, in which a
// GPU divides in a third of the time.
struct KvWork {
  std::uint32_t position;
  std::uint32_t region;
  std::uint32_t part;
};

SLOSERVE_HOST_DEVICE inline KvWork kv_work(std::uint32_t item, std::uint32_t num_regions, std::uint32_t parts) {
  const std::uint32_t row = item / parts;
  return {row / num_regions, row % num_regions, item % parts};
}

// How many units of 16 bytes go whole from one address to another; the remainder goes byte by byte, and so does everything
// where one of the two is not aligned.
SLOSERVE_HOST_DEVICE inline std::int64_t kv_units(std::uint64_t to, std::uint64_t from, std::int64_t bytes) {
  return (to | from) % kKvUnitBytes == 0 ? bytes / kKvUnitBytes : 0;
}

}  // namespace sloserve
