// Fits of step times.
#include <cmath>
#include <stdexcept>

#include "arrays.h"
#include "module.h"
#include "sloserve/nonnegative_fit.h"

namespace sloserve::bindings {

namespace {

template <typename T>
using Mutable = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr const char* kFitNonnegativeDoc =
    R"(Add one observation to normal equations and solve them for coefficients that are not negative, in place.

Sums are added in one order, whatever the linear algebra library of the CPU does. With numpy each call costs more than
the arithmetic.

Args:
    information: ``[n, n]``, symmetric and positive definite, n at most 16.
    aim: ``[n]``, the right-hand side.
    theta: ``[n]``, the coefficients so far; the new ones are written there.
    positive: ``[n]``, which coefficients are above 0, as far as is known.
    share: ``[n]``, the weight of each coefficient in the observation ``share @ theta = target``.
    target: the observed value.
    keep: the share of earlier observations that stays.
    leak: the weight of one more observation of each term alone, which says that it is what ``theta`` says.
    most_solves: the most attempts to find which coefficients are 0; the next call corrects what is still wrong then.

Raises:
    ValueError: for arrays of other sizes.)";

}  // namespace

void bind_fit(nb::module_& m) {
  m.def(
      "fit_nonnegative",
      [](const nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>& information, const Mutable<double>& aim,
         const Mutable<double>& theta, const Mutable<bool>& positive, const Column<double>& share, double target,
         double keep, double leak, int most_solves) {
        const std::size_t n = aim.shape(0);
        if (n < 1 || n > kMostTerms) throw std::invalid_argument("aim: not of 1 to 16 terms");
        check_size("information", information.shape(0), n, "terms");
        check_size("information", information.shape(1), n, "terms");
        check_size("theta", theta.shape(0), n, "terms");
        check_size("positive", positive.shape(0), n, "terms");
        check_size("share", share.shape(0), n, "terms");
        NormalEquations equations{.n = n,
                                  .information = information.data(),
                                  .aim = aim.data(),
                                  .theta = theta.data(),
                                  .positive = positive.data()};
        equations.add(share.data(), target, keep, leak);
        equations.solve(most_solves);
      },
      nb::kw_only(), "information"_a.noconvert(), "aim"_a.noconvert(), "theta"_a.noconvert(), "positive"_a.noconvert(),
      "share"_a.noconvert(), "target"_a, "keep"_a, "leak"_a, "most_solves"_a, kFitNonnegativeDoc);
}

}  // namespace sloserve::bindings
