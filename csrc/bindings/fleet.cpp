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
      [](const Column<std::int64_t>& model, const Matrix<double>& dues, const Matrix<double>& work, const Matrix<double>& judged,
         const Matrix<double>& own, const Matrix<std::int64_t>& instances, const Matrix<double>& busy, const Matrix<double>& swap,
         double min_active, double swap_price, const Column<std::int64_t>& order, const Column<std::int64_t>& sizes,
         std::int64_t moves, std::uint64_t seed) {
        const std::size_t groups = model.shape(0), n = instances.shape(1), models = swap.shape(1), kinds = work.shape(0);
        check_shape("dues", dues, 3, groups);
        check_shape("work", work, kinds, groups);
        check_shape("judged", judged, kinds, groups);
        check_shape("own", own, kinds, groups);
        check_shape("instances", instances, 2, n);
        check_shape("busy", busy, 2, n);
        check_shape("swap", swap, n * (models + 1), models);
        const Fleet fleet{groups,
                          n,
                          models,
                          kinds,
                          model.data(),
                          work.data(),
                          judged.data(),
                          own.data(),
                          dues.data(),
                          dues.data() + groups,
                          dues.data() + 2 * groups,
                          instances.data(),
                          instances.data() + n,
                          busy.data(),
                          busy.data() + n,
                          swap.data(),
                          min_active,
                          swap_price};
        FleetResult found;
        {
          nb::gil_scoped_release others_run;
          found = fleet_search(fleet, {order.data(), order.data() + order.shape(0)},
                               {sizes.data(), sizes.data() + sizes.shape(0)}, moves, seed);
        }
        return std::tuple(to_numpy(std::move(found.order)), to_numpy(std::move(found.sizes)), found.cost, found.late,
                          found.start_cost, found.start_late);
      },
      "model"_a.noconvert(), "dues"_a.noconvert(), "work"_a.noconvert(), "judged"_a.noconvert(), "own"_a.noconvert(),
      "instances"_a.noconvert(), "busy"_a.noconvert(), "swap"_a.noconvert(), "min_active"_a, "swap_price"_a,
      "order"_a.noconvert(), "sizes"_a.noconvert(), "moves"_a, "seed"_a);
}

}  // namespace sloserve::bindings
