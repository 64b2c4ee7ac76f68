// Search of a fleet's plans.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "module.h"
#include "sloserve/fleet_search.h"

namespace sloserve::bindings {

void bind_fleet(nb::module_& m) {
  m.def(
      "fleet_search",
      [](const Column<std::int64_t>& model, const Column<double>& first_due, const Column<double>& last_due,
         const Column<double>& weight, const Matrix<double>& work, const Matrix<double>& judged, const Matrix<double>& own,
         const Column<std::int64_t>& kind, const Column<std::int64_t>& active, const Column<double>& ready,
         const Column<double>& drained, const Matrix<double>& swap, double min_active, double swap_price,
         const Column<std::int64_t>& order, const Column<std::int64_t>& sizes, std::int64_t moves, std::uint64_t seed) {
        const std::size_t groups = model.shape(0), n = kind.shape(0), models = swap.shape(1), kinds = work.shape(0);
        check_size("first_due", first_due.shape(0), groups, "groups");
        check_size("last_due", last_due.shape(0), groups, "groups");
        check_size("weight", weight.shape(0), groups, "groups");
        check_shape("work", work, kinds, groups);
        check_shape("judged", judged, kinds, groups);
        check_shape("own", own, kinds, groups);
        check_size("active", active.shape(0), n, "instances");
        check_size("ready", ready.shape(0), n, "instances");
        check_size("drained", drained.shape(0), n, "instances");
        check_shape("swap", swap, n * (models + 1), models);
        const Fleet fleet{.groups = groups,
                          .instances = n,
                          .models = models,
                          .kinds = kinds,
                          .model = model.data(),
                          .work = work.data(),
                          .judged = judged.data(),
                          .own = own.data(),
                          .first_due = first_due.data(),
                          .last_due = last_due.data(),
                          .weight = weight.data(),
                          .kind = kind.data(),
                          .active = active.data(),
                          .ready = ready.data(),
                          .drained = drained.data(),
                          .swap = swap.data(),
                          .min_active = min_active,
                          .swap_price = swap_price};
        FleetResult found;
        {
          nb::gil_scoped_release others_run;
          found = fleet_search(fleet, {order.data(), order.data() + order.shape(0)},
                               {sizes.data(), sizes.data() + sizes.shape(0)}, moves, seed);
        }
        return std::tuple(to_numpy(std::move(found.order)), to_numpy(std::move(found.sizes)), found.cost, found.late,
                          found.start_cost, found.start_late);
      },
      nb::kw_only(), "model"_a.noconvert(), "first_due_s"_a.noconvert(), "last_due_s"_a.noconvert(), "weight"_a.noconvert(),
      "work_s"_a.noconvert(), "judged_s"_a.noconvert(), "own_s"_a.noconvert(), "kind"_a.noconvert(), "active"_a.noconvert(),
      "ready_s"_a.noconvert(), "drained_s"_a.noconvert(), "swap_s"_a.noconvert(), "min_active_s"_a, "swap_price"_a,
      "order"_a.noconvert(), "sizes"_a.noconvert(), "moves"_a, "seed"_a);
}

}  // namespace sloserve::bindings
