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
  nb::enum_<sloserve::Column>(m, "BatchRow", nb::is_arithmetic(), "Rows of the matrix of requests to plan in batches.")
      .value("PREFILL_BASE_S", kPrefillBase)
      .value("PREFILL_SLOPE_S", kPrefillSlope)
      .value("DECODE_BASE_S", kDecodeBase)
      .value("DECODE_SLOPE_S", kDecodeSlope)
      .value("SHARE", kShare)
      .value("WAITED_S", kWaited)
      .value("TTFT_S", kTtft)
      .value("DECODE_LIMIT_S", kDecodeLimit)
      .value("E2E_S", kE2e);
  m.def(
      "anneal",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed, double initial, double final, double tau,
         std::int64_t moves, std::uint64_t seed) {
        return to_tuple(anneal(to_requests(requests), max_batch, fixed,
                               {.initial = initial, .final = final, .tau = tau, .moves = moves}, seed));
      },
      "requests"_a.noconvert(), "max_batch"_a, nb::kw_only(), "fixed"_a, "initial"_a, "final"_a, "tau"_a, "moves"_a, "seed"_a);
  m.def(
      "exhaustive",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed) {
        return to_tuple(exhaustive(to_requests(requests), max_batch, fixed));
      },
      "requests"_a.noconvert(), "max_batch"_a, nb::kw_only(), "fixed"_a);
}

}  // namespace sloserve::bindings
