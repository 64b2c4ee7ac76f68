// Which requests of a queue share the KV cache.
#include <cstdint>
#include <optional>
#include <utility>

#include "arrays.h"
#include "module.h"
#include "sloserve/knapsack_exact.h"

namespace sloserve::bindings {

void bind_knapsack(nb::module_& m) {
  m.def(
      "pack_exact",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, std::int64_t capacity, std::int64_t num_items,
         bool at_most) -> std::optional<OwnedColumn<std::int64_t>> {
        const Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        auto chosen = pack_exact(sack, weight.shape(0), num_items, at_most);
        if (!chosen) return std::nullopt;
        return to_numpy(std::move(*chosen));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), nb::kw_only(), "capacity"_a, "num_items"_a, "at_most"_a);
}

}  // namespace sloserve::bindings
