// Copies of KV blocks between a GPU's cache and packed blocks on the host, beside the engine's own work.
//
// Blocks of several runs of bytes are packed into staging memory on the GPU, from where one transfer of the copy engine moves
// each run of neighbouring host blocks: its speed does not depend on how small the runs in the cache are. Blocks of one
// run go without staging. What is ordered after what:
//   - A store reads after the engine's work so far; the engine's later work begins when the last block is packed (without
//     staging: when it is on the host), so the blocks may be written from then on. For a store beside the engine's work
//     that holds only from await_store() on: until then the caller sees to it that nothing writes the blocks.
//   - A load writes after the engine's work so far, and is over when ended() says so.
//   - Of two copies with a host block in common, the one asked for first is first.
//   - Stores keep their order among each other, and so do loads; the two directions run beside each other.
//
// Gpu is what orders and moves bytes: CUDA's in csrc/cuda, and one that runs on the host in the tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "sloserve/kv_copy_plan.h"
#include "sloserve/kv_pack.h"

namespace sloserve {

inline constexpr std::size_t kKvSlices = 4;  // of each direction; one is packed while others are moved
inline constexpr std::int64_t kMostKvStagingBytes = std::int64_t{128} << 20;

// Packed blocks on the host. span_blocks: a transfer may not go beyond a multiple of it, since memory is pinned in pieces
// and the driver takes each for memory of its own.
struct KvPool {
  unsigned char* base;
  std::int64_t blocks;
  std::int64_t span_blocks;
};

// link_s: how long the copy engine was taken up.
struct KvEnded {
  std::int64_t ticket;
  std::int64_t bytes;
  double link_s;
  bool to_host;
};

template <class Gpu>
class KvTransfer {
 public:
  using Stream = typename Gpu::Stream;
  using Event = typename Gpu::Event;

  // staging_bytes: of memory on the GPU, for both directions together; 0 for blocks of one run, which need none.
  // Throws std::invalid_argument for what cannot be, std::runtime_error for what the GPU refuses.
  KvTransfer(Gpu& gpu, KvCopyLayout layout, KvPool pool, std::int64_t staging_bytes)
      : gpu_(gpu), layout_(std::move(layout)), pool_(pool) {
    KvCopyLayout::check("pool_blocks", pool.blocks, 1, kMostKvBlocks);
    KvCopyLayout::check("span_blocks", pool.span_blocks, 1, pool.blocks);
    if (pool.base == nullptr) throw std::invalid_argument("pool: 0 is no address");
    if (staging_bytes || !layout_.one_run()) {
      const std::int64_t least = 2 * static_cast<std::int64_t>(kKvSlices) * layout_.block_bytes();
      KvCopyLayout::check("staging_bytes", staging_bytes, least, kMostKvStagingBytes);
      slice_blocks_ = std::min(staging_bytes / least, blocks_per_launch());
    }
    stored_by_.resize(static_cast<std::size_t>(pool.blocks));
    loaded_by_.resize(static_cast<std::size_t>(pool.blocks));
    try {
      if (slice_blocks_) staging_ = gpu_.allocate(2 * static_cast<std::int64_t>(kKvSlices) * slice_bytes());
      if (slice_blocks_) regions_ = gpu_.upload(layout_.regions());
      for (Direction* one : both()) {
        one->kernels = gpu_.new_stream();
        one->link = gpu_.new_stream();
        for (std::size_t i = 0; i < kKvSlices; ++i) one->packed[i] = gpu_.new_event(), one->free[i] = gpu_.new_event();
      }
    } catch (...) {
      release();
      throw;
    }
  }

  KvTransfer(const KvTransfer&) = delete;
  KvTransfer& operator=(const KvTransfer&) = delete;
  ~KvTransfer() { release(); }

  std::int64_t staging_bytes() const { return 2 * static_cast<std::int64_t>(kKvSlices) * slice_bytes(); }
  bool idle() const { return out_.running.empty() && in_.running.empty(); }

