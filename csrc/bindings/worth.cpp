// What a request is worth that runs or waits.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/forecast.h"
#include "sloserve/survival.h"
#include "sloserve/worth.h"

namespace sloserve::bindings {

namespace {

LengthColumns lengths_of(const Columns<std::int64_t, 3>& columns) {
  return {columns[0].data(), columns[1].data(), columns[2].data()};
}

// Chances, and the arrays that they are looked up in.
struct ChancesOf {
  Matrix<double> longer;
  Columns<std::int64_t, 3> lengths;
  Column<std::int64_t> slots, ahead;
  Matrix<double> known;
  std::optional<Column<std::int64_t>> known_row;
  std::size_t capacity;
  Chances chances;

  ChancesOf(Matrix<double> longer_, std::int64_t stride, Columns<std::int64_t, 3> lengths_, Column<std::int64_t> slots_,
            Column<std::int64_t> ahead_, Matrix<double> known_, std::optional<Column<std::int64_t>> known_row_)
      : longer(std::move(longer_)),
        lengths(std::move(lengths_)),
        slots(std::move(slots_)),
        ahead(std::move(ahead_)),
        known(std::move(known_)),
        known_row(std::move(known_row_)),
        capacity(capacity_of(lengths)),
        chances({longer.data(), nullptr, longer.shape(0), longer.shape(1), stride}, lengths_of(lengths),
                slots_of(slots, capacity), ahead.data(), ahead.shape(0), known.data(),
                known_row ? known_row->data() : nullptr) {
    if (known_row) {
      check_size("known_row", known_row->shape(0), slots.shape(0), "requests");
      check_shape("known", known, known.shape(0), ahead.shape(0));
    }
    check_rows();
  }

  // The chances, to be looked up now: what they index with is Python's, and may have changed since it was checked.
  const Chances& checked() const {
    slots_of(slots, capacity);
    check_rows();
    chances.check();
    return chances;
  }

 private:
  void check_rows() const {
    if (!known_row) return;
    for (std::size_t i = 0; i < known_row->shape(0); ++i) {
      check_within("known_row", known_row->data()[i], -1, static_cast<std::int64_t>(known.shape(0)) - 1);
    }
  }
};

}  // namespace

void bind_worth(nb::module_& m) {
  nb::class_<ChancesOf>(m, "Chances")
      .def(nb::init<Matrix<double>, std::int64_t, Columns<std::int64_t, 3>, Column<std::int64_t>, Column<std::int64_t>,
                    Matrix<double>, std::optional<Column<std::int64_t>>>(),
           "longer"_a.noconvert(), "stride"_a, "lengths"_a.noconvert(), "slots"_a.noconvert(), "ahead"_a.noconvert(),
           "known"_a.noconvert(), "known_row"_a.noconvert().none())
      .def("matrix", [](const ChancesOf& self) {
        const Chances& chances = self.checked();
        const std::size_t steps = chances.steps();
        std::vector<double> runs(chances.size() * steps, 0.0);
        for (std::size_t i = 0; i < chances.size(); ++i) chances.row(i, runs.data() + i * steps);
        return to_numpy(std::move(runs));
      });
  m.def(
      "mean_left",
      [](const Matrix<double>& longer, const Matrix<double>& beyond, std::int64_t stride,
         const Columns<std::int64_t, 3>& lengths, const Column<std::int64_t>& slots) {
        check_shape("beyond", beyond, longer.shape(0), longer.shape(1));
        const Slots of = slots_of(slots, capacity_of(lengths));
        std::vector<double> mean(of.size);
        mean_left({longer.data(), beyond.data(), longer.shape(0), longer.shape(1), stride}, lengths_of(lengths), of,
                  mean.data());
        return to_numpy(std::move(mean));
      },
      "longer"_a.noconvert(), "beyond"_a.noconvert(), "stride"_a, "lengths"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "how_many_fit",
      [](const ChancesOf& runs, const Column<std::int64_t>& tokens, const Column<double>& grown, const KvLayout& layout,
         const Column<std::int64_t>& held, const Column<std::int64_t>& asked, double capacity, double sigmas) {
        check_size("tokens", tokens.shape(0), runs.chances.size(), "requests");
        check_size("grown", grown.shape(0), runs.chances.steps(), "steps");
        return how_many_fit(runs.checked(), tokens.data(), grown.data(), layout, held.data(), held.shape(0), asked.data(),
                            asked.shape(0), capacity, sigmas);
      },
      "runs"_a, "tokens"_a.noconvert(), "grown"_a.noconvert(), "layout"_a, "held"_a.noconvert(), "asked"_a.noconvert(),
      "capacity"_a, "sigmas"_a);
  m.def(
      "worth",
      [](const ChancesOf& runs, const KvLayout& layout, const Columns<double, 6>& stated, const Columns<std::int64_t, 4>& counts, std::size_t queued,
         const Column<double>& left, const Column<double>& per_step, const Column<std::int64_t>& prefill,
         const Column<double>& again_s,
         const Column<double>& weights, double now_s, const Column<double>& engine) {
        const std::size_t n = runs.chances.size();
        check_size("stated, counts", capacity_of(stated, counts), runs.capacity, "slots of the chances");
        check_size("left", left.shape(0), n, "requests");
        check_size("per_step", per_step.shape(0), n, "requests");
        check_size("prefill", prefill.shape(0), n, "requests");
        check_within("queued", static_cast<std::int64_t>(queued), 0, static_cast<std::int64_t>(n));
        check_size("again_s", again_s.shape(0), n - queued, "requests that run");
        check_size("engine", engine.shape(0), sizeof(WorthEngine) / sizeof(double), "facts");
        const WorthColumns columns{stated[0].data(), stated[1].data(), stated[2].data(), stated[3].data(), stated[4].data(),
                                   stated[5].data(), counts[0].data(), counts[1].data(), counts[2].data(), counts[3].data()};
        const WorthRequests requests{{runs.slots.data(), n}, queued,         left.data(),    per_step.data(),
                                     prefill.data(),         again_s.data(), weights.data(), weights.shape(0),
                                     now_s};
        WorthEngine facts;
        static_assert(std::is_trivially_copyable_v<WorthEngine>);
        std::memcpy(&facts, engine.data(), sizeof facts);
        std::vector<double> gain(n), cost(n);
        const double wait_s = worth(columns, requests, runs.checked(), layout, facts, gain.data(), cost.data());
        return std::tuple(to_numpy(std::move(gain)), to_numpy(std::move(cost)), wait_s);
      },
      "runs"_a, "layout"_a, "stated"_a.noconvert(), "counts"_a.noconvert(), "queued"_a, "left"_a.noconvert(), "per_step"_a.noconvert(), "prefill"_a.noconvert(),
      "again_s"_a.noconvert(), "weights"_a.noconvert(), "now_s"_a, "engine"_a.noconvert());
}

}  // namespace sloserve::bindings
