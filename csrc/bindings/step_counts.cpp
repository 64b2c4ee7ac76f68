// Counts of the running rows, followed from what each step schedules and brings. What it may follow, and why it is exact:
// sloserve/engine/step_counts.py.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "module.h"

namespace sloserve::bindings {

namespace {

constexpr std::size_t kMostInFlight = 16;  // steps without results that are remembered; engines keep two

using Counts = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// How Python's types are stated in the stub; nothing is checked but the list or dict itself.
using NumberOf = nb::typed<nb::dict, nb::str, int>;
using Sampled = nb::typed<nb::list, nb::typed<nb::list, int>>;

std::size_t size_of(nb::handle object) {
  const Py_ssize_t size = PyObject_Size(object.ptr());
  if (size < 0) nb::raise_python_error();
  return static_cast<std::size_t>(size);
}

// What a dict has for a key; nullptr for nothing.
PyObject* found_in(const nb::dict& of, nb::handle key) {
  PyObject* found = PyDict_GetItemWithError(of.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred()) nb::raise_python_error();
  return found;
}

class StepCounts {
 public:
  explicit StepCounts(std::int8_t running) : running_(running) {}

  void lost() {
    is_sure_ = is_told_ = false;
    steps_.clear();
  }

  void left(const nb::str& request_id, std::int64_t slot) {
    for (Step& step : steps_) step.left[request_id] = slot;
  }

  void scheduled(const nb::object& step, const NumberOf& tokens_of, std::int64_t total, const NumberOf& prompts,
                 const Column<std::int8_t>& state, const Column<std::int64_t>& seq, const std::vector<Counts>& grow) {
    is_told_ = true;
    const std::size_t in_step = tokens_of.size();
    if (in_step == 0) return;
    check_capacity(state, seq, grow);
    if (to_read_.size() > state.shape(0)) {  // nobody has asked for long: all are read at once then
      to_read_.clear();
      is_sure_ = false;
    }
    Step made{step, {}, nb::dict(), nb::dict()};
    std::vector<std::size_t> of_prompts;
    for (const auto& [request_id, slot] : prompts) {
      of_prompts.push_back(nb::cast<std::size_t>(slot));
      to_read_.push_back(of_prompts.back());
      const PyObject* const tokens = found_in(tokens_of, request_id);
      if (tokens == nullptr) continue;
      total -= nb::cast<std::int64_t>(nb::handle(tokens));
      made.prompts[request_id] = slot;
    }
    std::sort(of_prompts.begin(), of_prompts.end());
    for (std::size_t slot = 0; slot < state.shape(0); ++slot) {
      if (state.data()[slot] != running_ || std::binary_search(of_prompts.begin(), of_prompts.end(), slot)) continue;
      made.decodes.emplace_back(slot, seq.data()[slot]);
    }
    const std::size_t decodes = made.decodes.size();
    if (in_step != decodes + made.prompts.size() || total != static_cast<std::int64_t>(decodes)) {
      is_sure_ = false;
      return;
    }
    if (is_sure_) {
      for (const Counts& column : grow) {
        for (const auto& [slot, _] : made.decodes) ++column.data()[slot];
      }
    }
    if (steps_.size() == kMostInFlight) steps_.pop_front();
    steps_.push_back(std::move(made));
  }

