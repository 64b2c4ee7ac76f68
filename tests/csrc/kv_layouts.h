// Caches in the six layouts of vLLM's v1/kv_cache_layout.py, as their strides define them: for the checks of copies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "sloserve/kv_copy_index.h"

// The axes (layer, block, head, token, content) from the outermost on.
inline const std::array<std::string, 6> kLayouts = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};

struct Cache {
  std::string order;  // axes of size 1 apart from B left out
  std::vector<std::int64_t> sizes, strides;
  std::vector<unsigned char> memory;

  // Of random sizes; some have padding behind each block, some rows are odd, some wide enough for non-temporal stores.
  Cache(const std::string& layout, std::mt19937_64& rng) : order(layout) {
    const std::int64_t contents[] = {1, 7, 16, 48, 130, 512, 8192 + 16};
    const std::int64_t content = contents[rng() % 7];
    std::int64_t stride = 1;
    sizes.resize(5), strides.resize(5);
    const bool padded = rng() % 3 == 0;
    for (int i = 4; i >= 0; --i) {
      const char axis = order[static_cast<std::size_t>(i)];
      const std::int64_t size = axis == 'C' ? content : 1 + static_cast<std::int64_t>(rng() % most(axis, content));
      sizes[static_cast<std::size_t>(i)] = size;
      if (axis == 'B' && padded) stride += rng() % 2 ? 16 : 3;
      strides[static_cast<std::size_t>(i)] = stride;
      stride *= size;
    }
    memory.resize(static_cast<std::size_t>(stride));
    for (auto& byte : memory) byte = static_cast<unsigned char>(rng());
  }

  static std::uint64_t most(char axis, std::int64_t content) { return axis == 'B' ? 9 : (content > 1000 ? 2 : 4); }

  std::size_t axis_of_blocks() const { return order.find('B'); }
  std::int64_t blocks() const { return sizes[axis_of_blocks()]; }

  // Offsets of a block's bytes in memory, by address: by definition, one byte at a time.
  std::vector<std::size_t> bytes_of(std::int64_t block) const {
    std::vector<std::size_t> found;
    std::array<std::int64_t, 5> at{};
    const std::size_t b = axis_of_blocks();
    for (;;) {
      at[b] = block;
      found.push_back(static_cast<std::size_t>(std::inner_product(at.begin(), at.end(), strides.begin(), std::int64_t{0})));
      int i = 4;
      for (; i >= 0; --i) {
        const auto axis = static_cast<std::size_t>(i);
        if (axis == b) continue;
        if (++at[axis] < sizes[axis]) break;
        at[axis] = 0;
      }
      if (i < 0) break;
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  // The runs of bytes of block 0, each of which all blocks have at the same distance.
  std::vector<sloserve::KvRegion> regions() {
    std::vector<sloserve::KvRegion> all;
    const auto base = reinterpret_cast<std::uint64_t>(memory.data());
    const std::int64_t stride = strides[axis_of_blocks()];
    for (const std::size_t at : bytes_of(0)) {
      if (!all.empty() && all.back().base + static_cast<std::uint64_t>(all.back().bytes) == base + at) {
        ++all.back().bytes;
      } else {
        all.push_back({base + at, stride, 1});
      }
    }
    return all;
  }
};

// From none to all of `blocks`, each once, in any order: the last is among them more often than chance.
inline std::vector<std::int64_t> some_ids(std::int64_t blocks, std::mt19937_64& rng) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  if (rng() % 2) std::shuffle(ids.begin(), ids.end(), rng);
  if (rng() % 2) std::reverse(ids.begin(), ids.end());
  ids.resize(rng() % 3 ? 1 + rng() % ids.size() : (rng() % 2 ? ids.size() : 0));
  return ids;
}
