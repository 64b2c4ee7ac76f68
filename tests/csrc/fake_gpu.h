// A GPU for tests: memory is the host's, streams run one operation after the other in an order drawn by chance among those that
// events allow. What the order of streams leaves open is therefore done in many orders, and what must wait but does not shows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "sloserve/kv_pack.h"

namespace sloserve {

struct FakeEvent {
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
  double at_s = 0;
};

// A driver keeps an event that was given back until the last operation with it is over.
struct FakeOperation {
  std::function<void()> run;
  std::shared_ptr<FakeEvent> record, wait;
  std::uint64_t generation = 0;
};

using FakeStream = std::deque<FakeOperation>;

// One for the process, as a driver is.
struct FakeDriver {
  std::mt19937_64 rng{0};
  std::map<void*, FakeStream> compute;
  std::vector<FakeStream*> streams;
  std::int64_t free_bytes = std::int64_t{1} << 40;
  std::int64_t fail_after = -1;  // operations until one fails; -1: none does
  std::int64_t span_bytes = 0;   // of pinned pieces, from pinned on; 0: one piece
  unsigned char* pinned = nullptr;
  double now_s = 0;
  std::int64_t transfers = 0;

  static FakeDriver& get() {
    static FakeDriver driver;
    return driver;
  }

  FakeStream* of_compute(void* handle) {
    const auto [found, is_new] = compute.try_emplace(handle);
    if (is_new) streams.push_back(&found->second);
    return &found->second;
  }

  bool can_go(const FakeStream& stream) const {
    return !stream.empty() && (!stream.front().wait || stream.front().wait->done >= stream.front().generation);
  }

  // One operation of any stream. Returns whether there was one.
  bool step() {
    std::vector<FakeStream*> ready;
    for (FakeStream* one : streams) {
      if (can_go(*one)) ready.push_back(one);
    }
    if (ready.empty()) return false;
    FakeStream& stream = *ready[rng() % ready.size()];
    const FakeOperation operation = std::move(stream.front());
    stream.pop_front();
    now_s += 1e-3;
    if (operation.run) operation.run();
    if (operation.record) operation.record->done = operation.generation, operation.record->at_s = now_s;
    return true;
  }

  void steps(std::uint64_t most) {
    for (std::uint64_t n = rng() % (most + 1); n > 0 && step(); --n) {
    }
  }

  void finish(const FakeStream& stream) {
    while (!stream.empty()) {
      if (step()) continue;
      std::fprintf(stderr, "deadlock: streams wait for each other\n");
      std::abort();
    }
  }

  void count() {
    if (fail_after >= 0 && fail_after-- == 0) throw std::runtime_error("CUDA: made to fail (999)");
  }
};

class Gpu {
 public:
  using Stream = FakeStream*;
  using Event = std::shared_ptr<FakeEvent>;

  explicit Gpu(std::int64_t) {}
  void enter() {}
  Stream stream_of(void* handle) { return driver().of_compute(handle); }

  Stream new_stream() {
    driver().count();
    driver().streams.push_back(new FakeStream);
    return driver().streams.back();
  }
  void free_stream(Stream stream) noexcept {
    if (!stream) return;
    auto& all = driver().streams;
    all.erase(std::find(all.begin(), all.end(), stream));
    delete stream;
  }
  void finish(Stream stream) noexcept {
    if (stream) driver().finish(*stream);
  }

  Event new_event() { return driver().count(), std::make_shared<FakeEvent>(); }
  void free_event(const Event&) noexcept {}
  void record(const Event& event, Stream stream) {
    driver().count();
    stream->push_back({{}, event, {}, ++event->recorded});
  }
  void wait(Stream stream, const Event& event) {
    driver().count();
    if (event->recorded) stream->push_back({{}, {}, event, event->recorded});
  }
  bool done(const Event& event) {
    driver().steps(3);
    return event->done >= event->recorded;
  }
  double seconds(const Event& begin, const Event& end) {
    if (begin->done < begin->recorded || end->done < end->recorded) throw std::runtime_error("CUDA: not ready (600)");
    return end->at_s - begin->at_s;
  }

  unsigned char* allocate(std::int64_t bytes) {
    if (bytes > driver().free_bytes) throw std::runtime_error("CUDA: staging memory: out of memory (2)");
    return static_cast<unsigned char*>(std::malloc(static_cast<std::size_t>(bytes)));
  }
  const KvPlacedRegion* upload(const std::vector<KvPlacedRegion>& regions) {
    const std::size_t bytes = regions.size() * sizeof(KvPlacedRegion);
    auto* memory = allocate(static_cast<std::int64_t>(bytes));
    std::memcpy(memory, regions.data(), bytes);
    return reinterpret_cast<const KvPlacedRegion*>(memory);
  }
  void release(const void* memory) noexcept { std::free(const_cast<void*>(memory)); }

  void to_host(unsigned char* host, const unsigned char* device, std::int64_t bytes, Stream stream) {
    transfer(host, host, device, bytes, stream);
  }
  void to_device(unsigned char* device, const unsigned char* host, std::int64_t bytes, Stream stream) {
    transfer(host, device, host, bytes, stream);
  }

  template <bool kToStaging>
  void pack(const KvPackArgs& args, Stream stream) {
    driver().count();
    const auto warps = static_cast<std::uint32_t>(1 + driver().rng() % 5);
    stream->push_back({[args, warps] {
      for (std::uint32_t warp = warps; warp-- > 0;) {
        for (std::uint32_t lane = kKvLanes; lane-- > 0;) kv_pack_lane<kToStaging>(args, warp, warps, lane);
      }
    }, {}, {}, 0});
  }

 private:
  static FakeDriver& driver() { return FakeDriver::get(); }

  void transfer(const unsigned char* host, unsigned char* to, const unsigned char* from, std::int64_t bytes, Stream stream) {
    driver().count();
    ++driver().transfers;
    const std::int64_t at = host - driver().pinned;
    if (driver().span_bytes && at / driver().span_bytes != (at + bytes - 1) / driver().span_bytes) {
      std::fprintf(stderr, "a transfer crosses from one pinned piece to the next\n");
      std::abort();
    }
    stream->push_back({[=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }, {}, {}, 0});
  }
};

}  // namespace sloserve