  void produced(nb::handle step, const Sampled& sampled, const NumberOf& index_of, const Column<std::int8_t>& state,
                const Column<std::int64_t>& seq, const std::vector<Counts>& shrink, const std::vector<Counts>& grow) {
    check_capacity(state, seq, shrink);
    check_capacity(state, seq, grow);
    auto at = steps_.begin();
    while (at != steps_.end() && !at->scheduled.is(step)) ++at;
    if (at == steps_.end()) {
      is_sure_ = false;
      return;
    }
    const Step known = std::move(*at);
    steps_.erase(at);
    std::size_t tokens = 0, expected = known.decodes.size();
    const std::size_t answered = sampled.size();
    for (std::size_t i = 0; i < answered; ++i) tokens += size_of(sampled[i]);
    const auto leave_out = [&](nb::handle request_id) {
      const PyObject* const index = found_in(index_of, request_id);
      if (index == nullptr) return false;
      const auto place = nb::cast<std::size_t>(nb::handle(index));
      if (place < answered) tokens -= size_of(sampled[place]);
      return true;
    };
    for (const auto& [request_id, slot] : known.prompts) {
      to_read_.push_back(nb::cast<std::size_t>(slot));
      leave_out(request_id);
    }
    for (const auto& [request_id, value] : known.left) {
      const auto slot = nb::cast<std::int64_t>(value);
      if (slot >= 0) to_read_.push_back(static_cast<std::size_t>(slot));
      if (found_in(known.prompts, request_id) == nullptr) expected -= leave_out(request_id);
    }
    if (tokens != expected) {
      is_sure_ = false;
      return;
    }
    if (!is_sure_) return;
    for (const auto& [slot, number] : known.decodes) {
      // The row may be another's since, or that of a request which has lost its KV.
      if (slot >= state.shape(0) || seq.data()[slot] != number || state.data()[slot] != running_) continue;
      for (const Counts& column : shrink) --column.data()[slot];
      for (const Counts& column : grow) ++column.data()[slot];
    }
  }

  // Nothing for all.
  std::optional<OwnedColumn<std::int64_t>> to_read(const Column<std::int8_t>& state) {
    std::vector<std::size_t> asked;
    asked.swap(to_read_);
    if (!is_sure_) {
      is_sure_ = is_told_;
      return std::nullopt;
    }
    std::sort(asked.begin(), asked.end());
    asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
    std::vector<std::int64_t> still;
    for (const std::size_t slot : asked) {
      if (slot < state.shape(0) && state.data()[slot] == running_) still.push_back(static_cast<std::int64_t>(slot));
    }
    return to_numpy(std::move(still));
  }

 private:
  // decodes: slots of requests with one token in it, and their seq. prompts: slots of the others, by id. left: slots of those
  // that have stopped running since, by id; below 0 where they have no row any more.
  struct Step {
    nb::object scheduled;
    std::vector<std::pair<std::size_t, std::int64_t>> decodes;
    nb::dict prompts, left;
  };

  static void check_capacity(const Column<std::int8_t>& state, const Column<std::int64_t>& seq, const std::vector<Counts>& counts) {
    check_size("seq", seq.shape(0), state.shape(0), "states");
    for (const Counts& column : counts) check_size("counts", column.shape(0), state.shape(0), "states");
  }

  std::int8_t running_;
  bool is_sure_ = false, is_told_ = false;
  std::vector<std::size_t> to_read_;
  std::deque<Step> steps_;
};

}  // namespace

void bind_step_counts(nb::module_& m) {
  nb::class_<StepCounts>(m, "StepCounts",
                         "Counts of the request table, followed from what each step schedules and brings; see "
                         ":mod:`sloserve.engine.step_counts`.")
      .def(nb::init<std::int8_t>(), "running"_a)
      .def("lost", &StepCounts::lost)
      .def("left", &StepCounts::left, "request_id"_a, "slot"_a)
      .def("scheduled", &StepCounts::scheduled, "step"_a, nb::kw_only(), "tokens_of"_a, "total"_a, "prompts"_a,
           "state"_a.noconvert(), "seq"_a.noconvert(), "grow"_a.noconvert())
      .def("produced", &StepCounts::produced, "step"_a, nb::kw_only(), "sampled"_a, "index_of"_a,
           "state"_a.noconvert(), "seq"_a.noconvert(), "shrink"_a.noconvert(), "grow"_a.noconvert())
      .def("to_read", &StepCounts::to_read, "state"_a.noconvert());
}

}  // namespace sloserve::bindings
