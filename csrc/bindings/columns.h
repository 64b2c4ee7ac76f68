// Columns of the request table as Python gives them, by name. They keep the arrays alive, which kernels read through pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arrays.h"
#include "sloserve/request_columns.h"
#include "sloserve/step_budget.h"

namespace sloserve::bindings {

struct ProgressArrays {
  Column<std::int64_t> prompt_tokens, output_tokens, computed_tokens, swapped_tokens, hit_tokens;

  // Length of the columns. Throws std::invalid_argument where they differ.
  std::size_t capacity() const {
    return capacity_of(prompt_tokens, output_tokens, computed_tokens, swapped_tokens, hit_tokens);
  }

  ProgressColumns columns() const {
    return {.prompt = prompt_tokens.data(),
            .output = output_tokens.data(),
            .computed = computed_tokens.data(),
            .swapped = swapped_tokens.data(),
            .hit = hit_tokens.data()};
  }

  // As above. Throws std::invalid_argument for tokens that no request has in these slots.
  ProgressColumns columns(const Slots& slots) const {
    const ProgressColumns found = columns();
    found.check(slots);
    return found;
  }
};

struct PromiseArrays {
  Column<double> arrival_s, ttft_s, tpot_s, tds, e2e_s, first_token_s;
  Column<std::int64_t> output_tokens, in_flight_tokens;

  // Length of the columns. Throws std::invalid_argument where they differ.
  std::size_t capacity() const {
    return capacity_of(arrival_s, ttft_s, tpot_s, tds, e2e_s, first_token_s, output_tokens, in_flight_tokens);
  }

  PromiseColumns columns() const {
    return {.arrival_s = arrival_s.data(),
            .ttft_s = ttft_s.data(),
            .tpot_s = tpot_s.data(),
            .tds = tds.data(),
            .e2e_s = e2e_s.data(),
            .first_token_s = first_token_s.data(),
            .output_tokens = output_tokens.data(),
            .in_flight_tokens = in_flight_tokens.data()};
  }
};

}  // namespace sloserve::bindings
