// Random numbers that are the same on every platform: no library function whose last bit may differ.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sloserve::detail {

// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform over 0..n-1, for n below 2^32.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(((next() >> 32) * n) >> 32); }

  // Exponential of mean 1, up to 6 %: -ln u with log2 linear between powers of two, so that no libm decides.
  double exponential() {
    std::uint64_t bits = next() | 1U;
    int zeros = 0;
    while (!(bits >> 63)) {
      bits <<= 1;
      ++zeros;
    }
    const double fraction = static_cast<double>(bits << 1 >> 12) * 0x1.0p-52;
    return 0.6931471805599453 * (static_cast<double>(zeros) + (1.0 - fraction));
  }

 private:
  std::uint64_t state_;
};

}  // namespace sloserve::detail
