// Orders of batches: annealed and exhaustive.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/anneal.h"
#include "sloserve/batch_plan.h"
#include "sloserve/exhaustive.h"

namespace sloserve::bindings {

namespace {

std::vector<BatchRequest> to_requests(const Matrix<double>& columns) {
  return batch_requests(columns.data(), columns.shape(0), columns.shape(1));
}

// order, sizes, met, latency_s
auto to_tuple(BatchPlan plan) {
  return std::tuple(to_numpy(std::move(plan.order)), to_numpy(std::move(plan.sizes)), plan.score.met, plan.score.latency_s);
}

}  // namespace

void bind_anneal(nb::module_& m) {
  m.def(
      "anneal",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed, double initial, double final, double tau,
         std::int64_t moves, std::uint64_t seed) {
        return to_tuple(anneal(to_requests(requests), max_batch, fixed, {initial, final, tau, moves}, seed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a, "initial"_a, "final"_a, "tau"_a, "moves"_a, "seed"_a);
  m.def(
      "exhaustive",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed) {
        return to_tuple(exhaustive(to_requests(requests), max_batch, fixed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a);
}

}  // namespace sloserve::bindings
