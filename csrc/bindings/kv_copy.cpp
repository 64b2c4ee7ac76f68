// Copies of KV blocks on the CPU.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/kv_copy.h"

namespace sloserve::bindings {

void bind_kv_copy(nb::module_& m) {
  m.attr("MOST_KV_THREADS") = kMostKvThreads;
  m.def(
      "copy_blocks",
      [](const Matrix<std::int64_t>& regions, std::int64_t num_blocks, std::int64_t pool_base, std::int64_t pool_blocks,
         const Column<std::int64_t>& device_ids, const Column<std::int64_t>& host_ids, bool to_host, std::int64_t threads) {
        if (regions.shape(1) != 3) {
          throw std::invalid_argument("regions: " + std::to_string(regions.shape(1)) +
                                      " columns; there must be 3: base, stride, bytes");
        }
        std::vector<KvRegion> all;
        for (std::size_t i = 0; i < regions.shape(0); ++i) {
          const std::int64_t* row = regions.data() + 3 * i;
          all.push_back({.base = static_cast<std::uint64_t>(row[0]), .stride = row[1], .bytes = row[2]});
        }
        check_within("pool_base", pool_base, 0, std::numeric_limits<std::int64_t>::max());
        auto* pool = reinterpret_cast<unsigned char*>(pool_base);
        nb::gil_scoped_release others_run;
        copy_blocks(KvCopyLayout(all, num_blocks), pool, pool_blocks, device_ids.data(), device_ids.shape(0),
                    host_ids.data(), host_ids.shape(0), to_host, threads);
      },
      "regions"_a.noconvert(), nb::kw_only(), "num_blocks"_a, "pool_base"_a, "pool_blocks"_a, "device_ids"_a.noconvert(),
      "host_ids"_a.noconvert(), "to_host"_a, "threads"_a);
}

}  // namespace sloserve::bindings
