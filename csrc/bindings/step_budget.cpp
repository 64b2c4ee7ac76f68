// What the requests of a step can bear.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/step_budget.h"

namespace sloserve::bindings {

namespace {

using Promised = Columns<double, 6>;
using Made = Columns<std::int64_t, 2>;

PromiseColumns promises_of(const Promised& stated, const Made& tokens) {
  return {stated[0].data(), stated[1].data(), stated[2].data(), stated[3].data(),
          stated[4].data(), stated[5].data(), tokens[0].data(), tokens[1].data()};
}

}  // namespace

void bind_step_budget(nb::module_& m) {
  m.def(
      "any_promised",
      [](const Promised& stated, const Made& tokens, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(stated, tokens));
        const PromiseColumns columns = promises_of(stated, tokens);
        for (std::size_t i = 0; i < of.size; ++i) {
          if (columns.promised(of[i])) return true;
        }
        return false;
      },
      "stated"_a.noconvert(), "tokens"_a.noconvert(), "slots"_a.noconvert());
  nb::class_<Decoding>(m, "Decoding")
      .def(
          "__init__",
          [](Decoding* self, const Promised& stated, const Made& tokens, const Column<std::int64_t>& slots,
             const Column<double>& left, const Column<double>& per_step, double starts_s, double alone_s, double headroom, double spend_tokens) {
            const Slots of = slots_of(slots, capacity_of(stated, tokens));
            check_size("left", left.shape(0), of.size, "requests");
            check_size("per_step", per_step.shape(0), of.size, "requests");
            new (self) Decoding(promises_of(stated, tokens), of, left.data(), per_step.data(),
                                {starts_s, alone_s, headroom, spend_tokens});
          },
          "stated"_a.noconvert(), "tokens"_a.noconvert(), "slots"_a.noconvert(), "left"_a.noconvert(),
          "per_step"_a.noconvert(), "starts_s"_a, "alone_s"_a, "headroom"_a, "spend_tokens"_a)
      .def("__len__", [](const Decoding& self) { return self.bearable().size(); })
      .def(
          "bearable_s", [](const Decoding& self, std::size_t place) { return at_place(self.bearable(), place); }, "place"_a)
      .def_prop_ro("lost_already", &Decoding::lost_already)
      .def("lost", &Decoding::lost, "step_s"_a, "rate"_a, "pending"_a, "arrival_rate"_a);
  nb::class_<StepPrompts>(m, "StepPrompts")
      .def(
          "__init__",
          [](StepPrompts* self, const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& in_progress,
             const Column<std::int64_t>& waiting, const KvLayout& layout, std::int64_t free_blocks) {
            const std::size_t capacity = capacity_of(progress);
            new (self) StepPrompts(progress_of(progress), capacity, {in_progress.data(), in_progress.shape(0)},
                                   {waiting.data(), waiting.shape(0)}, layout, free_blocks);
          },
          "progress"_a.noconvert(), "in_progress"_a.noconvert(), "waiting"_a.noconvert(), "layout"_a, "free_blocks"_a)
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
          [](StepPrompts& self, const Promised& stated, const Made& tokens, const Column<double>& left, double step_s,
             double starts_s) {
            Slots{self.slots().data(), self.slots().size()}.check(capacity_of(stated, tokens));
            check_size("left", left.shape(0), self.slots().size(), "prompts");
            self.promise(promises_of(stated, tokens), left.data(), step_s, starts_s);
          },
          "stated"_a.noconvert(), "tokens"_a.noconvert(), "left"_a.noconvert(), "step_s"_a, "starts_s"_a)
      .def("late", &StepPrompts::late, "rate"_a, "full_rate"_a)
      .def("late_by_token", &StepPrompts::late_by_token, "token_s"_a, "full_token_s"_a);
}

}  // namespace sloserve::bindings
