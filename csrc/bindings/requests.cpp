// What follows from the columns of the request table, and how requests are ranked.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/rank.h"
#include "sloserve/request_columns.h"

namespace sloserve::bindings {

namespace {

// Of a Python object: a number, or how many there are in it.
std::int64_t count_of(nb::handle object, nb::handle name) {
  const nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!value.is_valid()) nb::raise_python_error();
  const bool is_number = PyLong_Check(value.ptr());
  const std::int64_t count = is_number ? PyLong_AsLongLong(value.ptr()) : PyObject_Size(value.ptr());
  if (count == -1 && PyErr_Occurred()) nb::raise_python_error();
  return count;
}

}  // namespace

void bind_requests(nb::module_& m) {
  m.def(
      "counts_of",
      [](const nb::list& objects, const nb::tuple& names) {
        std::vector<std::vector<std::int64_t>> counts(names.size(), std::vector<std::int64_t>(objects.size()));
        for (std::size_t i = 0; i < objects.size(); ++i) {
          for (std::size_t k = 0; k < names.size(); ++k) counts[k][i] = count_of(objects[i], names[k]);
        }
        nb::list found;
        for (auto& one : counts) found.append(to_numpy(std::move(one)));
        return found;
      },
      "objects"_a, "names"_a);
  m.def(
      "tokens_without_kv",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.without_kv(of[i]); });
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "uncomputed_tokens",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.uncomputed(of[i]); });
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "split_running",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress);
        std::vector<std::int64_t> decodes, prompts;
        decodes.reserve(of.size);
        std::int64_t context = 0;
        for (std::size_t i = 0; i < of.size; ++i) {
          if (columns.uncomputed(of[i]) > 0) {
            prompts.push_back(of.data[i]);
          } else {
            decodes.push_back(of.data[i]);
            context += columns.context(of[i]);
          }
        }
        return std::tuple(to_numpy(std::move(decodes)), to_numpy(std::move(prompts)), context);
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "token_pace",
      [](const Column<double>& tpot_s, const Column<double>& tds, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(Columns<double, 2>{tpot_s, tds}));
        return made<double>(of.size, [&](std::size_t i) { return token_pace_s(tpot_s.data()[of[i]], tds.data()[of[i]]); });
      },
      "tpot_s"_a.noconvert(), "tds"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "without_targets",
      [](const Columns<double, 4>& targets, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(targets));
        return made<bool>(of.size, [&](std::size_t i) {
          bool none = true;
          for (const auto& column : targets) none = none && std::isnan(column.data()[of[i]]);
          return none;
        });
      },
      "targets"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "top_k",
      [](const Column<double>& keys, const Column<std::int64_t>& seqs, std::int64_t k) {
        return to_numpy(top_k(keys.data(), keys.shape(0), seqs.data(), seqs.shape(0), k));
      },
      "keys"_a.noconvert(), "seqs"_a.noconvert(), "k"_a);
  m.def(
      "by_class",
      [](const Column<double>& key, const Column<std::int64_t>& rank, const std::optional<Column<bool>>& undecided) {
        const std::size_t n = key.shape(0);
        if (rank.shape(0) != n || (undecided && undecided->shape(0) != n)) {
          throw std::invalid_argument("key, rank and undecided must be of one length");
        }
        return to_numpy(by_class(key.data(), rank.data(), undecided ? undecided->data() : nullptr, n));
      },
      "key"_a.noconvert(), "rank"_a.noconvert(), "undecided"_a.noconvert().none());
  m.def(
      "first_places",
      [](const Column<double>& key, const Column<double>& lowered, const Column<std::int64_t>& rank,
         const Column<std::int64_t>& seq, std::int64_t k) {
        return to_numpy(first_places(key.data(), lowered.data(), rank.data(), seq.data(),
                                     {key.shape(0), lowered.shape(0), rank.shape(0), seq.shape(0)}, k));
      },
      "key"_a.noconvert(), "lowered"_a.noconvert(), "rank"_a.noconvert(), "seq"_a.noconvert(), "k"_a);
}

}  // namespace sloserve::bindings
