// What a request is worth that runs or waits.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "facts.h"
#include "module.h"
#include "sloserve/forecast.h"
#include "sloserve/survival.h"
#include "sloserve/worth.h"

namespace sloserve::bindings {

namespace {

struct LengthArrays {
  Column<std::int64_t> class_id, output_tokens, max_tokens;

  // Length of the columns. Throws std::invalid_argument where they differ.
  std::size_t capacity() const { return capacity_of(class_id, output_tokens, max_tokens); }

  LengthColumns columns() const {
    return {.class_id = class_id.data(), .output_tokens = output_tokens.data(), .max_tokens = max_tokens.data()};
  }
};

struct WorthArrays {
  Column<double> arrival_s, ttft_s, tpot_s, tds, e2e_s, first_token_s;
  Column<std::int64_t> class_rank, prompt_tokens, output_tokens, max_tokens;

  // Length of the columns. Throws std::invalid_argument where they differ.
  std::size_t capacity() const {
    return capacity_of(arrival_s, ttft_s, tpot_s, tds, e2e_s, first_token_s, class_rank, prompt_tokens, output_tokens,
                       max_tokens);
  }

  WorthColumns columns() const {
    return {.arrival_s = arrival_s.data(),
            .ttft_s = ttft_s.data(),
            .tpot_s = tpot_s.data(),
            .tds = tds.data(),
            .e2e_s = e2e_s.data(),
            .first_token_s = first_token_s.data(),
            .class_rank = class_rank.data(),
            .prompt_tokens = prompt_tokens.data(),
            .output_tokens = output_tokens.data(),
            .max_tokens = max_tokens.data()};
  }
};

// Chances, and the arrays that they are looked up in.
struct ChancesOf {
  Matrix<double> longer;
  LengthArrays lengths;
  Column<std::int64_t> slots, ahead;
  Matrix<double> known;
  std::optional<Column<std::int64_t>> known_row;
  std::size_t capacity;
  Chances chances;

