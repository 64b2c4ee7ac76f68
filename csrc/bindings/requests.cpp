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

#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "columns.h"
#include "facts.h"
#include "module.h"
#include "sloserve/rank.h"
#include "sloserve/request_columns.h"
#include "sloserve/service_order.h"

namespace sloserve::bindings {

namespace {

// How Python's types are stated in the stub; nothing is checked but the list, tuple or dict itself.
using Objects = nb::typed<nb::list, nb::object>;
using Ids = nb::typed<nb::list, nb::str>;
using Names = nb::typed<nb::tuple, nb::str, nb::ellipsis>;
using NumberOf = nb::typed<nb::dict, nb::str, int>;

// allowed: a bit for each state.
bool is_in(std::int8_t state, std::int64_t allowed) { return state >= 0 && state <= 62 && allowed >> state & 1; }

PyObject* item(const nb::list& list, std::size_t i) { return NB_LIST_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)); }

nb::object attribute_of(nb::handle object, nb::handle name) {
  nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!value.is_valid()) nb::raise_python_error();
  return value;
}

// A number, or how many there are in what is none.
std::int64_t count_of(nb::handle value) {
  const bool is_number = PyLong_Check(value.ptr());
  const std::int64_t count = is_number ? PyLong_AsLongLong(value.ptr()) : PyObject_Size(value.ptr());
  if (count == -1 && PyErr_Occurred()) nb::raise_python_error();
  return count;
}

// Reads attributes of n objects: put(i, k, count) of the k-th name of the i-th object.
//
// Many objects are in no cache, and neither is what they refer to. So that their misses overlap, those of a block are asked
// for before they are needed, and what each refers to is looked at only once all of the block are read.
template <typename ObjectAt, typename Put>
void read_counts(std::size_t n, const nb::tuple& names, const ObjectAt& object_at, const Put& put) {
  constexpr std::size_t kBlock = 16;
  constexpr int kBeforeObject = 32;  // where CPython 3.11 keeps what leads to the attributes
  const std::size_t width = names.size();
  std::vector<nb::object> values(kBlock * width);
  const auto fetch = [&](std::size_t i) {
    const char* object = reinterpret_cast<const char*>(object_at(i).ptr());
    __builtin_prefetch(object);
    __builtin_prefetch(object - kBeforeObject);
  };
  for (std::size_t i = 0; i < std::min(kBlock, n); ++i) fetch(i);
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, n);
    for (std::size_t i = begin; i < end; ++i) {
      if (i + kBlock < n) fetch(i + kBlock);
      const nb::object object = nb::borrow(object_at(i));
      for (std::size_t k = 0; k < width; ++k) values[(i - begin) * width + k] = attribute_of(object, names[k]);
    }
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t k = 0; k < width; ++k) put(i, k, count_of(values[(i - begin) * width + k]));
    }
  }
}

// The i-th item of a list that any code may have changed meanwhile: a property may run any.
struct ItemAt {
  const nb::list& list;
  std::size_t size;

  explicit ItemAt(const nb::list& objects) : list(objects), size(objects.size()) {}
  nb::handle operator[](std::size_t i) const {
    if (list.size() != size) throw std::invalid_argument("objects: the list changed while its attributes were read");
    return item(list, i);
  }
};

