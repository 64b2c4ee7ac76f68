// What the requests of a step can bear.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "columns.h"
#include "facts.h"
#include "module.h"
#include "sloserve/step_budget.h"

namespace sloserve::bindings {

void bind_step_budget(nb::module_& m) {
  bind_facts<PromiseArrays>(m, "PromiseColumns",
                            "Columns of the request table that say what requests were promised and how far they are, by slot.",
                            Fact<&PromiseArrays::arrival_s>{"arrival_s"}, Fact<&PromiseArrays::ttft_s>{"ttft_s"},
                            Fact<&PromiseArrays::tpot_s>{"tpot_s"}, Fact<&PromiseArrays::tds>{"tds"},
                            Fact<&PromiseArrays::e2e_s>{"e2e_s"}, Fact<&PromiseArrays::first_token_s>{"first_token_s"},
                            Fact<&PromiseArrays::output_tokens>{"output_tokens"},
                            Fact<&PromiseArrays::in_flight_tokens>{"in_flight_tokens"});
  m.def(
      "any_promised",
      [](const PromiseArrays& columns, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, columns.capacity());
        const PromiseColumns promises = columns.columns();
        for (std::size_t i = 0; i < of.size; ++i) {
          if (promises.promised(of[i])) return true;
        }
        return false;
      },
      "columns"_a, "slots"_a.noconvert());
  nb::class_<Decoding>(m, "Decoding")
      .def(
          "__init__",
          [](Decoding* self, const PromiseArrays& columns, const Column<std::int64_t>& slots, const Column<double>& left,
             const Column<double>& per_step, double starts_s, double alone_s, double headroom,
             double spend_tokens) {
            const Slots of = slots_of(slots, columns.capacity());
            check_size("left", left.shape(0), of.size, "requests");
            check_size("per_step", per_step.shape(0), of.size, "requests");
            new (self) Decoding(columns.columns(), of, left.data(), per_step.data(),
                                {.starts_s = starts_s, .alone_s = alone_s, .headroom = headroom, .spend_tokens = spend_tokens});
          },
          "columns"_a, "slots"_a.noconvert(), nb::kw_only(), "left"_a.noconvert(),
          "per_step"_a.noconvert(), "starts_s"_a, "alone_s"_a, "headroom"_a, "spend_tokens"_a)
      .def("__len__", [](const Decoding& self) { return self.bearable().size(); })
      .def(
          "bearable_s", [](const Decoding& self, std::size_t place) { return at_place(self.bearable(), place); }, "place"_a)
      .def_prop_ro("lost_already", &Decoding::lost_already)
      .def("lost", &Decoding::lost, nb::kw_only(), "step_s"_a, "rate"_a, "pending"_a, "arrival_rate"_a);
  nb::class_<StepPrompts>(m, "StepPrompts")
      .def(
          "__init__",
          [](StepPrompts* self, const ProgressArrays& progress, const Column<std::int64_t>& in_progress,
             const Column<std::int64_t>& waiting, const KvLayout& layout, std::int64_t free_blocks) {
            const std::size_t capacity = progress.capacity();
            new (self) StepPrompts(progress.columns(), capacity, {in_progress.data(), in_progress.shape(0)},
                                   {waiting.data(), waiting.shape(0)}, layout, free_blocks);
          },
          "progress"_a, nb::kw_only(), "in_progress"_a.noconvert(), "waiting"_a.noconvert(), "layout"_a, "free_blocks"_a)
      .def("__len__", [](const StepPrompts& self) { return self.slots().size(); })
      .def_prop_ro("slots", [](const StepPrompts& self) { return to_numpy(self.slots()); }, nb::rv_policy::automatic)
      .def_prop_ro("startable", &StepPrompts::startable)
      .def(
          "end", [](const StepPrompts& self, std::size_t place) { return at_place(self.ends(), place); }, "place"_a)
      .def(
          "prefix", [](const StepPrompts& self, std::size_t place) { return at_place(self.prefix(), place); }, "place"_a)
      .def(
          "load",
          [](const StepPrompts& self, std::int64_t tokens) {
            const auto found = self.load(tokens);
            return std::tuple(found.tokens, found.prompts, found.pairs);
          },
          "tokens"_a)
      .def(
          "in_chunks",
          [](const StepPrompts& self, std::int64_t tokens, std::int64_t longest, std::int64_t multiple) {
            const auto found = self.in_chunks(tokens, longest, multiple);
            return std::tuple(found.tokens, found.prompts, found.pairs);
          },
          "tokens"_a, "longest"_a, "multiple"_a)
      .def(
          "promise",
          [](StepPrompts& self, const PromiseArrays& columns, const Column<double>& left, double step_s,
             double starts_s) {
            Slots{self.slots().data(), self.slots().size()}.check(columns.capacity());
            check_size("left", left.shape(0), self.slots().size(), "prompts");
            self.promise(columns.columns(), left.data(), step_s, starts_s);
          },
          "columns"_a, nb::kw_only(), "left"_a.noconvert(), "step_s"_a, "starts_s"_a)
      .def_prop_ro("slack_s", [](const StepPrompts& self) { return to_numpy(self.slack()); }, nb::rv_policy::automatic)
      .def("late", &StepPrompts::late, "rate"_a, "full_rate"_a)
      .def("late_by_token", &StepPrompts::late_by_token, "token_s"_a, "full_token_s"_a);
}

}  // namespace sloserve::bindings
