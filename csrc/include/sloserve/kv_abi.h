// The C functions of a library that copies KV blocks, for a type sloserve::Gpu that the including file has defined: csrc/cuda for
// CUDA, a host's for the tests. sloserve/engine/swap/host/cuda_library.py calls them; kSloserveKvAbi goes up when they change.
//
// Each returns 0 or more, or -1 after an error, whose text is then in `error`. None may be called by two threads at once.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "sloserve/kv_transfer.h"

#define SLOSERVE_KV_EXPORT extern "C" __attribute__((visibility("default")))

inline constexpr std::int64_t kSloserveKvAbi = 2;

struct SloserveKvError {
  char text[512];
};

struct SloserveKvEnded {
  std::int64_t ticket;
  std::int64_t bytes;
  std::int64_t to_host;
  double link_s;
};

struct SloserveKv {
  sloserve::Gpu gpu;
  sloserve::KvTransfer<sloserve::Gpu> transfer;
  std::vector<sloserve::KvEnded> ended;

  SloserveKv(std::int64_t device, sloserve::KvCopyLayout layout, sloserve::KvPool pool, std::int64_t staging_bytes)
      : gpu(device), transfer(gpu, std::move(layout), pool, staging_bytes) {}
};

template <class Do>
std::int64_t sloserve_kv_guarded(SloserveKvError* error, Do call) noexcept {
  try {
    return call();
  } catch (const std::exception& caught) {
    std::strncpy(error->text, caught.what(), sizeof(error->text) - 1);
    error->text[sizeof(error->text) - 1] = '\0';
  } catch (...) {
    std::strcpy(error->text, "unknown error");
  }
  return -1;
}

SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_abi() { return kSloserveKvAbi; }

// regions: [num_regions]. pool: pool_blocks packed blocks of host memory; no transfer crosses a multiple of span_blocks.
// Returns the bytes of staging memory taken.
SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_open(std::int64_t device, const sloserve::KvRegion* regions, std::int64_t num_regions,
                                                 std::int64_t num_blocks, void* pool, std::int64_t pool_blocks,
                                                 std::int64_t span_blocks, std::int64_t staging_bytes, SloserveKv** opened,
                                                 SloserveKvError* error) {
  return sloserve_kv_guarded(error, [&] {
    const std::vector<sloserve::KvRegion> all(regions, regions + num_regions);
    auto kv = std::make_unique<SloserveKv>(
        device, sloserve::KvCopyLayout(all, num_blocks),
        sloserve::KvPool{static_cast<unsigned char*>(pool), pool_blocks, span_blocks}, staging_bytes);
    const std::int64_t taken = kv->transfer.staging_bytes();
    *opened = kv.release();
    return taken;
  });
}

// Returns a ticket, above 0. compute: the engine's stream; with `beside` other than 0 it does not wait. See KvTransfer for
// what is ordered after what.
SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_store(SloserveKv* kv, const std::int64_t* device_ids, const std::int64_t* host_ids,
                                                  std::int64_t n, void* compute, std::int64_t beside, SloserveKvError* error) {
  return sloserve_kv_guarded(error, [&] {
    kv->gpu.enter();
    return kv->transfer.store(device_ids, host_ids, static_cast<std::size_t>(n), kv->gpu.stream_of(compute), beside != 0);
  });
}

// Has the engine wait for a store beside it; one that is over needs no wait.
SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_await_store(SloserveKv* kv, std::int64_t ticket, void* compute,
                                                        SloserveKvError* error) {
  return sloserve_kv_guarded(error, [&] {
    kv->gpu.enter();
    kv->transfer.await_store(ticket, kv->gpu.stream_of(compute));
    return std::int64_t{0};
  });
}

SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_load(SloserveKv* kv, const std::int64_t* device_ids, const std::int64_t* host_ids,
                                                 std::int64_t n, void* compute, SloserveKvError* error) {
  return sloserve_kv_guarded(error, [&] {
    kv->gpu.enter();
    return kv->transfer.load(device_ids, host_ids, static_cast<std::size_t>(n), kv->gpu.stream_of(compute));
  });
}

// Writes up to `most` copies that are over, each told once. Returns their number; less than `most` when there are no more.
SLOSERVE_KV_EXPORT std::int64_t sloserve_kv_ended(SloserveKv* kv, SloserveKvEnded* ended, std::int64_t most,
                                                  SloserveKvError* error) {
  return sloserve_kv_guarded(error, [&] {
    kv->gpu.enter();
    for (const auto& one : kv->transfer.ended()) kv->ended.push_back(one);
    const auto n = std::min(kv->ended.size(), static_cast<std::size_t>(most));
    for (std::size_t i = 0; i < n; ++i) {
      const auto& one = kv->ended[i];
      ended[i] = {one.ticket, one.bytes, one.to_host ? 1 : 0, one.link_s};
    }
    kv->ended.erase(kv->ended.begin(), kv->ended.begin() + static_cast<std::ptrdiff_t>(n));
    return static_cast<std::int64_t>(n);
  });
}

// Waits for what is under way, and gives all memory back.
SLOSERVE_KV_EXPORT void sloserve_kv_close(SloserveKv* kv) {
  SloserveKvError ignored;
  sloserve_kv_guarded(&ignored, [&] {
    kv->gpu.enter();
    delete kv;
    return std::int64_t{0};
  });
}
