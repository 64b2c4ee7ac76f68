#include "module.h"

NB_MODULE(_csrc, m) {
  m.doc() = "Compiled kernels of sloserve; use the typed wrappers in sloserve.core.kernels.";
  sloserve::bindings::bind_anneal(m);
  sloserve::bindings::bind_knapsack(m);
  sloserve::bindings::bind_digest(m);
  sloserve::bindings::bind_kv_layout(m);
  sloserve::bindings::bind_worth(m);
  sloserve::bindings::bind_requests(m);
  sloserve::bindings::bind_step_budget(m);
  sloserve::bindings::bind_step_counts(m);
  sloserve::bindings::bind_kv_copy(m);
  sloserve::bindings::bind_kv_reservation(m);
  sloserve::bindings::bind_kv_hosting(m);
  sloserve::bindings::bind_fleet(m);
  sloserve::bindings::bind_fit(m);
}
