// The batch size whose pack gains most, where what each item gains depends on how many are served together.
//
// Source: Andes, Sec. 4.3 and Algorithm 1. Differs: the pack is by price unless the paper's is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sloserve/knapsack.h"
#include "sloserve/knapsack_priced.h"

namespace sloserve {

// kGreedy and kPaper are pack_greedy, which passes a misfit over or stops at it.
enum class PackRule { kPriced, kGreedy, kPaper };

struct BatchChoice {
  std::int64_t batch_size;
  std::vector<std::int64_t> chosen;
  double gain;
};

// Of several batch sizes the one whose pack of at most so many items gains most, the first of equals.
//
// sack.gain: num_rows rows of sack.size gains, one row for each batch size.
// Throws as pack_greedy, and without a batch size or for one below 1.
inline BatchChoice best_batch(const Knapsack& sack, std::size_t num_rows, std::size_t num_weights, const std::int64_t* seq,
                              std::size_t num_seqs, const std::int64_t* batch_sizes, std::size_t num_batch_sizes, PackRule rule) {
  if (num_batch_sizes == 0) throw std::invalid_argument("batch_sizes: there is none to choose from; give one at least");
  detail::check_count("gain_by_batch", num_rows, "batch sizes", num_batch_sizes);
  detail::check_count("weight", num_weights, "gains of each batch size", sack.size);
  detail::check_count("seq", num_seqs, "gains of each batch size", sack.size);
  detail::check_not_negative("capacity", sack.capacity);
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (batch_sizes[row] < 1) {
      throw std::invalid_argument("batch_sizes: " + std::to_string(batch_sizes[row]) + "; the least is 1");
    }
  }
  detail::check_gains(sack.gain, num_rows * sack.size);
  detail::check_weights(sack.weight, sack.size);
  detail::Pricer pricer;
  std::vector<detail::Dense> items;
  std::vector<std::int64_t> chosen;
  BatchChoice best{batch_sizes[0], {}, 0.0};
  std::size_t best_row = 0;
  for (std::size_t turn = 0; turn < num_rows; ++turn) {
    // From the middle outwards: there the best is mostly found, and sets the others a gain to reach.
    const std::size_t row = turn % 2 == 0 ? num_rows / 2 + turn / 2 : num_rows / 2 - (turn + 1) / 2;
    const Knapsack one{sack.gain + row * sack.size, sack.weight, sack.size, sack.capacity};
    const std::size_t most = static_cast<std::size_t>(batch_sizes[row]);
    chosen.clear();
    if (rule == PackRule::kPriced) {
      if (!pricer.pack(one, seq, most, best.gain, chosen)) continue;
    } else {
      detail::pack_dense(one, seq, most, rule == PackRule::kPaper, items, chosen);
    }
    const double gain = detail::gain_of(one.gain, chosen);
    if (gain > best.gain || (gain == best.gain && row < best_row)) {
      best_row = row;
      best.batch_size = batch_sizes[row];
      best.chosen.swap(chosen);
      best.gain = gain;
    }
  }
  return best;
}

}  // namespace sloserve
