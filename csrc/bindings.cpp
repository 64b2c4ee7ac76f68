// The one file that binds csrc/ to Python. Checks what the types of the arguments cannot say (the launchers check sizes and
// ranges) and hands results over without a copy. std::invalid_argument arrives in Python as ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "sloserve/anneal.h"
#include "sloserve/batch_plan.h"
#include "sloserve/digest.h"
#include "sloserve/exhaustive.h"
#include "sloserve/fleet_search.h"
#include "sloserve/knapsack.h"
#include "sloserve/knapsack_batch.h"
#include "sloserve/knapsack_exact.h"
#include "sloserve/knapsack_priced.h"
#include "sloserve/kv_copy.h"
#include "sloserve/kv_hosting.h"
#include "sloserve/kv_reservation.h"
#include "sloserve/rank.h"
#include "sloserve/survival.h"
#include "sloserve/worth.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using Curves = nb::ndarray<double, nb::shape<-1, sloserve::kDigestColumns>, nb::c_contig, nb::device::cpu>;

template <typename T>
using OwnedColumn = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
OwnedColumn<T> to_numpy(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return OwnedColumn<T>(data, {size}, owner);
}

std::vector<sloserve::BatchRequest> to_requests(const Matrix<double>& columns) {
  return sloserve::batch_requests(columns.data(), columns.shape(0), columns.shape(1));
}

// order, sizes, met, latency_s
auto to_tuple(sloserve::BatchPlan plan) {
  return std::tuple(to_numpy(std::move(plan.order)), to_numpy(std::move(plan.sizes)), plan.score.met, plan.score.latency_s);
}

// Calls one(id, a, b, c) for each column of a matrix [4, n].
template <typename One>
void for_requests(const Matrix<std::int64_t>& requests, One one) {
  if (requests.shape(0) != 4) {
    throw std::invalid_argument("requests: " + std::to_string(requests.shape(0)) + " rows; there must be 4");
  }
  const std::size_t n = requests.shape(1);
  const std::int64_t* row = requests.data();
  for (std::size_t i = 0; i < n; ++i) one(row[i], row[n + i], row[2 * n + i], row[3 * n + i]);
}

template <typename Requests>
void remove_all(Requests& from, const Column<std::int64_t>& ids) {
  for (std::size_t i = 0; i < ids.shape(0); ++i) from.remove(ids.data()[i]);
}

// id, due
auto to_columns(const std::vector<sloserve::KvOverrun>& overrunners) {
  std::vector<std::int64_t> ids, due;
  for (const auto& one : overrunners) {
    ids.push_back(one.id);
    due.push_back(one.due);
  }
  return std::tuple(to_numpy(std::move(ids)), to_numpy(std::move(due)));
}

