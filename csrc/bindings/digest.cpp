// How clients digest what they receive.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "module.h"
#include "sloserve/digest.h"

namespace sloserve::bindings {

namespace {

using Curves = nb::ndarray<double, nb::shape<-1, kDigestColumns>, nb::c_contig, nb::device::cpu>;

std::size_t replies_of(const Matrix<double>& replies, const Column<std::int64_t>& slots) {
  check_shape("replies", replies, kOutlookRows, slots.shape(0));
  return slots.shape(0);
}

DigestCurve* curves_of(const Curves& curves) {
  return reinterpret_cast<DigestCurve*>(curves.data());
}

}  // namespace

void bind_digest(nb::module_& m) {
  m.def(
      "deliver",
      [](Curves curves, const Column<std::int64_t>& slots, const Column<std::int64_t>& tokens,
         const Column<double>& times_s, const Column<double>& tds) {
        const std::size_t n = slots.shape(0);
        check_size("tokens", tokens.shape(0), n, "slots");
        check_size("times_s", times_s.shape(0), n, "slots");
        check_size("tds", tds.shape(0), n, "slots");
        deliver(curves_of(curves), curves.shape(0), slots.data(), tokens.data(), times_s.data(), tds.data(), n);
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "tokens"_a.noconvert(), "times_s"_a.noconvert(),
      "tds"_a.noconvert());
  m.def(
      "foresee",
      [](Curves curves, const Column<std::int64_t>& slots, const Matrix<double>& replies, const Column<double>& steps_s,
         double horizon_s, double alpha) {
        const std::size_t n = replies_of(replies, slots);
        std::vector<double> serve(steps_s.shape(0) * n), wait(n);
        foresee(curves_of(curves), curves.shape(0), slots.data(), replies.data(), n, steps_s.data(),
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
        stand(curves_of(curves), curves.shape(0), slots.data(), replies.data(), n, alpha, current.data());
        return to_numpy(std::move(current));
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "replies"_a.noconvert(), "alpha"_a);
}

}  // namespace sloserve::bindings
