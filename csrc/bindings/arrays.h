// How arrays of numpy are taken and given. What a type cannot say (sizes and ranges) the launchers check, which throw
// std::invalid_argument: it arrives in Python as ValueError. Results are handed over without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sloserve/request_columns.h"

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

// Throws std::invalid_argument where `found` elements are not one for each of `wanted`.
inline void check_size(const char* name, std::size_t found, std::size_t wanted, const char* of) {
  if (found != wanted) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(found) + " elements for " + std::to_string(wanted) + " " +
                                of + "; there must be one for each");
  }
}

// An element of what a kernel found. Throws std::out_of_range, in Python IndexError, for a place that is none.
template <typename T>
T at_place(const std::vector<T>& found, std::size_t place) {
  if (place >= found.size()) {
    throw std::out_of_range("place " + std::to_string(place) + " of " + std::to_string(found.size()));
  }
  return found[place];
}

// Length of the columns, the same for all. Throws std::invalid_argument where it is not.
template <typename First, typename... Others>
std::size_t capacity_of(const Column<First>& first, const Column<Others>&... others) {
  const std::size_t capacity = first.shape(0);
  const auto check = [&](std::size_t size) {
    if (size != capacity) {
      throw std::invalid_argument("columns of several lengths: " + std::to_string(capacity) + " and " + std::to_string(size));
    }
  };
  (check(others.shape(0)), ...);
  return capacity;
}

// Throws std::invalid_argument for a slot that the columns do not have.
inline Slots slots_of(const Column<std::int64_t>& slots, std::size_t capacity) {
  const Slots found{slots.data(), slots.shape(0)};
  found.check(capacity);
  return found;
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

// A new column whose i-th value is of(i).
template <typename T, typename Of>
OwnedColumn<T> made(std::size_t size, const Of& of) {
  auto values = std::make_unique<T[]>(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = of(i);
  T* data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  values.release();
  return OwnedColumn<T>(data, {size}, owner);
}

}  // namespace sloserve::bindings