  // Device block device_ids[i] goes to host block host_ids[i]. Returns a ticket for ended(). compute: the engine's stream.
  // beside: the engine's later work does not wait. After an exception of the GPU nothing of this copy is under way, and no
  // later one is taken.
  std::int64_t store(const std::int64_t* device_ids, const std::int64_t* host_ids, std::size_t n, Stream compute,
                     bool beside = false) {
    return begin(out_, device_ids, host_ids, n, [&](const std::vector<KvPair>& pairs, Copy& copy) {
      wait_for(in_, loaded_by_, pairs, out_.link);
      const Event now = mark(copy, compute);
      if (!slice_blocks_) {
        gpu_.wait(out_.link, now);
        gpu_.record(copy.link_begin, out_.link);
        for_runs(pairs, 0, pairs.size(), true, [&](const KvPair& first, std::size_t, std::int64_t bytes) {
          gpu_.to_host(host(first), cache(first), bytes, out_.link);
        });
        gpu_.record(copy.link_end, out_.link);
        if (!beside) gpu_.wait(compute, copy.link_end);
        gpu_.record(copy.done, out_.link);
        return;
      }
      gpu_.wait(out_.kernels, now);
      for_slices(out_, pairs, [&](std::size_t slice, std::size_t first, std::size_t last) {
        gpu_.wait(out_.kernels, out_.free[slice]);
        launch<true>(pairs, first, last, slice_at(0, slice), out_.kernels);
        gpu_.record(out_.packed[slice], out_.kernels);
        gpu_.wait(out_.link, out_.packed[slice]);
        if (first == 0) gpu_.record(copy.link_begin, out_.link);
        for_runs(pairs, first, last, false, [&](const KvPair& begin, std::size_t at, std::int64_t bytes) {
          gpu_.to_host(host(begin), slice_at(0, slice) + packed_at(at), bytes, out_.link);
        });
        gpu_.record(out_.free[slice], out_.link);
      });
      gpu_.record(copy.link_end, out_.link);
      gpu_.record(copy.done, out_.link);
      gpu_.record(copy.now, out_.kernels);
      if (!beside) gpu_.wait(compute, copy.now);
    });
  }

  // Have the engine's later work wait until the blocks of a store, and of all stores before it, may be written.
  void await_store(std::int64_t ticket, Stream compute) {
    if (broken_) throw std::runtime_error("an earlier copy failed; restart the engine");
    for (const Copy& copy : out_.running) {
      if (copy.ticket == ticket) gpu_.wait(compute, slice_blocks_ ? copy.now : copy.link_end);
    }
  }

  // The other way. The device blocks may be used when ended() has named the ticket, not before.
  std::int64_t load(const std::int64_t* device_ids, const std::int64_t* host_ids, std::size_t n, Stream compute) {
    return begin(in_, device_ids, host_ids, n, [&](const std::vector<KvPair>& pairs, Copy& copy) {
      wait_for(out_, stored_by_, pairs, in_.link);
      const Event now = mark(copy, compute);
      if (!slice_blocks_) {
        gpu_.wait(in_.link, now);
        gpu_.record(copy.link_begin, in_.link);
        for_runs(pairs, 0, pairs.size(), true, [&](const KvPair& first, std::size_t, std::int64_t bytes) {
          gpu_.to_device(cache(first), host(first), bytes, in_.link);
        });
        gpu_.record(copy.link_end, in_.link);
        gpu_.record(copy.done, in_.link);
        return;
      }
      gpu_.wait(in_.kernels, now);
      gpu_.record(copy.link_begin, in_.link);
      for_slices(in_, pairs, [&](std::size_t slice, std::size_t first, std::size_t last) {
        gpu_.wait(in_.link, in_.free[slice]);
        for_runs(pairs, first, last, false, [&](const KvPair& begin, std::size_t at, std::int64_t bytes) {
          gpu_.to_device(slice_at(1, slice) + packed_at(at), host(begin), bytes, in_.link);
        });
        gpu_.record(in_.packed[slice], in_.link);
        gpu_.wait(in_.kernels, in_.packed[slice]);
        launch<false>(pairs, first, last, slice_at(1, slice), in_.kernels);
        gpu_.record(in_.free[slice], in_.kernels);
      });
      gpu_.record(copy.link_end, in_.link);
      gpu_.wait(in_.kernels, copy.link_end);
      gpu_.record(copy.done, in_.kernels);
    });
  }