void bind_kv_reservation(nb::module_& m) {
  using sloserve::KvReservation;
  nb::class_<KvReservation>(m, "KvReservation")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "capacity_blocks"_a, "block_size"_a, "now"_a)
      .def_prop_ro("now", &KvReservation::now)
      .def_prop_ro("visited", &KvReservation::visited)
      .def("__len__", &KvReservation::live)
      .def("__contains__", &KvReservation::contains, "id"_a)
      .def(
          "put",
          [](KvReservation& self, const Matrix<std::int64_t>& requests) {
            for_requests(requests, [&](auto id, auto tokens, auto hold, auto grow) { self.put(id, {tokens, hold, grow}); });
          },
          "requests"_a.noconvert())
      .def(
          "fits",
          [](KvReservation& self, const Matrix<std::int64_t>& requests, std::int64_t reserve) {
            std::vector<std::uint8_t> fits;
            for_requests(requests, [&](auto id, auto tokens, auto hold, auto grow) {
              fits.push_back(self.fits(id, {tokens, hold, grow}, reserve));
            });
            return to_numpy(std::move(fits));
          },
          "requests"_a.noconvert(), "reserve_blocks"_a)
      .def(
          "admit",
          [](KvReservation& self, const Matrix<std::int64_t>& requests, std::int64_t reserve, bool stop_at_misfit) {
            std::vector<std::uint8_t> admitted;
            bool open = true;
            for_requests(requests, [&](auto id, auto tokens, auto hold, auto grow) {
              admitted.push_back(open && self.admit(id, {tokens, hold, grow}, reserve));
              open = open && (admitted.back() || !stop_at_misfit);
            });
            return to_numpy(std::move(admitted));
          },
          "requests"_a.noconvert(), "reserve_blocks"_a, "stop_at_misfit"_a)
      .def(
          "grantable",
          [](KvReservation& self, const Matrix<std::int64_t>& requests, std::int64_t reserve) {
            std::vector<std::int64_t> steps;
            for_requests(requests, [&](auto id, auto tokens, auto hold, auto grow) {
              steps.push_back(self.grantable(id, {tokens, hold, grow}, reserve));
            });
            return to_numpy(std::move(steps));
          },
          "requests"_a.noconvert(), "reserve_blocks"_a)
      .def("remove", &remove_all<KvReservation>, "ids"_a.noconvert())
      .def("advance", &KvReservation::advance, "step"_a)
      .def(
          "overrunners",
          [](const KvReservation& self, std::int64_t within) { return to_columns(self.overrunners(within)); },
          "within_steps"_a)
      .def("first_over", &KvReservation::first_over, "reserve_blocks"_a)
      .def("occupied", &KvReservation::occupied, "step"_a);
}

void bind_kv_hosting(nb::module_& m) {
  using sloserve::KvHosting;
  nb::class_<KvHosting>(m, "KvHosting")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "capacity_blocks"_a, "block_size"_a, "now"_a)
      .def_prop_ro("now", &KvHosting::now)
      .def_prop_ro("free_blocks", &KvHosting::free_blocks)
      .def("__len__", &KvHosting::live)
      .def("__contains__", &KvHosting::contains, "id"_a)
      .def(
          "allocate",
          [](KvHosting& self, const Matrix<std::int64_t>& requests, std::int64_t reserve, bool stop_at_misfit) {
            std::vector<std::uint8_t> allocated;
            bool open = true;
            for_requests(requests, [&](auto id, auto tokens, auto grow, auto buffer) {
              allocated.push_back(open && self.allocate({id, tokens, grow, buffer}, reserve));
              open = open && (allocated.back() || !stop_at_misfit);
            });
            return to_numpy(std::move(allocated));
          },
          "requests"_a.noconvert(), "reserve_blocks"_a, "stop_at_misfit"_a)
      .def(
          "host",
          [](KvHosting& self, const Matrix<std::int64_t>& requests, std::int64_t reserve) {
            std::vector<sloserve::KvCandidate> candidates;
            for_requests(requests, [&](auto id, auto tokens, auto grow, auto buffer) {
              candidates.push_back({id, tokens, grow, buffer});
            });
            std::vector<std::int64_t> chosen, hosts;
            for (const auto& one : self.host(candidates, reserve)) {
              chosen.push_back(one.candidate);
              hosts.push_back(one.host);
            }
            return std::tuple(to_numpy(std::move(chosen)), to_numpy(std::move(hosts)));
          },
          "requests"_a.noconvert(), "reserve_blocks"_a)
      .def("remove", &remove_all<KvHosting>, "ids"_a.noconvert())
      .def("advance", &KvHosting::advance, "step"_a)
      .def(
          "overrunners",
          [](const KvHosting& self, std::int64_t within) { return to_columns(self.overrunners(within)); },
          "within_steps"_a);
}

std::size_t replies_of(const Matrix<double>& replies, const Column<std::int64_t>& slots) {
  if (replies.shape(0) != sloserve::kOutlookRows || replies.shape(1) != slots.shape(0)) {
    throw std::invalid_argument("replies: shape [" + std::to_string(replies.shape(0)) + ", " +
                                std::to_string(replies.shape(1)) + "] is not [" +
                                std::to_string(sloserve::kOutlookRows) + ", " + std::to_string(slots.shape(0)) + "]");
  }
  return slots.shape(0);
}

