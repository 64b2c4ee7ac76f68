// The library of csrc/cuda with a GPU for tests in its place, and functions that steer it.
#include "fake_gpu.h"
#include "sloserve/kv_abi.h"

SLOSERVE_KV_EXPORT void fake_seed(std::int64_t seed) { sloserve::FakeDriver::get().rng.seed(static_cast<std::uint64_t>(seed)); }

// How many more operations go well; -1: all of them.
SLOSERVE_KV_EXPORT void fake_fail_after(std::int64_t operations) { sloserve::FakeDriver::get().fail_after = operations; }

SLOSERVE_KV_EXPORT void fake_free_bytes(std::int64_t bytes) { sloserve::FakeDriver::get().free_bytes = bytes; }

SLOSERVE_KV_EXPORT std::int64_t fake_transfers() { return sloserve::FakeDriver::get().transfers; }

// A kernel of the engine that writes n bytes when its stream comes to it.
SLOSERVE_KV_EXPORT void fake_write(void* compute, unsigned char* at, std::int64_t value, std::int64_t n) {
  sloserve::FakeDriver::get().of_compute(compute)->push_back(
      {[=] { std::memset(at, static_cast<int>(value), static_cast<std::size_t>(n)); }, {}, {}, 0});
}

SLOSERVE_KV_EXPORT void fake_finish(void* compute) {
  auto& driver = sloserve::FakeDriver::get();
  driver.finish(*driver.of_compute(compute));
}
