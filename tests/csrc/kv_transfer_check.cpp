// Built with sanitizers by test_sanitized.py: the GPU's copies, on a GPU whose streams run in any order that events allow.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "fake_gpu.h"
#include "kv_layouts.h"
#include "sloserve/kv_transfer.h"

namespace {

using Bytes = std::vector<unsigned char>;

// What memory must hold, were everything done in the order in which it was asked for.
struct Run {
  std::uint64_t seed;
  std::mt19937_64 rng;
  sloserve::FakeDriver& driver = sloserve::FakeDriver::get();
  Cache cache;
  std::vector<std::vector<std::size_t>> at;  // by block: where its bytes lie
  std::vector<Bytes> device, host;           // by block: what it must hold
  Bytes pool;
  sloserve::Gpu gpu{0};
  std::map<std::int64_t, std::vector<std::int64_t>> loading;  // by ticket
  std::set<std::int64_t> stores;
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> beside;  // stores that the engine does not wait for yet
  std::int64_t loaded = 0;

  explicit Run(std::uint64_t seed) : seed(seed), rng(seed), cache(kLayouts[seed % kLayouts.size()], rng) {
    driver.rng.seed(seed);
    for (std::int64_t block = 0; block < cache.blocks(); ++block) {
      at.push_back(cache.bytes_of(block));
      device.push_back(seen(block));
    }
    host.assign(static_cast<std::size_t>(cache.blocks() + 4), Bytes(at[0].size(), 9));
    pool.assign(host.size() * at[0].size(), 9);
  }

  Bytes seen(std::int64_t block) const {
    Bytes bytes;
    for (const std::size_t one : at[static_cast<std::size_t>(block)]) bytes.push_back(cache.memory[one]);
    return bytes;
  }

  void require(bool holds, const char* what) const {
    if (holds) return;
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
    std::exit(1);
  }

  // Up to n blocks that no load writes, and no store beside the engine reads.
  std::vector<std::int64_t> free_blocks(std::size_t n) {
    std::set<std::int64_t> taken;
    for (const auto& [ticket, blocks] : loading) taken.insert(blocks.begin(), blocks.end());
    for (const auto& [ticket, blocks] : beside) taken.insert(blocks.begin(), blocks.end());
    std::vector<std::int64_t> found;
    for (const std::int64_t block : some_ids(cache.blocks(), rng)) {
      if (!taken.count(block) && found.size() < n) found.push_back(block);
    }
    return found;
  }

  sloserve::FakeStream* compute() { return gpu.stream_of(nullptr); }

  // A step of the engine writes a block.
  void write(std::int64_t block) {
    const auto value = static_cast<unsigned char>(rng());
    auto& bytes = device[static_cast<std::size_t>(block)];
    std::fill(bytes.begin(), bytes.end(), value);
    compute()->push_back({[this, block, value] {
      for (const std::size_t one : at[static_cast<std::size_t>(block)]) cache.memory[one] = value;
    }, {}, {}, 0});
  }

  void told(const std::vector<sloserve::KvEnded>& ended) {
    for (const auto& one : ended) {
      require(one.link_s >= 0 && one.bytes % static_cast<std::int64_t>(at[0].size()) == 0, "what is told of a copy");
      if (one.to_host) {
        require(stores.erase(one.ticket) == 1, "a store that is told twice");
        continue;
      }
      for (const std::int64_t block : loading.at(one.ticket)) {
        require(seen(block) == device[static_cast<std::size_t>(block)], "loaded block");
      }
      loading.erase(one.ticket);
    }
  }

