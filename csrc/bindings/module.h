// What the files here bind to Python, of csrc/include.
#pragma once

#include <nanobind/nanobind.h>

namespace sloserve::bindings {

void bind_anneal(nanobind::module_& m);
void bind_knapsack(nanobind::module_& m);
void bind_digest(nanobind::module_& m);
void bind_worth(nanobind::module_& m);
void bind_requests(nanobind::module_& m);
void bind_step_budget(nanobind::module_& m);
void bind_step_counts(nanobind::module_& m);
void bind_kv_layout(nanobind::module_& m);
void bind_kv_copy(nanobind::module_& m);
void bind_kv_reservation(nanobind::module_& m);
void bind_kv_hosting(nanobind::module_& m);
void bind_fleet(nanobind::module_& m);
void bind_fit(nanobind::module_& m);

}  // namespace sloserve::bindings
