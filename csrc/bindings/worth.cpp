// What a request is worth that runs or waits.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/forecast.h"
#include "sloserve/survival.h"
#include "sloserve/worth.h"

namespace sloserve::bindings {

void bind_worth(nb::module_& m) {
  m.def(
      "survival",
      [](const Matrix<double>& longer, std::int64_t stride, const Column<std::int64_t>& class_id,
         const Column<std::int64_t>& output_tokens, const Column<std::int64_t>& max_tokens,
         const Column<std::int64_t>& ahead) {
        const std::size_t n = class_id.shape(0);
        if (output_tokens.shape(0) != n || max_tokens.shape(0) != n) {
          throw std::invalid_argument("class_id, output_tokens and max_tokens must be of one length");
        }
        std::vector<double> runs(n * ahead.shape(0));
        survival(longer.data(), longer.shape(0), longer.shape(1), stride, class_id.data(), output_tokens.data(),
                 max_tokens.data(), n, ahead.data(), ahead.shape(0), runs.data());
        return to_numpy(std::move(runs));
      },
      "longer"_a.noconvert(), "stride"_a, "class_id"_a.noconvert(), "output_tokens"_a.noconvert(),
      "max_tokens"_a.noconvert(), "ahead"_a.noconvert());
  m.def(
      "mean_left",
      [](const Matrix<double>& longer, const Matrix<double>& beyond, std::int64_t stride,
         const Column<std::int64_t>& class_id, const Column<std::int64_t>& output_tokens,
         const Column<std::int64_t>& max_tokens) {
        const std::size_t n = class_id.shape(0);
        if (output_tokens.shape(0) != n || max_tokens.shape(0) != n) {
          throw std::invalid_argument("class_id, output_tokens and max_tokens must be of one length");
        }
        check_shape("beyond", beyond, longer.shape(0), longer.shape(1));
        std::vector<double> mean(n);
        mean_left(longer.data(), beyond.data(), longer.shape(0), longer.shape(1), stride, class_id.data(),
                  output_tokens.data(), max_tokens.data(), n, mean.data());
        return to_numpy(std::move(mean));
      },
      "longer"_a.noconvert(), "beyond"_a.noconvert(), "stride"_a, "class_id"_a.noconvert(),
      "output_tokens"_a.noconvert(), "max_tokens"_a.noconvert());
  m.def(
      "how_many_fit",
      [](const Matrix<double>& runs, const Column<double>& tokens, const Column<double>& grown, double block_size,
         const Column<std::int64_t>& held, const Column<std::int64_t>& asked, double capacity, double sigmas) {
        check_shape("runs", runs, tokens.shape(0), grown.shape(0));
        return how_many_fit(runs.data(), tokens.shape(0), grown.shape(0), tokens.data(), grown.data(), block_size,
                            held.data(), held.shape(0), asked.data(), asked.shape(0), capacity, sigmas);
      },
      "runs"_a.noconvert(), "tokens"_a.noconvert(), "grown"_a.noconvert(), "block_size"_a, "held"_a.noconvert(),
      "asked"_a.noconvert(), "capacity"_a, "sigmas"_a);
  m.def(
      "worth",
      [](const Matrix<double>& requests, std::size_t queued, const Matrix<double>& runs, const Column<double>& ahead,
         const Column<double>& engine) {
        const std::size_t n = requests.shape(1);
        if (requests.shape(0) != kWorthRows || runs.shape(0) != n || runs.shape(1) != ahead.shape(0) ||
            engine.shape(0) != sizeof(WorthEngine) / sizeof(double)) {
          throw std::invalid_argument("requests, runs, ahead and engine do not fit together");
        }
        const double* e = engine.data();
        std::vector<double> gain(n), cost(n);
        const double wait_s =
            worth(requests.data(), n, queued, runs.data(), ahead.data(), ahead.shape(0),
                  {e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7], e[8], e[9], e[10], e[11], e[12]}, gain.data(), cost.data());
        return std::tuple(to_numpy(std::move(gain)), to_numpy(std::move(cost)), wait_s);
      },
      "requests"_a.noconvert(), "queued"_a, "runs"_a.noconvert(), "ahead"_a.noconvert(), "engine"_a.noconvert());
}

}  // namespace sloserve::bindings
