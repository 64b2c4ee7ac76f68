// Built with sanitizers by test_sanitized.py: the CPU's copy against each layout's definition, one byte at a time.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "kv_layouts.h"
#include "sloserve/kv_copy.h"

namespace {

void require(bool holds, const char* what, std::uint64_t seed) {
  if (holds) return;
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
  std::exit(1);
}

void out_and_in_again(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  Cache cache(kLayouts[seed % kLayouts.size()], rng), other = cache;
  std::fill(other.memory.begin(), other.memory.end(), 5);
  const sloserve::KvCopyLayout layout(cache.regions(), cache.blocks()), again(other.regions(), other.blocks());
  const std::int64_t bytes = layout.block_bytes(), pool_blocks = cache.blocks() + 3;
  // The pool begins at any address, and ends where the sanitizer sees one byte more.
  const std::int64_t shift = rng() % 2 ? 0 : static_cast<std::int64_t>(rng() % 16);
  std::vector<unsigned char> pool(static_cast<std::size_t>(pool_blocks * bytes + shift), 77);
  const auto device = some_ids(cache.blocks(), rng), host = some_ids(pool_blocks, rng);
  const std::size_t n = std::min(device.size(), host.size());
  const auto threads = static_cast<std::int64_t>(1 + rng() % 4);
  sloserve::copy_blocks(layout, pool.data() + shift, pool_blocks, device.data(), n, host.data(), n, true, threads);
  std::set<std::int64_t> written;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = cache.bytes_of(device[i]);
    require(static_cast<std::int64_t>(at.size()) == bytes, "bytes of a block", seed);
    for (std::int64_t j = 0; j < bytes; ++j) {
      require(pool[static_cast<std::size_t>(shift + host[i] * bytes + j)] == cache.memory[at[static_cast<std::size_t>(j)]], "stored",
              seed);
    }
    written.insert(host[i]);
  }
  for (std::int64_t block = 0; block < pool_blocks; ++block) {
    for (std::int64_t j = 0; !written.count(block) && j < bytes; ++j) {
      require(pool[static_cast<std::size_t>(shift + block * bytes + j)] == 77, "another host block was written", seed);
    }
  }
  sloserve::copy_blocks(again, pool.data() + shift, pool_blocks, device.data(), n, host.data(), n, false, threads);
  std::vector<unsigned char> expected(other.memory.size(), 5);
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::size_t at : cache.bytes_of(device[i])) expected[at] = cache.memory[at];
  }
  require(other.memory == expected, "loaded", seed);
}

}  // namespace

int main(int, char** argv) {
  const auto seeds = static_cast<std::uint64_t>(std::atoll(argv[1]));
  for (std::uint64_t seed = 0; seed < seeds; ++seed) out_and_in_again(seed);
  std::printf("%llu copies of %zu layouts\n", static_cast<unsigned long long>(seeds), kLayouts.size());
}
