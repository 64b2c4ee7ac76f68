// How clients digest what they receive.
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "facts.h"
#include "module.h"
#include "sloserve/digest.h"

namespace sloserve::bindings {

namespace {

using Curves = nb::ndarray<double, nb::shape<-1, kDigestColumns>, nb::c_contig, nb::device::cpu>;

struct ReplyArrays {
  Column<double> now_s, ttft_s, tds, left_tokens, prefill_s, first_token_s;

  // Throws std::invalid_argument where the columns are not of n replies each.
  ReplyColumns columns(std::size_t n) const {
    check_size("replies", capacity_of(now_s, ttft_s, tds, left_tokens, prefill_s, first_token_s), n, "slots");
    return {.now_s = now_s.data(),
            .ttft_s = ttft_s.data(),
            .tds = tds.data(),
            .left = left_tokens.data(),
            .prefill_s = prefill_s.data(),
            .first_s = first_token_s.data()};
  }
};

DigestCurve* curves_of(const Curves& curves) {
  return reinterpret_cast<DigestCurve*>(curves.data());
}

}  // namespace

void bind_digest(nb::module_& m) {
  bind_facts<ReplyArrays>(m, "ReplyColumns", "What is expected of replies, and foreseen: a column for each fact.",
                          Fact<&ReplyArrays::now_s>{"now_s"}, Fact<&ReplyArrays::ttft_s>{"ttft_s"},
                          Fact<&ReplyArrays::tds>{"tds"}, Fact<&ReplyArrays::left_tokens>{"left_tokens"},
                          Fact<&ReplyArrays::prefill_s>{"prefill_s"}, Fact<&ReplyArrays::first_token_s>{"first_token_s"});
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
      "curves"_a.noconvert(), "slots"_a.noconvert(), nb::kw_only(), "tokens"_a.noconvert(), "times_s"_a.noconvert(),
      "tds"_a.noconvert());
  m.def(
      "foresee",
      [](Curves curves, const Column<std::int64_t>& slots, const ReplyArrays& replies, const Column<double>& steps_s,
         double horizon_s, double alpha) {
        const std::size_t n = slots.shape(0);
        const ReplyColumns columns = replies.columns(n);
        std::vector<double> serve(steps_s.shape(0) * n), wait(n);
        foresee(curves_of(curves), curves.shape(0), slots.data(), columns, n, steps_s.data(),
                steps_s.shape(0), horizon_s, alpha, serve.data(), wait.data());
        return std::tuple(to_numpy(std::move(serve)), to_numpy(std::move(wait)));
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "replies"_a, nb::kw_only(), "steps_s"_a.noconvert(), "horizon_s"_a,
      "alpha"_a);
  m.def(
      "stand",
      [](Curves curves, const Column<std::int64_t>& slots, const ReplyArrays& replies, double alpha) {
        const std::size_t n = slots.shape(0);
        const ReplyColumns columns = replies.columns(n);
        std::vector<double> current(n);
        stand(curves_of(curves), curves.shape(0), slots.data(), columns, n, alpha, current.data());
        return to_numpy(std::move(current));
      },
      "curves"_a.noconvert(), "slots"_a.noconvert(), "replies"_a, nb::kw_only(), "alpha"_a);
}

}  // namespace sloserve::bindings