sloserve::DigestCurve* curves_of(const Curves& curves) {
  return reinterpret_cast<sloserve::DigestCurve*>(curves.data());
}

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
        sloserve::survival(longer.data(), longer.shape(0), longer.shape(1), stride, class_id.data(), output_tokens.data(),
                           max_tokens.data(), n, ahead.data(), ahead.shape(0), runs.data());
        return to_numpy(std::move(runs));
      },
      "longer"_a.noconvert(), "stride"_a, "class_id"_a.noconvert(), "output_tokens"_a.noconvert(),
      "max_tokens"_a.noconvert(), "ahead"_a.noconvert());
  m.def(
      "worth",
      [](const Matrix<double>& requests, std::size_t queued, const Matrix<double>& runs, const Column<double>& ahead,
         const Column<double>& engine) {
        const std::size_t n = requests.shape(1);
        if (requests.shape(0) != sloserve::kWorthRows || runs.shape(0) != n || runs.shape(1) != ahead.shape(0) ||
            engine.shape(0) != sizeof(sloserve::WorthEngine) / sizeof(double)) {
          throw std::invalid_argument("requests, runs, ahead and engine do not fit together");
        }
        const double* e = engine.data();
        std::vector<double> gain(n), cost(n);
        const double wait_s =
            sloserve::worth(requests.data(), n, queued, runs.data(), ahead.data(), ahead.shape(0),
                            {e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7], e[8]}, gain.data(), cost.data());
        return std::tuple(to_numpy(std::move(gain)), to_numpy(std::move(cost)), wait_s);
      },
      "requests"_a.noconvert(), "queued"_a, "runs"_a.noconvert(), "ahead"_a.noconvert(), "engine"_a.noconvert());
}