  ChancesOf(Matrix<double> longer_, std::int64_t stride, LengthArrays lengths_, Column<std::int64_t> slots_,
            Column<std::int64_t> ahead_, Matrix<double> known_, std::optional<Column<std::int64_t>> known_row_)
      : longer(std::move(longer_)),
        lengths(std::move(lengths_)),
        slots(std::move(slots_)),
        ahead(std::move(ahead_)),
        known(std::move(known_)),
        known_row(std::move(known_row_)),
        capacity(lengths.capacity()),
        chances({longer.data(), nullptr, longer.shape(0), longer.shape(1), stride}, lengths.columns(),
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

constexpr const char* kHowManyFitDoc =
    R"(Return how many of ``asked``, in order, fit into the KV cache beside ``held`` until all have ended.

None is counted after the first that does not fit. :mod:`sloserve.lso.forecast` says how the cache is foreseen.

Args:
    runs: the chances that each of ``n`` requests still runs at each of ``t`` steps.
    layout: the layout of the KV cache.
    tokens: ``[n]``, the tokens that each has in its KV, or will have when it is admitted.
    grown: ``[t]``, the tokens that come until each step.
    held: places of the running requests among the ``n``, contiguous.
    asked: places of the requests that ask for admission, contiguous.
    capacity: the blocks of the KV cache.
    sigmas: how many standard deviations of the sum are kept free.

Raises:
    ValueError: for a place outside the ``n``, or arrays that do not fit together.)";

constexpr const char* kWorthDoc =
    R"(Return gain, cost and urgency of ``n`` requests, ``[n]`` each, and the mean delay in seconds.

:mod:`sloserve.scheduler.auto.worth` says what they mean.

Args:
    runs: the chances that more tokens than it looks ahead are still to come.
    layout: the layout of the KV cache.
    engine: how fast the engine is, what it can hold, and what gains are weighed by.
    columns: columns of the request table.
    queued: how many of the first of the ``n`` requests wait.
    left: ``[n]``, the expected tokens still to come.
    per_step: ``[n]``, the tokens that a step is expected to bring, at least 1.
    prefill: ``[n]``, the tokens to compute before the next one.
    again_s: ``[n - queued]``, the seconds until each running request has its KV back.
    weights: the weight of each class rank; the last one holds for all ranks beyond.
    now_s: the time now in seconds, on the clock of ``arrival_s``.

Raises:
    ValueError: where these do not fit together.)";

}  // namespace

void bind_worth(nb::module_& m) {
  nb::class_<ChancesOf>(m, "Chances")
      .def(
          "__init__",
          [](ChancesOf* self, Matrix<double> longer, std::int64_t stride, Column<std::int64_t> class_id,
             Column<std::int64_t> output_tokens, Column<std::int64_t> max_tokens, Column<std::int64_t> slots,
             Column<std::int64_t> ahead, Matrix<double> known, std::optional<Column<std::int64_t>> known_row) {
            const LengthArrays lengths{.class_id = std::move(class_id),
                                       .output_tokens = std::move(output_tokens),
                                       .max_tokens = std::move(max_tokens)};
            new (self) ChancesOf(std::move(longer), stride, lengths, std::move(slots), std::move(ahead), std::move(known),
                                 std::move(known_row));
          },
          "longer"_a.noconvert(), nb::kw_only(), "stride"_a, "class_id"_a.noconvert(), "output_tokens"_a.noconvert(),
          "max_tokens"_a.noconvert(), "slots"_a.noconvert(), "ahead"_a.noconvert(), "known"_a.noconvert(),
          "known_row"_a.noconvert().none())
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
         const Column<std::int64_t>& class_id, const Column<std::int64_t>& output_tokens,
         const Column<std::int64_t>& max_tokens, const Column<std::int64_t>& slots) {
        check_shape("beyond", beyond, longer.shape(0), longer.shape(1));
        const LengthArrays lengths{.class_id = class_id, .output_tokens = output_tokens, .max_tokens = max_tokens};
        const Slots of = slots_of(slots, lengths.capacity());
        std::vector<double> mean(of.size);
        mean_left({longer.data(), beyond.data(), longer.shape(0), longer.shape(1), stride}, lengths.columns(), of,
                  mean.data());
        return to_numpy(std::move(mean));
      },
      "longer"_a.noconvert(), nb::kw_only(), "beyond"_a.noconvert(), "stride"_a, "class_id"_a.noconvert(),
      "output_tokens"_a.noconvert(), "max_tokens"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "how_many_fit",
      [](const ChancesOf& runs, const KvLayout& layout, const Column<std::int64_t>& tokens, const Column<double>& grown,
         const Column<std::int64_t>& held, const Column<std::int64_t>& asked, double capacity, double sigmas) {
        check_size("tokens", tokens.shape(0), runs.chances.size(), "requests");
        check_size("grown", grown.shape(0), runs.chances.steps(), "steps");
        return how_many_fit(runs.checked(), tokens.data(), grown.data(), layout, held.data(), held.shape(0), asked.data(),
                            asked.shape(0), capacity, sigmas);
      },
      "runs"_a, "layout"_a, nb::kw_only(), "tokens"_a.noconvert(), "grown"_a.noconvert(), "held"_a.noconvert(),
      "asked"_a.noconvert(), "capacity"_a, "sigmas"_a,
      kHowManyFitDoc);
  bind_facts<WorthArrays>(m, "WorthColumns", "Columns of the request table that gain and cost follow from, by slot.",
                          Fact<&WorthArrays::arrival_s>{"arrival_s"}, Fact<&WorthArrays::ttft_s>{"ttft_s"},
                          Fact<&WorthArrays::tpot_s>{"tpot_s"}, Fact<&WorthArrays::tds>{"tds"},
                          Fact<&WorthArrays::e2e_s>{"e2e_s"}, Fact<&WorthArrays::first_token_s>{"first_token_s"},
                          Fact<&WorthArrays::class_rank>{"class_rank"}, Fact<&WorthArrays::prompt_tokens>{"prompt_tokens"},
                          Fact<&WorthArrays::output_tokens>{"output_tokens"}, Fact<&WorthArrays::max_tokens>{"max_tokens"});
  bind_facts<WorthEngine>(m, "WorthEngine", R"(How fast the engine is, what it can hold, and what gains are weighed by.

Args:
    step_s: seconds of a step without prompts.
    full_s: seconds of a step that computes as many prompt tokens as it may.
    prompt_token_s: seconds of one prompt token in full steps.
    token_s: seconds that one more decode adds to a step.
    step_wait_s: seconds until the next token of a prompt, beside the time of its own tokens.
    kv_blocks: blocks of the KV cache.
    seats: the most requests that may run.
    wait_share: the share of the cost of all waiting requests after which a request that is not served now is served.
    late_wait_share: the same share where step time is short and many requests have no chance any more.
    late_at: the share of promised requests without a chance from which ``late_wait_share`` holds in full.
    reader_ttft_s: seconds until the first token that a reader expects who states only a speed.
    reader_tds: tokens per second of a reader who states only a first token.
    experience: the weight of a reader's experience.
    stretch: the weight of target over target and latency.
    unhurried_s: the target in seconds of a request that states none.
    price_power: the power of a machine's need, relative to the greatest, that is its price.
    tail: how much the longest waits of requests without targets count; 0 to serve the least cost first.)",
                          Fact<&WorthEngine::step_s>{"step_s"}, Fact<&WorthEngine::full_s>{"full_s"},
                          Fact<&WorthEngine::prompt_token_s>{"prompt_token_s"}, Fact<&WorthEngine::token_s>{"token_s"},
                          Fact<&WorthEngine::step_wait_s>{"step_wait_s"},
                          Fact<&WorthEngine::kv_blocks>{"kv_blocks"}, Fact<&WorthEngine::seats>{"seats"},
                          Fact<&WorthEngine::wait_share>{"wait_share"},
                          Fact<&WorthEngine::late_wait_share>{"late_wait_share"}, Fact<&WorthEngine::late_at>{"late_at"},
                          Fact<&WorthEngine::reader_ttft_s>{"reader_ttft_s"}, Fact<&WorthEngine::reader_tds>{"reader_tds"},
                          Fact<&WorthEngine::experience>{"experience"}, Fact<&WorthEngine::stretch>{"stretch"},
                          Fact<&WorthEngine::unhurried_s>{"unhurried_s"}, Fact<&WorthEngine::price_power>{"price_power"},
                          Fact<&WorthEngine::tail>{"tail"});
  m.def(
      "worth",
      [](const ChancesOf& runs, const KvLayout& layout, const WorthEngine& engine, const WorthArrays& columns,
         std::size_t queued, const Column<double>& left, const Column<double>& per_step, const Column<std::int64_t>& prefill,
         const Column<double>& again_s, const Column<double>& weights, double now_s) {
        const std::size_t n = runs.chances.size();
        check_size("columns", columns.capacity(), runs.capacity, "slots of the chances");
        check_size("left", left.shape(0), n, "requests");
        check_size("per_step", per_step.shape(0), n, "requests");
        check_size("prefill", prefill.shape(0), n, "requests");
        check_within("queued", static_cast<std::int64_t>(queued), 0, static_cast<std::int64_t>(n));
        check_size("again_s", again_s.shape(0), n - queued, "requests that run");
        const WorthRequests requests{.slots = {runs.slots.data(), n},
                                     .queued = queued,
                                     .left = left.data(),
                                     .per_step = per_step.data(),
                                     .prefill = prefill.data(),
                                     .again_s = again_s.data(),
                                     .weights = weights.data(),
                                     .ranks = weights.shape(0),
                                     .now_s = now_s};
        std::vector<double> gain(n), cost(n), urgency(n);
        const double wait_s =
            worth(columns.columns(), requests, runs.checked(), layout, engine, gain.data(), cost.data(), urgency.data());
        return std::tuple(to_numpy(std::move(gain)), to_numpy(std::move(cost)), to_numpy(std::move(urgency)), wait_s);
      },
      "runs"_a, "layout"_a, "engine"_a, "columns"_a, nb::kw_only(), "queued"_a, "left"_a.noconvert(), "per_step"_a.noconvert(),
      "prefill"_a.noconvert(), "again_s"_a.noconvert(), "weights"_a.noconvert(), "now_s"_a,
      kWorthDoc);
}

}  // namespace sloserve::bindings