  // Copies that are over, of each direction in order. Throws std::runtime_error where the GPU failed.
  std::vector<KvEnded> ended() {
    std::vector<KvEnded> found;
    for (Direction* one : both()) {
      while (!one->running.empty() && gpu_.done(one->running.front().done)) {
        Copy& copy = one->running.front();
        found.push_back({copy.ticket, copy.bytes, gpu_.seconds(copy.link_begin, copy.link_end), one == &out_});
        spare_.push_back(copy);
        one->running.pop_front();
      }
    }
    return found;
  }

 private:
  // now: marks what the engine had been given when the copy was asked for.
  struct Copy {
    std::int64_t ticket = 0;
    std::int64_t bytes = 0;
    Event now, link_begin, link_end, done;
  };

  // packed: a slice holds what goes on from it. free: it may be written again.
  struct Direction {
    Stream kernels{}, link{};
    std::array<Event, kKvSlices> packed{}, free{};
    std::size_t next_slice = 0;
    std::deque<Copy> running;
  };

  std::array<Direction*, 2> both() { return {&out_, &in_}; }
  std::int64_t parts() const { return kv_parts(layout_.widest()); }
  std::int64_t slice_bytes() const { return slice_blocks_ * layout_.block_bytes(); }
  std::int64_t packed_at(std::size_t position) const { return static_cast<std::int64_t>(position) * layout_.block_bytes(); }
  unsigned char* host(const KvPair& pair) const { return pool_.base + pair.host * layout_.block_bytes(); }

  unsigned char* cache(const KvPair& pair) const {
    return reinterpret_cast<unsigned char*>(kv_run(layout_.regions()[0], pair.device, 0, 0).cache);
  }

  unsigned char* slice_at(std::size_t direction, std::size_t slice) const {
    return staging_ + static_cast<std::int64_t>(direction * kKvSlices + slice) * slice_bytes();
  }

  std::int64_t blocks_per_launch() const {
    const auto items = static_cast<std::int64_t>(layout_.regions().size()) * parts();
    KvCopyLayout::check("regions: work items of a block", items, 1, std::int64_t{1} << 31);
    return std::min<std::int64_t>(kKvIdsPerLaunch, (std::int64_t{1} << 31) / items);
  }

  template <class Order>
  std::int64_t begin(Direction& to, const std::int64_t* device_ids, const std::int64_t* host_ids, std::size_t n, Order order) {
    if (broken_) throw std::runtime_error("an earlier copy failed; restart the engine");
    const auto pairs = kv_pairs(device_ids, n, host_ids, n, layout_.num_blocks(), pool_.blocks);
    if (pairs.empty()) throw std::invalid_argument("device_ids: there is none; a copy has one block at least");
    Copy copy = spare();
    try {
      copy.ticket = ++last_ticket_;
      copy.bytes = packed_at(pairs.size());
      order(pairs, copy);
      to.running.push_back(copy);
      auto& by = &to == &out_ ? stored_by_ : loaded_by_;
      for (const KvPair& pair : pairs) by[static_cast<std::size_t>(pair.host)] = copy.ticket;
      return copy.ticket;
    } catch (...) {
      broken_ = true;
      finish();
      spare_.push_back(copy);
      throw;
    }
  }

  Event mark(Copy& copy, Stream compute) {
    gpu_.record(copy.now, compute);
    return copy.now;
  }

