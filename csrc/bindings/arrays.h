// How arrays of numpy are taken and given. What a type cannot say (sizes and ranges) the launchers check, which throw
// std::invalid_argument: it arrives in Python as ValueError. Results are handed over without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sloserve::bindings {

namespace nb = nanobind;
using namespace nb::literals;

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
void check_shape(const char* name, const Matrix<T>& matrix, std::size_t rows, std::size_t columns) {
  if (matrix.shape(0) != rows || matrix.shape(1) != columns) {
    throw std::invalid_argument(std::string(name) + ": shape [" + std::to_string(matrix.shape(0)) + ", " +
                                std::to_string(matrix.shape(1)) + "] is not [" + std::to_string(rows) + ", " +
                                std::to_string(columns) + "]");
  }
}

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

}  // namespace sloserve::bindings
