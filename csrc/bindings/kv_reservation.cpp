// Books of the KV cache: blocks reserved for what requests will grow to, and lent meanwhile.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/kv_hosting.h"
#include "sloserve/kv_reservation.h"

namespace sloserve::bindings {

namespace {

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
auto to_columns(const std::vector<KvOverrun>& overrunners) {
  std::vector<std::int64_t> ids, due;
  for (const auto& one : overrunners) {
    ids.push_back(one.id);
    due.push_back(one.due);
  }
  return std::tuple(to_numpy(std::move(ids)), to_numpy(std::move(due)));
}

}  // namespace

void bind_kv_reservation(nb::module_& m) {
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
            std::vector<KvCandidate> candidates;
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

}  // namespace sloserve::bindings