  // stream waits until the other direction has moved the last copy with one of these host blocks.
  void wait_for(const Direction& other, const std::vector<std::int64_t>& by, const std::vector<KvPair>& pairs, Stream stream) {
    std::int64_t last = 0;
    for (const KvPair& pair : pairs) last = std::max(last, by[static_cast<std::size_t>(pair.host)]);
    for (const Copy& copy : other.running) {
      if (copy.ticket == last) gpu_.wait(stream, copy.link_end);
    }
  }

  template <class Do>
  void for_slices(Direction& of, const std::vector<KvPair>& pairs, Do one) {
    const auto most = static_cast<std::size_t>(slice_blocks_);
    for (std::size_t first = 0; first < pairs.size(); first += most) {
      one(of.next_slice, first, std::min(first + most, pairs.size()));
      of.next_slice = (of.next_slice + 1) % kKvSlices;
    }
  }

  // Each run of neighbours among pairs[first..last): its first pair, its place among them, its bytes. Without staging the
  // blocks must touch in the cache too.
  template <class Do>
  void for_runs(const std::vector<KvPair>& pairs, std::size_t first, std::size_t last, bool direct, Do one) {
    for (std::size_t i = first; i < last;) {
      std::size_t blocks = direct && !layout_.dense() ? 1 : kv_run_length(pairs, i, last, direct);
      blocks = std::min(blocks, static_cast<std::size_t>(pool_.span_blocks - pairs[i].host % pool_.span_blocks));
      one(pairs[i], i - first, packed_at(blocks));
      i += blocks;
    }
  }

  template <bool kToStaging>
  void launch(const std::vector<KvPair>& pairs, std::size_t first, std::size_t last, unsigned char* staging, Stream stream) {
    KvPackArgs args{regions_,
                    staging,
                    layout_.block_bytes(),
                    static_cast<std::uint32_t>(layout_.regions().size()),
                    static_cast<std::uint32_t>(parts()),
                    static_cast<std::uint32_t>(last - first),
                    {}};
    for (std::size_t i = first; i < last; ++i) args.ids[i - first] = static_cast<std::int32_t>(pairs[i].device);
    gpu_.template pack<kToStaging>(args, stream);
  }

  Copy spare() {
    if (spare_.empty()) {
      Copy made;
      const std::array<Event*, 4> all = {&made.now, &made.link_begin, &made.link_end, &made.done};
      for (Event* one : all) *one = gpu_.new_event();
      return made;
    }
    const Copy copy = spare_.back();
    spare_.pop_back();
    return copy;
  }

  void finish() noexcept {
    for (Direction* one : both()) {
      gpu_.finish(one->link);
      gpu_.finish(one->kernels);
    }
  }

  void release() noexcept {
    finish();
    for (Direction* one : both()) {
      for (std::size_t i = 0; i < kKvSlices; ++i) gpu_.free_event(one->packed[i]), gpu_.free_event(one->free[i]);
      for (const Copy& copy : one->running) spare_.push_back(copy);
      gpu_.free_stream(one->link);
      gpu_.free_stream(one->kernels);
    }
    for (const Copy& copy : spare_) {
      const std::array<Event, 4> all = {copy.now, copy.link_begin, copy.link_end, copy.done};
      for (const Event& event : all) gpu_.free_event(event);
    }
    gpu_.release(staging_);
    gpu_.release(regions_);
  }

  Gpu& gpu_;
  KvCopyLayout layout_;
  KvPool pool_;
  std::int64_t slice_blocks_ = 0;  // 0: blocks go without staging
  unsigned char* staging_ = nullptr;
  const KvPlacedRegion* regions_ = nullptr;
  Direction out_, in_;
  std::vector<std::int64_t> stored_by_, loaded_by_;  // [pool.blocks]: the last copy with this block, by ticket
  std::vector<Copy> spare_;
  std::int64_t last_ticket_ = 0;
  bool broken_ = false;
};

}  // namespace sloserve
