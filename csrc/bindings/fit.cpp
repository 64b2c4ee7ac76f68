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
        NormalEquations equations{n, information.data(), aim.data(), theta.data(), positive.data()};
        equations.add(share.data(), target, keep, leak);
        equations.solve(most_solves);
      },
      "information"_a.noconvert(), "aim"_a.noconvert(), "theta"_a.noconvert(), "positive"_a.noconvert(),
      "share"_a.noconvert(), "target"_a, "keep"_a, "leak"_a, "most_solves"_a);
}

}  // namespace sloserve::bindings
