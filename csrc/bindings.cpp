// The one file that binds csrc/ to Python. Checks what the types of the arguments cannot say (the launchers check sizes and
// ranges) and hands results over without a copy. std::invalid_argument arrives in Python as ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sloserve/rank.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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

}  // namespace

NB_MODULE(_csrc, m) {
  m.doc() = "Compiled kernels of sloserve; use the typed wrappers in sloserve.kernels.";
  m.def(
      "top_k",
      [](const Column<double>& keys, const Column<std::int64_t>& seqs, std::int64_t k) {
        return to_numpy(sloserve::top_k(keys.data(), keys.shape(0), seqs.data(), seqs.shape(0), k));
      },
      "keys"_a.noconvert(), "seqs"_a.noconvert(), "k"_a);
}
