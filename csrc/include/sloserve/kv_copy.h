// Copies the KV blocks of a request between a cache in this machine's memory and a pool of packed blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "sloserve/kv_copy_plan.h"

namespace sloserve {

inline constexpr std::int64_t kMostKvThreads = 64;

namespace detail {

// A thread is worth its start from about this many bytes on.
inline constexpr std::int64_t kKvChunkBytes = 1 << 20;

inline constexpr std::size_t kKvLine = 64;

#ifdef __SSE2__
inline void kv_stream_line(unsigned char* to, const unsigned char* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

// Copies as many groups of kSpans spans as there are, all spans of a group at once: one sequence of loads does not keep
// the memory busy. Returns the bytes copied, lines being whole.
template <std::size_t kSpans, std::size_t kSpan>
std::size_t kv_stream_spans(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  std::size_t done = 0;
  for (; bytes - done >= kSpans * kSpan; done += kSpans * kSpan) {
    for (std::size_t at = done; at < done + kSpan; at += kKvLine) {
      for (std::size_t span = 0; span < kSpans; ++span) kv_stream_line(to + at + span * kSpan, from + at + span * kSpan);
    }
  }
  return done;
}
#endif

struct KvMove {
  unsigned char* to;
  const unsigned char* from;
  std::size_t bytes;
};

// How many bytes come before the first whole line of the target.
inline std::size_t kv_head(const KvMove& move) {
  return std::min((kKvLine - reinterpret_cast<std::uintptr_t>(move.to) % kKvLine) % kKvLine, move.bytes);
}

// memcpy whose stores pass the caches by, where the CPU has such stores: what is swapped is not read soon, and ordinary
// stores would read each line before they write it. memcpy of libc does so too, but only for pieces of many MiB.
// Before another thread reads what was written, kv_stores_done() orders it.
inline void kv_stream_copy(const KvMove& move) {
  std::size_t done = 0;
#ifdef __SSE2__
  constexpr std::size_t kPage = 4096;
  done = kv_head(move);
  std::memcpy(move.to, move.from, done);
  done += kv_stream_spans<4, kPage>(move.to + done, move.from + done, move.bytes - done);
  done += kv_stream_spans<2, kPage>(move.to + done, move.from + done, move.bytes - done);
  done += kv_stream_spans<1, kKvLine>(move.to + done, move.from + done, move.bytes - done);
#endif
  std::memcpy(move.to + done, move.from + done, move.bytes - done);
}

// Short moves, a few at once: see kv_stream_spans.
inline constexpr std::size_t kKvMovesAtOnce = 4;

inline void kv_stream_together(const KvMove (&moves)[kKvMovesAtOnce]) {
#ifdef __SSE2__
  std::size_t lines = moves[0].bytes / kKvLine, head[kKvMovesAtOnce];
  for (std::size_t i = 0; i < kKvMovesAtOnce; ++i) {
    head[i] = kv_head(moves[i]);
    std::memcpy(moves[i].to, moves[i].from, head[i]);
    lines = std::min(lines, (moves[i].bytes - head[i]) / kKvLine);
  }
  for (std::size_t at = 0; at < lines * kKvLine; at += kKvLine) {
    for (std::size_t i = 0; i < kKvMovesAtOnce; ++i) {
      kv_stream_line(moves[i].to + head[i] + at, moves[i].from + head[i] + at);
    }
  }
  for (std::size_t i = 0; i < kKvMovesAtOnce; ++i) {
    const std::size_t done = head[i] + lines * kKvLine;
    kv_stream_copy({moves[i].to + done, moves[i].from + done, moves[i].bytes - done});
  }
#else
  for (const KvMove& move : moves) kv_stream_copy(move);
#endif
}

inline void kv_stores_done() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

inline void copy_pairs(const KvCopyLayout& layout, const std::vector<KvPair>& pairs, std::size_t first, std::size_t last,
                       unsigned char* pool, bool to_host) {
  constexpr std::size_t kShort = 4 * 4096;  // longer ones are copied in several spans at once anyway
  KvMove waiting[kKvMovesAtOnce];
  std::size_t held = 0;
  for (std::size_t i = first; i < last;) {
    const std::size_t blocks = layout.dense() ? kv_run_length(pairs, i, last, true) : 1;
    for (const KvPlacedRegion& placed : layout.regions()) {
      const KvRun run = kv_run(placed, pairs[i].device, pairs[i].host, layout.block_bytes());
      auto* cache = reinterpret_cast<unsigned char*>(run.cache);
      auto* packed = pool + run.packed;
      const KvMove move{to_host ? packed : cache, to_host ? cache : packed, static_cast<std::size_t>(run.bytes) * blocks};
      if (move.bytes >= kShort) {
        kv_stream_copy(move);
        continue;
      }
      waiting[held] = move;
      if (++held == kKvMovesAtOnce) kv_stream_together(waiting), held = 0;
    }
    i += blocks;
  }
  for (std::size_t i = 0; i < held; ++i) kv_stream_copy(waiting[i]);
  kv_stores_done();
}

}  // namespace detail

// Copies device block device_ids[i] to host block host_ids[i], or back, for each of n; returns when all is written. Uses up to
// `threads` threads, of which the caller's is one; fewer for few bytes, or where the system gives no more.
//
// pool: pool_blocks packed blocks. Throws std::invalid_argument before a byte moves; see KvCopyLayout and kv_pairs.
inline void copy_blocks(const KvCopyLayout& layout, unsigned char* pool, std::int64_t pool_blocks, const std::int64_t* device_ids,
                        std::size_t num_device, const std::int64_t* host_ids, std::size_t num_host, bool to_host,
                        std::int64_t threads) {
  KvCopyLayout::check("threads", threads, 1, kMostKvThreads);
  KvCopyLayout::check("pool_blocks", pool_blocks, 0, kMostKvBlocks);
  const auto pairs = kv_pairs(device_ids, num_device, host_ids, num_host, layout.num_blocks(), pool_blocks);
  if (pairs.empty()) return;
  if (pool == nullptr) throw std::invalid_argument("pool_base: 0 is no address");

  const auto step = static_cast<std::size_t>(std::max<std::int64_t>(detail::kKvChunkBytes / layout.block_bytes(), 1));
  const std::size_t chunks = (pairs.size() + step - 1) / step;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t chunk; (chunk = next.fetch_add(1)) < chunks;) {
      detail::copy_pairs(layout, pairs, chunk * step, std::min((chunk + 1) * step, pairs.size()), pool, to_host);
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<std::size_t>(threads));
  const std::size_t wanted = std::min(chunks, static_cast<std::size_t>(threads));
  try {
    while (others.size() + 1 < wanted) others.emplace_back(work);
  } catch (const std::system_error&) {
    // The threads that there are take all chunks.
  }
  work();
  for (auto& other : others) other.join();
}

}  // namespace sloserve
