// The one file that binds csrc/ to Python. Checks what the types of the arguments cannot say (the launchers check sizes and
// ranges) and hands results over without a copy. std::invalid_argument arrives in Python as ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "sloserve/anneal.h"
#include "sloserve/batch_plan.h"
#include "sloserve/exhaustive.h"
#include "sloserve/rank.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
using OwnedColumn = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
OwnedColumn<T> to_numpy(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return OwnedColumn<T>(data, {size}, owner);
}

std::vector<sloserve::BatchRequest> to_requests(const Matrix<double>& columns) {
  return sloserve::batch_requests(columns.data(), columns.shape(0), columns.shape(1));
}

// order, sizes, met, latency_s
auto to_tuple(sloserve::BatchPlan plan) {
  return std::tuple(to_numpy(std::move(plan.order)), to_numpy(std::move(plan.sizes)), plan.score.met, plan.score.latency_s);
}

}  // namespace

NB_MODULE(_csrc, m) {
  m.doc() = "Compiled kernels of sloserve; use the typed wrappers in sloserve.kernels.";
  m.def(
      "top_k",
      [](const Column<double>& keys, const Column<std::int64_t>& seqs, std::int64_t k) {
        return to_numpy(sloserve::top_k(keys.data(), keys.shape(0), seqs.data(), seqs.shape(0), k));
      },
      "keys"_a.noconvert(), "seqs"_a.noconvert(), "k"_a);
  m.def(
      "anneal",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed, double initial, double final, double tau,
         std::int64_t moves, std::uint64_t seed) {
        return to_tuple(sloserve::anneal(to_requests(requests), max_batch, fixed, {initial, final, tau, moves}, seed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a, "initial"_a, "final"_a, "tau"_a, "moves"_a, "seed"_a);
  m.def(
      "exhaustive",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed) {
        return to_tuple(sloserve::exhaustive(to_requests(requests), max_batch, fixed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a);
}