void bind_digest(nb::module_& m) {
  m.def(
      "deliver",
      [](Curves curves, const Column<std::int64_t>& slots, const Column<std::int64_t>& tokens,
         const Column<double>& times_s, const Column<double>& tds) {
        const std::size_t n = slots.shape(0);
        if (tokens.shape(0) != n || times_s.shape(0) != n || tds.shape(0) != n) {
          throw std::invalid_argument("slots, tokens, times_s and tds must be of one length");
        }
        sloserve::deliver(curves_of(curves), curves.shape(0), slots.data(), tokens.data(), times_s.data(), tds.data(), n);
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "tokens"_a.noconvert(), "times_s"_a.noconvert(),
      "tds"_a.noconvert());
  m.def(
      "foresee",
      [](Curves curves, const Column<std::int64_t>& slots, const Matrix<double>& replies, const Column<double>& steps_s,
         double horizon_s, double alpha) {
        const std::size_t n = replies_of(replies, slots);
        std::vector<double> serve(steps_s.shape(0) * n), wait(n);
        sloserve::foresee(curves_of(curves), curves.shape(0), slots.data(), replies.data(), n, steps_s.data(),
                          steps_s.shape(0), horizon_s, alpha, serve.data(), wait.data());
        return std::tuple(to_numpy(std::move(serve)), to_numpy(std::move(wait)));
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "replies"_a.noconvert(), "steps_s"_a.noconvert(), "horizon_s"_a,
      "alpha"_a);
  m.def(
      "stand",
      [](Curves curves, const Column<std::int64_t>& slots, const Matrix<double>& replies, double alpha) {
        const std::size_t n = replies_of(replies, slots);
        std::vector<double> current(n);
        sloserve::stand(curves_of(curves), curves.shape(0), slots.data(), replies.data(), n, alpha, current.data());
        return to_numpy(std::move(current));
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "replies"_a.noconvert(), "alpha"_a);
}

void bind_kv_copy(nb::module_& m) {
  m.attr("MOST_KV_THREADS") = sloserve::kMostKvThreads;
  m.def(
      "copy_blocks",
      [](const Matrix<std::int64_t>& regions, std::int64_t num_blocks, std::int64_t pool_base, std::int64_t pool_blocks,
         const Column<std::int64_t>& device_ids, const Column<std::int64_t>& host_ids, bool to_host, std::int64_t threads) {
        if (regions.shape(1) != 3) {
          throw std::invalid_argument("regions: " + std::to_string(regions.shape(1)) +
                                      " columns; there must be 3: base, stride, bytes");
        }
        std::vector<sloserve::KvRegion> all;
        for (std::size_t i = 0; i < regions.shape(0); ++i) {
          const std::int64_t* row = regions.data() + 3 * i;
          all.push_back({static_cast<std::uint64_t>(row[0]), row[1], row[2]});
        }
        auto* pool = reinterpret_cast<unsigned char*>(pool_base);
        nb::gil_scoped_release others_run;
        sloserve::copy_blocks(sloserve::KvLayout(all, num_blocks), pool, pool_blocks, device_ids.data(), device_ids.shape(0),
                              host_ids.data(), host_ids.shape(0), to_host, threads);
      },
      "regions"_a.noconvert(), "num_blocks"_a, "pool_base"_a, "pool_blocks"_a, "device_ids"_a.noconvert(),
      "host_ids"_a.noconvert(), "to_host"_a, "threads"_a);
}

void check_shape(const char* name, std::size_t rows, std::size_t columns, std::size_t want_rows, std::size_t want_columns) {
  if (rows != want_rows || columns != want_columns) {
    throw std::invalid_argument(std::string(name) + ": shape [" + std::to_string(rows) + ", " + std::to_string(columns) +
                                "] is not [" + std::to_string(want_rows) + ", " + std::to_string(want_columns) + "]");
  }
}

void bind_fleet(nb::module_& m) {
  m.def(
      "fleet_search",
      [](const Column<std::int64_t>& model, const Matrix<double>& dues, const Matrix<double>& work, const Matrix<double>& judged,
         const Matrix<double>& own, const Matrix<std::int64_t>& instances, const Matrix<double>& busy, const Matrix<double>& swap,
         double min_active, double swap_price, const Column<std::int64_t>& order, const Column<std::int64_t>& sizes,
         std::int64_t moves, std::uint64_t seed) {
        const std::size_t groups = model.shape(0), n = instances.shape(1), models = swap.shape(1), kinds = work.shape(0);
        check_shape("dues", dues.shape(0), dues.shape(1), 3, groups);
        check_shape("work", work.shape(0), work.shape(1), kinds, groups);
        check_shape("judged", judged.shape(0), judged.shape(1), kinds, groups);
        check_shape("own", own.shape(0), own.shape(1), kinds, groups);
        check_shape("instances", instances.shape(0), instances.shape(1), 2, n);
        check_shape("busy", busy.shape(0), busy.shape(1), 2, n);
        check_shape("swap", swap.shape(0), swap.shape(1), n * (models + 1), models);
        const sloserve::Fleet fleet{groups,
                                    n,
                                    models,
                                    kinds,
                                    model.data(),
                                    work.data(),
                                    judged.data(),
                                    own.data(),
                                    dues.data(),
                                    dues.data() + groups,
                                    dues.data() + 2 * groups,
                                    instances.data(),
                                    instances.data() + n,
                                    busy.data(),
                                    busy.data() + n,
                                    swap.data(),
                                    min_active,
                                    swap_price};
        sloserve::FleetResult found;
        {
          nb::gil_scoped_release others_run;
          found = sloserve::fleet_search(fleet, {order.data(), order.data() + order.shape(0)},
                                         {sizes.data(), sizes.data() + sizes.shape(0)}, moves, seed);
        }
        return std::tuple(to_numpy(std::move(found.order)), to_numpy(std::move(found.sizes)), found.cost, found.late,
                          found.start_cost, found.start_late);
      },
      "model"_a.noconvert(), "dues"_a.noconvert(), "work"_a.noconvert(), "judged"_a.noconvert(), "own"_a.noconvert(),
      "instances"_a.noconvert(), "busy"_a.noconvert(), "swap"_a.noconvert(), "min_active"_a, "swap_price"_a,
      "order"_a.noconvert(), "sizes"_a.noconvert(), "moves"_a, "seed"_a);
}

}  // namespace

NB_MODULE(_csrc, m) {
  m.doc() = "Compiled kernels of sloserve; use the typed wrappers in sloserve.kernels.";
  m.def(
      "top_k",
      [](const Column<double>& keys, const Column<std::int64_t>& seqs, std::int64_t k) {
        return to_numpy(sloserve::top_k(keys.data(), keys.shape(0), seqs.data(), seqs.shape(0), k));
      },
      "keys"_a.noconvert(), "seqs"_a.noconvert(), "k"_a);
  m.def(
      "anneal",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed, double initial, double final, double tau,
         std::int64_t moves, std::uint64_t seed) {
        return to_tuple(sloserve::anneal(to_requests(requests), max_batch, fixed, {initial, final, tau, moves}, seed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a, "initial"_a, "final"_a, "tau"_a, "moves"_a, "seed"_a);
  m.def(
      "exhaustive",
      [](const Matrix<double>& requests, std::int64_t max_batch, std::int64_t fixed) {
        return to_tuple(sloserve::exhaustive(to_requests(requests), max_batch, fixed));
      },
      "requests"_a.noconvert(), "max_batch"_a, "fixed"_a);
  m.def(
      "pack_greedy",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         std::int64_t max_items, bool stop_at_misfit) {
        const sloserve::Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        return to_numpy(sloserve::pack_greedy(sack, weight.shape(0), seq.data(), seq.shape(0), max_items, stop_at_misfit));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), "capacity"_a, "max_items"_a, "stop_at_misfit"_a);
  m.def(
      "pack_priced",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         std::int64_t max_items) {
        const sloserve::Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        return to_numpy(sloserve::pack_priced(sack, weight.shape(0), seq.data(), seq.shape(0), max_items));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), "capacity"_a, "max_items"_a);
  nb::enum_<sloserve::PackRule>(m, "PackRule")
      .value("PRICED", sloserve::PackRule::kPriced)
      .value("GREEDY", sloserve::PackRule::kGreedy)
      .value("PAPER", sloserve::PackRule::kPaper);
  m.def(
      "best_batch",
      [](const Matrix<double>& gain, const Column<std::int64_t>& weight, const Column<std::int64_t>& seq, std::int64_t capacity,
         const Column<std::int64_t>& batch_sizes, sloserve::PackRule rule) {
        const sloserve::Knapsack sack{gain.data(), weight.data(), gain.shape(1), capacity};
        sloserve::BatchChoice best = sloserve::best_batch(sack, gain.shape(0), weight.shape(0), seq.data(), seq.shape(0),
                                                          batch_sizes.data(), batch_sizes.shape(0), rule);
        return std::tuple(best.batch_size, to_numpy(std::move(best.chosen)), best.gain);
      },
      "gain_by_batch"_a.noconvert(), "weight"_a.noconvert(), "seq"_a.noconvert(), "capacity"_a, "batch_sizes"_a.noconvert(),
      "rule"_a);
  m.def(
      "pack_exact",
      [](const Column<double>& gain, const Column<std::int64_t>& weight, std::int64_t capacity, std::int64_t num_items,
         bool at_most) -> std::optional<OwnedColumn<std::int64_t>> {
        const sloserve::Knapsack sack{gain.data(), weight.data(), gain.shape(0), capacity};
        auto chosen = sloserve::pack_exact(sack, weight.shape(0), num_items, at_most);
        if (!chosen) return std::nullopt;
        return to_numpy(std::move(*chosen));
      },
      "gain"_a.noconvert(), "weight"_a.noconvert(), "capacity"_a, "num_items"_a, "at_most"_a);
  bind_digest(m);
  bind_worth(m);
  bind_kv_copy(m);
  bind_kv_reservation(m);
  bind_kv_hosting(m);
  bind_fleet(m);
}
