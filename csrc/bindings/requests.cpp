// What follows from the columns of the request table, and how requests are ranked.
#include <algorithm>
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
#include "sloserve/service_order.h"

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

// Places of Python objects by which object they are. The objects themselves are not looked at: where there are thousands, each
// look is a miss of the cache.
class PlaceOf {
 public:
  explicit PlaceOf(const nb::list& objects) {
    std::size_t size = 16;
    while (size < 2 * objects.size()) size *= 2;
    mask_ = size - 1;
    entries_.assign(size, {nullptr, 0});
    for (std::size_t i = 0; i < objects.size(); ++i) {
      PyObject* object = NB_LIST_GET_ITEM(objects.ptr(), static_cast<Py_ssize_t>(i));
      entries_[find(object)] = {object, static_cast<std::int64_t>(i)};
    }
  }

  // -1 where it is none of them; of one that is there twice the last.
  std::int64_t operator[](const PyObject* object) const {
    const auto& entry = entries_[find(object)];
    return entry.first == nullptr ? -1 : entry.second;
  }

 private:
  // Where it is, or would be.
  std::size_t find(const PyObject* object) const {
    std::size_t at = (reinterpret_cast<std::uintptr_t>(object) >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask_;
    while (entries_[at].first != nullptr && entries_[at].first != object) at = (at + 1) & mask_;
    return at;
  }

  std::size_t mask_;
  std::vector<std::pair<const PyObject*, std::int64_t>> entries_;
};

}  // namespace