  void go() {
    const sloserve::KvCopyLayout layout(cache.regions(), cache.blocks());
    const std::int64_t bytes = layout.block_bytes();
    const bool staged = !layout.one_run() || rng() % 2;
    const std::int64_t least = 2 * static_cast<std::int64_t>(sloserve::kKvSlices) * bytes;
    const auto span = static_cast<std::int64_t>(1 + rng() % host.size());
    driver.span_bytes = span * bytes, driver.pinned = pool.data();
    sloserve::KvTransfer<sloserve::Gpu> transfer(
        gpu, layout, {pool.data(), static_cast<std::int64_t>(host.size()), span},
        staged ? least + static_cast<std::int64_t>(rng() % 3) * least : 0);
    require(transfer.staging_bytes() <= 3 * least && (transfer.staging_bytes() == 0) == !staged, "staging");
    for (int round = 0; round < 24; ++round) {
      const auto kind = rng() % 4;
      const auto blocks = free_blocks(1 + rng() % 6);
      auto hosts = some_ids(static_cast<std::int64_t>(host.size()), rng);
      hosts.resize(std::min(hosts.size(), blocks.size()));
      const std::size_t n = hosts.size();
      if (kind == 0) told(transfer.ended());
      if (!beside.empty() && rng() % 3 == 0) {
        // Blocks of one of them are another request's in the next step, and those of the stores before it.
        const auto last = beside.begin() + static_cast<std::ptrdiff_t>(rng() % beside.size());
        transfer.await_store(last->first, compute());
        for (auto one = beside.begin(); one <= last; ++one) {
          for (const std::int64_t block : one->second) write(block);
        }
        beside.erase(beside.begin(), last + 1);
      }
      if (n == 0) continue;
      if (kind == 1 || kind == 2) {
        const bool is_beside = rng() % 2;
        const std::int64_t ticket = transfer.store(blocks.data(), hosts.data(), n, compute(), is_beside);
        stores.insert(ticket);
        for (std::size_t i = 0; i < n; ++i) host[static_cast<std::size_t>(hosts[i])] = device[static_cast<std::size_t>(blocks[i])];
        if (is_beside) {
          beside.push_back({ticket, {blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(n)}});
          continue;
        }
        // The blocks are another request's in the next step.
        for (std::size_t i = 0; i < n; ++i) write(blocks[i]);
      } else if (kind == 3) {
        // The step that runs may still write the blocks.
        for (std::size_t i = 0; i < n; ++i) write(blocks[i]);
        const std::int64_t ticket = transfer.load(blocks.data(), hosts.data(), n, compute());
        for (std::size_t i = 0; i < n; ++i) device[static_cast<std::size_t>(blocks[i])] = host[static_cast<std::size_t>(hosts[i])];
        loading[ticket].assign(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(n));
        ++loaded;
      }
      driver.steps(6);
    }
    driver.finish(*compute());
    for (int polls = 0; !transfer.idle(); ++polls) {
      told(transfer.ended());
      require(polls < 100000, "a copy that never ends");
    }
    require(loading.empty() && stores.empty(), "all copies are told");
    for (std::int64_t block = 0; block < cache.blocks(); ++block) {
      require(seen(block) == device[static_cast<std::size_t>(block)], "a device block at the end");
    }
    for (std::size_t block = 0; block < host.size(); ++block) {
      const auto first = pool.begin() + static_cast<std::ptrdiff_t>(block * at[0].size());
      require(std::equal(host[block].begin(), host[block].end(), first), "a host block at the end");
    }
  }
};

// Whatever operation fails: nothing is under way afterwards, all is given back, and later copies are refused.
void fails(std::uint64_t seed) {
  Run run(seed);
  const sloserve::KvCopyLayout layout(run.cache.regions(), run.cache.blocks());
  const auto blocks = static_cast<std::int64_t>(run.host.size());
  run.driver.span_bytes = 0;
  run.driver.fail_after = static_cast<std::int64_t>(seed % 90);
  bool made = false;
  try {
    sloserve::KvTransfer<sloserve::Gpu> transfer(run.gpu, layout, {run.pool.data(), blocks, blocks},
                                                 layout.one_run() ? 0 : 8 * layout.block_bytes());
    made = true;
    const std::int64_t block = 0;
    for (int i = 0; i < 20; ++i) {
      transfer.store(&block, &block, 1, run.compute());
      run.driver.steps(30);
      transfer.load(&block, &block, 1, run.compute());
      transfer.ended();
    }
  } catch (const std::runtime_error&) {
    // ~KvTransfer finds streams with nothing left, or frees what its constructor had made.
  }
  run.require(made || seed % 90 < 60, "made");
  run.driver.fail_after = -1;
  run.driver.finish(*run.compute());
}

}  // namespace

int main(int, char** argv) {
  const auto seeds = static_cast<std::uint64_t>(std::atoll(argv[1]));
  std::int64_t loaded = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    Run run(seed);
    run.go();
    loaded += run.loaded;
    fails(seed);
  }
  std::printf("%llu runs, %s loads\n", static_cast<unsigned long long>(seeds), loaded > static_cast<std::int64_t>(seeds) ? "many" : "few");
}
