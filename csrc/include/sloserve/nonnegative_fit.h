// Least squares with forgetting, of a handful of terms whose coefficients are not negative.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace sloserve {

inline constexpr std::size_t kMostTerms = 16;

// The normal equations of n terms, in memory of the caller. information: [n, n], symmetric and positive definite.
// positive: [n], which coefficients are above 0, so far as is known.
struct NormalEquations {
  std::size_t n;
  double* information;
  double* aim;
  double* theta;
  bool* positive;

  // One more observation, share * theta = target. Of what was, ``keep`` stays; ``leak`` of every term is what theta says.
  void add(const double* share, double target, double keep, double leak) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) at(i, j) = keep * at(i, j) + share[i] * share[j] + (i == j ? leak : 0.0);
      aim[i] = keep * aim[i] + share[i] * target + leak * theta[i];
    }
  }

  // The best coefficients, none negative. Which of them are 0 is taken from the last time, and corrected in ``most``
  // attempts; what is not found then is found after the next observations.
  void solve(int most) {
    std::array<double, kMostTerms> found{};
    std::array<bool, kMostTerms> some{};
    for (int attempt = 0; attempt < most; ++attempt) {
      std::copy(positive, positive + n, some.begin());
      eliminate(some, found);
      bool is_done = true;
      for (std::size_t i = 0; i < n; ++i) {
        if (!some[i]) continue;
        is_done = is_done && found[i] >= 0.0;
      }
      if (is_done) break;
      for (std::size_t i = 0; i < n; ++i) positive[i] = some[i] && found[i] > 0.0;
    }
    for (std::size_t i = 0; i < n; ++i) theta[i] = some[i] ? std::max(found[i], 0.0) : 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (std::size_t j = 0; j < n; ++j) sum += at(i, j) * theta[j];
      positive[i] = some[i] || aim[i] > sum;
    }
  }

 private:
  double& at(std::size_t i, std::size_t j) const { return information[i * n + j]; }

  // The solution for ``some`` of the terms, the others being 0, by Cholesky's factors: stable for a definite matrix.
  void eliminate(const std::array<bool, kMostTerms>& some, std::array<double, kMostTerms>& found) const {
    std::array<std::size_t, kMostTerms> of{};
    std::size_t m = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (some[i]) of[m++] = i;
    }
    std::array<std::array<double, kMostTerms>, kMostTerms> factor{};
    std::array<double, kMostTerms> x{};
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double rest = at(of[i], of[j]);
        for (std::size_t k = 0; k < j; ++k) rest -= factor[i][k] * factor[j][k];
        factor[i][j] = i == j ? std::sqrt(rest) : rest / factor[j][j];
      }
      double rest = aim[of[i]];
      for (std::size_t k = 0; k < i; ++k) rest -= factor[i][k] * x[k];
      x[i] = rest / factor[i][i];
    }
    for (std::size_t i = m; i-- > 0;) {
      for (std::size_t k = i + 1; k < m; ++k) x[i] -= factor[k][i] * x[k];
      x[i] /= factor[i][i];
      found[of[i]] = x[i];
    }
  }
};

}  // namespace sloserve