void bind_requests(nb::module_& m) {
  m.def(
      "counts_of",
      [](const nb::list& objects, const nb::tuple& names) {
        const std::size_t n = objects.size();
        std::vector<std::vector<std::int64_t>> counts(names.size(), std::vector<std::int64_t>(n));
        for (std::size_t i = 0; i < n; ++i) {
          const nb::object object = objects[i];
          for (std::size_t k = 0; k < names.size(); ++k) counts[k][i] = count_of(object, names[k]);
          // A property may run any code.
          if (objects.size() != n) throw std::invalid_argument("objects: the list changed while its attributes were read");
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
        const ProgressColumns columns = progress_of(progress, of);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.without_kv(of[i]); });
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "uncomputed_tokens",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress, of);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.uncomputed(of[i]); });
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "split_running",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress, of);
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
      "context_and_uncomputed",
      [](const Columns<std::int64_t, 5>& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, capacity_of(progress));
        const ProgressColumns columns = progress_of(progress, of);
        return std::tuple(made<std::int64_t>(of.size, [&](std::size_t i) { return columns.context(of[i]); }),
                          made<std::int64_t>(of.size, [&](std::size_t i) { return columns.uncomputed(of[i]); }));
      },
      "progress"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "service_order",
      [](const Columns<std::int64_t, 5>& progress, const Column<bool>& preemptable, const Column<std::int64_t>& order,
         const KvLayout& layout, std::int64_t free_blocks, std::int64_t token_budget, std::int64_t decode_tokens) {
        const Slots of = slots_of(order, std::min(capacity_of(progress), preemptable.shape(0)));
        return to_numpy(service_order(progress_of(progress), preemptable.data(), of,
                                      {layout, free_blocks, token_budget, decode_tokens}));
      },
      "progress"_a.noconvert(), "preemptable"_a.noconvert(), "order"_a.noconvert(), "layout"_a, "free_blocks"_a,
      "token_budget"_a, "decode_tokens"_a);
  m.def(
      "slots_misused",
      [](const Column<std::int64_t>& slots, const Column<std::int8_t>& state, std::int64_t allowed) {
        std::vector<bool> named(state.shape(0), false);
        int worst = 0;
        for (std::size_t i = 0; i < slots.shape(0); ++i) {
          const std::int64_t slot = slots.data()[i];
          if (slot < 0 || static_cast<std::size_t>(slot) >= state.shape(0)) return 3;
          const auto at = static_cast<std::size_t>(slot);
          if (named[at]) worst = 2;
          named[at] = true;
          const std::int8_t is = state.data()[at];
          if (is < 0 || is > 62 || !(allowed >> is & 1)) worst = std::max(worst, 1);
        }
        return worst;
      },
      "slots"_a.noconvert(), "state"_a.noconvert(), "allowed"_a);
  m.def(
      "values_in_order",
      [](const nb::list& objects, const Column<std::int64_t>& values, const nb::list& order) {
        check_size("values", values.shape(0), objects.size(), "objects");
        const PlaceOf place(objects);
        std::vector<std::int64_t> found;
        found.reserve(order.size());
        for (std::size_t i = 0; i < order.size(); ++i) {
          const std::int64_t at = place[NB_LIST_GET_ITEM(order.ptr(), static_cast<Py_ssize_t>(i))];
          if (at >= 0) found.push_back(values.data()[at]);
        }
        return to_numpy(std::move(found));
      },
      "objects"_a, "values"_a.noconvert(), "order"_a);
  m.def(
      "moved_to_front",
      [](const nb::list& present, const nb::list& wanted) -> std::optional<std::tuple<nb::list, nb::list>> {
        const std::size_t n = wanted.size();
        std::size_t same = 0;
        const auto item = [](const nb::list& of, std::size_t i) {
          return NB_LIST_GET_ITEM(of.ptr(), static_cast<Py_ssize_t>(i));
        };
        while (same < n && same < present.size() && item(present, same) == item(wanted, same)) ++same;
        if (same == n) return std::nullopt;
        const PlaceOf place(wanted);
        std::vector<bool> is_there(n, false);
        nb::list front, others;
        for (std::size_t i = 0; i < present.size(); ++i) {
          const std::int64_t at = place[item(present, i)];
          if (at < 0) {
            others.append(nb::handle(item(present, i)));
          } else {
            is_there[static_cast<std::size_t>(at)] = true;
          }
        }
        for (std::size_t i = 0; i < n; ++i) {
          if (is_there[i]) front.append(nb::handle(item(wanted, i)));
        }
        return std::tuple(front, others);
      },
      "present"_a, "wanted"_a);
  m.def(
      "slots_found",
      [](const nb::dict& slot_of, const nb::iterable& objects, nb::handle name, std::int64_t most) {
        std::vector<std::int64_t> found;
        if (most == 0) return to_numpy(std::move(found));
        for (nb::handle object : objects) {
          const nb::object key = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
          if (!key.is_valid()) nb::raise_python_error();
          PyObject* slot = PyDict_GetItemWithError(slot_of.ptr(), key.ptr());
          if (slot == nullptr && PyErr_Occurred()) nb::raise_python_error();
          if (slot == nullptr) continue;
          found.push_back(PyLong_AsLongLong(slot));
          if (found.back() == -1 && PyErr_Occurred()) nb::raise_python_error();
          if (static_cast<std::int64_t>(found.size()) == most) break;
        }
        return to_numpy(std::move(found));
      },
      "slot_of"_a, "objects"_a, "name"_a, "most"_a);
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
        check_size("rank", rank.shape(0), n, "keys");
        if (undecided) check_size("undecided", undecided->shape(0), n, "keys");
        return to_numpy(by_class(key.data(), rank.data(), undecided ? undecided->data() : nullptr, n));
      },
      "key"_a.noconvert(), "rank"_a.noconvert(), "undecided"_a.noconvert().none());
  m.def(
      "ranked",
      [](const Column<double>& key, const Column<std::int64_t>& slots, std::size_t queued,
         const std::optional<Column<std::int64_t>>& class_rank, const Column<std::int64_t>& seq,
         const std::optional<Column<bool>>& undecided, std::int64_t most) {
        const std::size_t n = key.shape(0);
        const Slots of = slots_of(slots, class_rank ? std::min(class_rank->shape(0), seq.shape(0)) : seq.shape(0));
        check_size("slots", of.size, n, "keys");
        if (undecided) check_size("undecided", undecided->shape(0), n, "keys");
        Ranked found = ranked(key.data(), of, queued, class_rank ? class_rank->data() : nullptr, seq.data(),
                              undecided ? undecided->data() : nullptr, most);
        return std::tuple(to_numpy(std::move(found.lowered)), to_numpy(std::move(found.waiting)),
                          to_numpy(std::move(found.running)));
      },
      "key"_a.noconvert(), "slots"_a.noconvert(), "queued"_a, "class_rank"_a.noconvert().none(), "seq"_a.noconvert(),
      "undecided"_a.noconvert().none(), "most"_a);
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
