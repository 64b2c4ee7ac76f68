// Random fleets, planned with and without a last plan: no read or write goes astray, and each group is planned once.

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "sloserve/fleet_search.h"

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 100;
  const double inf = std::numeric_limits<double>::infinity();
  std::mt19937_64 random(1);
  auto to = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int run = 0; run < runs; ++run) {
    const std::size_t groups = 1 + below(60), instances = 1 + below(5), models = 1 + below(4), kinds = 1 + below(instances);
    std::vector<std::int64_t> model(groups), kind(instances), active(instances), last, sizes(instances, 0);
    std::vector<double> work(kinds * groups), judged(kinds * groups), own(kinds * groups), first(groups), due(groups), weight(groups);
    std::vector<double> ready(instances), drained(instances), swap(instances * (models + 1) * models);
    for (auto* one : {&work, &judged, &own}) {
      for (double& x : *one) x = to(0.0, 10.0);
    }
    for (std::size_t g = 0; g < groups; ++g) {
      model[g] = static_cast<std::int64_t>(below(models));
      first[g] = below(8) ? to(-5.0, 60.0) : inf;
      due[g] = first[g] + to(0.0, 5.0);
      weight[g] = to(1.0, 100.0);
    }
    for (std::size_t i = 0; i < instances; ++i) {
      kind[i] = static_cast<std::int64_t>(below(kinds));
      active[i] = static_cast<std::int64_t>(below(models + 1)) - 1;
      ready[i] = to(0.0, 3.0);
      drained[i] = to(0.0, 6.0);
      for (std::size_t from = 0; from <= models; ++from) {
        for (std::size_t m = 0; m < models; ++m) swap[(i * (models + 1) + from) * models + m] = from == m ? 0.0 : to(0.5, 9.0);
      }
    }
    for (std::size_t g = 0; g < groups; g += 2) {  // half of them were planned before, on the first instance
      last.push_back(static_cast<std::int64_t>(g));
      ++sizes[0];
    }
    const sloserve::Fleet fleet{groups,          instances,    models,      kinds,         model.data(), work.data(),  judged.data(),
                                own.data(),      first.data(), due.data(),  weight.data(), kind.data(),  active.data(), ready.data(),
                                drained.data(),  swap.data(),  to(0.0, 5.0), 1.0};
    const auto found = sloserve::fleet_search(fleet, last, sizes, below(3) ? 20000 : 0, static_cast<std::uint64_t>(run));
    std::vector<int> planned(groups, 0);
    for (const std::int64_t g : found.order) ++planned.at(static_cast<std::size_t>(g));
    for (const int count : planned) {
      if (count != 1) return 1;
    }
    if (found.cost > found.start_cost + 1e-9 * (1.0 + found.start_cost)) return 2;
  }
  std::printf("%d fleets\n", runs);
  return 0;
}
