// Which requests of a queue share the KV cache.
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "module.h"
#include "sloserve/knapsack.h"
#include "sloserve/knapsack_batch.h"
#include "sloserve/knapsack_exact.h"
#include "sloserve/knapsack_priced.h"

namespace sloserve::bindings {

void bind_knapsack(nb::module_& m) {
  m.def(
      "pack_greedy",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         std::int64_t max_items, bool stop_at_misfit) {
        const Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        return to_numpy(pack_greedy(sack, weight.shape(0), seq.data(), seq.shape(0), max_items, stop_at_misfit));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), nb::kw_only(), "capacity"_a, "max_items"_a,
      "stop_at_misfit"_a);
  m.def(
      "pack_priced",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         std::int64_t max_items) {
        const Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        return to_numpy(pack_priced(sack, weight.shape(0), seq.data(), seq.shape(0), max_items));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), nb::kw_only(), "capacity"_a, "max_items"_a);
  nb::enum_<PackRule>(m, "PackRule")
      .value("PRICED", PackRule::kPriced)
      .value("GREEDY", PackRule::kGreedy)
      .value("PAPER", PackRule::kPaper);
  m.def(
      "best_batch",
      [](const Matrix<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         const Column<std::int64_t>& batch_sizes, PackRule rule) {
        const Knapsack sack{gain.data(), weight.data(), gain.shape(1), capacity};
        BatchChoice best = best_batch(sack, gain.shape(0), weight.shape(0), seq.data(), seq.shape(0),
                                      batch_sizes.data(), batch_sizes.shape(0), rule);
        return std::tuple(best.batch_size, to_numpy(std::move(best.chosen)), best.gain);
      },
      "gain_by_batch"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), nb::kw_only(), "capacity"_a,
      "batch_sizes"_a.noconvert(), "rule"_a);
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
