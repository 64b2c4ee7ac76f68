// Structs whose fields Python states by name: its only constructor takes keyword arguments. Each name stands beside the field
// that it sets, so that neither a caller nor a binding can put a value in the place of another.
#pragma once

#include <type_traits>
#include <utility>

#include "arrays.h"

namespace sloserve::bindings {

template <auto Field>
struct Fact {
  const char* name;
};

template <typename Struct, typename Value>
Value value_of(Value Struct::*);

template <auto Field>
using ValueOf = decltype(value_of(Field));

// An array of another type is refused, a number is converted.
template <typename Value>
nb::arg fact_argument(const char* name) {
  nb::arg argument(name);
  if constexpr (!std::is_arithmetic_v<Value>) argument.noconvert();
  return argument;
}

template <typename Struct, auto... Fields>
nb::class_<Struct> bind_facts(nb::module_& m, const char* name, const char* doc, Fact<Fields>... facts) {
  return nb::class_<Struct>(m, name, doc)
      .def(
          "__init__",
          [](Struct* self, ValueOf<Fields>... values) {
            new (self) Struct{};
            ((self->*Fields = std::move(values)), ...);
          },
          nb::kw_only(), fact_argument<ValueOf<Fields>>(facts.name)...);
}

}  // namespace sloserve::bindings