// Places of Python objects by which object they are. The objects themselves are not looked at: where there are thousands, each
// look is a miss of the cache.
class PlaceOf {
 public:
  // The objects in `slots` of a list, whose places are those among the slots.
  PlaceOf(const nb::list& objects, const Slots& slots) {
    std::size_t size = 16;
    while (size < 2 * slots.size) size *= 2;
    mask_ = size - 1;
    entries_.assign(size, {nullptr, 0});
    for (std::size_t i = 0; i < slots.size; ++i) {
      PyObject* object = item(objects, slots[i]);
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
  bind_facts<ProgressArrays>(m, "ProgressColumns",
                             "Columns of the request table that say how far requests are, in tokens, by slot.",
                             Fact<&ProgressArrays::prompt_tokens>{"prompt_tokens"},
                             Fact<&ProgressArrays::output_tokens>{"output_tokens"},
                             Fact<&ProgressArrays::computed_tokens>{"computed_tokens"},
                             Fact<&ProgressArrays::swapped_tokens>{"swapped_tokens"},
                             Fact<&ProgressArrays::hit_tokens>{"hit_tokens"});
  m.def(
      "counts_of",
      [](const Objects& objects, const Names& names) {
        const std::size_t n = objects.size();
        std::vector<std::vector<std::int64_t>> counts(names.size(), std::vector<std::int64_t>(n));
        const ItemAt item(objects);
        read_counts(
            n, names, [&](std::size_t i) { return item[i]; },
            [&](std::size_t i, std::size_t k, std::int64_t count) { counts[k][i] = count; });
        nb::typed<nb::list, OwnedColumn<std::int64_t>> found;
        for (auto& one : counts) found.append(to_numpy(std::move(one)));
        return found;
      },
      "objects"_a, "names"_a);
  m.def(
      "read_counts",
      [](const Objects& objects, const Column<std::int64_t>& slots, const Names& names,
         const std::vector<nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>& columns) {
        check_size("columns", columns.size(), names.size(), "names");
        for (const auto& column : columns) check_size("columns", column.shape(0), objects.size(), "objects");
        const Slots of = slots_of(slots, objects.size());
        const ItemAt item(objects);
        read_counts(
            of.size, names, [&](std::size_t i) { return item[of[i]]; },
            [&](std::size_t i, std::size_t k, std::int64_t count) { columns[k].data()[of[i]] = count; });
      },
      "objects"_a, "slots"_a.noconvert(), "names"_a, "columns"_a.noconvert());
  m.def(
      "tokens_without_kv",
      [](const ProgressArrays& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, progress.capacity());
        const ProgressColumns columns = progress.columns(of);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.without_kv(of[i]); });
      },
      "progress"_a, "slots"_a.noconvert());
  m.def(
      "uncomputed_tokens",
      [](const ProgressArrays& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, progress.capacity());
        const ProgressColumns columns = progress.columns(of);
        return made<std::int64_t>(of.size, [&](std::size_t i) { return columns.uncomputed(of[i]); });
      },
      "progress"_a, "slots"_a.noconvert());
  m.def(
      "split_running",
      [](const ProgressArrays& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, progress.capacity());
        const ProgressColumns columns = progress.columns(of);
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
      "progress"_a, "slots"_a.noconvert());
  m.def(
      "context_and_uncomputed",
      [](const ProgressArrays& progress, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, progress.capacity());
        const ProgressColumns columns = progress.columns(of);
        return std::tuple(made<std::int64_t>(of.size, [&](std::size_t i) { return columns.context(of[i]); }),
                          made<std::int64_t>(of.size, [&](std::size_t i) { return columns.uncomputed(of[i]); }));
      },
      "progress"_a, "slots"_a.noconvert());
  m.def(
      "service_order",
      [](const ProgressArrays& progress, const Column<bool>& preemptable, const Column<std::int64_t>& order,
         const KvLayout& layout, std::int64_t free_blocks, std::int64_t token_budget, std::int64_t decode_tokens) {
        const Slots of = slots_of(order, std::min(progress.capacity(), preemptable.shape(0)));
        return to_numpy(service_order(progress.columns(), preemptable.data(), of,
                                      {.layout = layout,
                                       .free_blocks = free_blocks,
                                       .token_budget = token_budget,
                                       .decode_tokens = decode_tokens}));
      },
      "progress"_a, "preemptable"_a.noconvert(), "order"_a.noconvert(), nb::kw_only(), "layout"_a,
      "free_blocks"_a, "token_budget"_a, "decode_tokens"_a);
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
          if (!is_in(is, allowed)) worst = std::max(worst, 1);
        }
        return worst;
      },
      "slots"_a.noconvert(), "state"_a.noconvert(), "allowed"_a);
  m.def(
      "any_up_to",
      [](const Column<std::int8_t>& state, std::int64_t allowed, const Column<std::int64_t>& seq, std::int64_t last) {
        check_size("seq", seq.shape(0), state.shape(0), "states");
        for (std::size_t i = 0; i < state.shape(0); ++i) {
          if (is_in(state.data()[i], allowed) && seq.data()[i] <= last) return true;
        }
        return false;
      },
      "state"_a.noconvert(), "allowed"_a, "seq"_a.noconvert(), "last"_a);
  m.def(
      "places_stated",
      [](const Column<double>& column, const Column<std::int64_t>& slots) {
        const Slots of = slots_of(slots, column.shape(0));
        std::vector<std::int64_t> found;
        for (std::size_t i = 0; i < of.size; ++i) {
          if (!std::isnan(column.data()[of[i]])) found.push_back(static_cast<std::int64_t>(i));
        }
        return to_numpy(std::move(found));
      },
      "column"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "chunks_scheduled",
      [](const NumberOf& tokens_of, const Ids& ids, const nb::typed<nb::list, int>& computed) {
        check_size("computed", computed.size(), ids.size(), "ids");
        nb::typed<nb::list, std::tuple<int, int>> found;
        for (std::size_t i = 0; i < ids.size(); ++i) {
          PyObject* tokens = PyDict_GetItemWithError(tokens_of.ptr(), item(ids, i));
          if (tokens == nullptr && PyErr_Occurred()) nb::raise_python_error();
          if (tokens == nullptr) throw nb::key_error("ids: one is scheduled no tokens");
          if (count_of(tokens) > 1) found.append(nb::make_tuple(nb::handle(tokens), nb::handle(item(computed, i))));
        }
        return found;
      },
      "tokens_of"_a, "ids"_a, "computed"_a);
  m.def(
      "slots_in_order",
      [](const Objects& objects, const Column<std::int64_t>& slots, const Objects& order) {
        const Slots of = slots_of(slots, objects.size());
        const PlaceOf place(objects, of);
        std::vector<std::int64_t> found;
        found.reserve(of.size);
        for (std::size_t i = 0; i < order.size(); ++i) {
          const std::int64_t at = place[item(order, i)];
          if (at >= 0) found.push_back(of.data[at]);
        }
        return to_numpy(std::move(found));
      },
      "objects"_a, "slots"_a.noconvert(), "order"_a);
  m.def(
      "moved_to_front",
      [](const Objects& present, const Objects& objects,
         const Column<std::int64_t>& slots) -> std::optional<std::tuple<Objects, Objects>> {
        const Slots wanted = slots_of(slots, objects.size());
        const std::size_t n = wanted.size;
        std::size_t same = 0;
        while (same < n && same < present.size() && item(present, same) == item(objects, wanted[same])) ++same;
        if (same == n) return std::nullopt;
        const PlaceOf place(objects, wanted);
        std::vector<bool> is_there(n, false);
        Objects front, others;
        for (std::size_t i = 0; i < present.size(); ++i) {
          const std::int64_t at = place[item(present, i)];
          if (at < 0) {
            others.append(nb::handle(item(present, i)));
          } else {
            is_there[static_cast<std::size_t>(at)] = true;
          }
        }
        for (std::size_t i = 0; i < n; ++i) {
          if (is_there[i]) front.append(nb::handle(item(objects, wanted[i])));
        }
        return std::tuple(front, others);
      },
      "present"_a, "objects"_a, "slots"_a.noconvert());
  m.def(
      "slots_found",
      [](const NumberOf& slot_of, const nb::typed<nb::iterable, nb::object>& objects, const nb::str& name,
         std::int64_t most) {
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
        const Slots of = slots_of(slots, capacity_of(tpot_s, tds));
        return made<double>(of.size, [&](std::size_t i) { return token_pace_s(tpot_s.data()[of[i]], tds.data()[of[i]]); });
      },
      "tpot_s"_a.noconvert(), "tds"_a.noconvert(), "slots"_a.noconvert());
  m.def(
      "without_targets",
      [](const Column<std::int64_t>& slots, const Column<double>& ttft_s, const Column<double>& tpot_s,
         const Column<double>& e2e_s, const Column<double>& tds) {
        const Slots of = slots_of(slots, capacity_of(ttft_s, tpot_s, e2e_s, tds));
        return made<bool>(of.size, [&](std::size_t i) {
          const auto is_unstated = [at = of[i]](const Column<double>& column) { return std::isnan(column.data()[at]); };
          return is_unstated(ttft_s) && is_unstated(tpot_s) && is_unstated(e2e_s) && is_unstated(tds);
        });
      },
      "slots"_a.noconvert(), nb::kw_only(), "ttft_s"_a.noconvert(), "tpot_s"_a.noconvert(), "e2e_s"_a.noconvert(),
      "tds"_a.noconvert());
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
      "key"_a.noconvert(), "slots"_a.noconvert(), nb::kw_only(), "queued"_a, "class_rank"_a.noconvert().none(), "seq"_a.noconvert(),
      "undecided"_a.noconvert().none(), "most"_a);
  m.def(
      "first_places",
      [](const Column<double>& key, const Column<double>& lowered, const Column<std::int64_t>& rank,
         const Column<std::int64_t>& seq, std::int64_t k) {
        return to_numpy(first_places(key.data(), lowered.data(), rank.data(), seq.data(),
                                     {key.shape(0), lowered.shape(0), rank.shape(0), seq.shape(0)}, k));
      },
      nb::kw_only(), "key"_a.noconvert(), "lowered"_a.noconvert(), "rank"_a.noconvert(), "seq"_a.noconvert(), "k"_a);
}

}  // namespace sloserve::bindings
