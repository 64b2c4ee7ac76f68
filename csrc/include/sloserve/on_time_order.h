// An order that meets many deadlines: a start for the annealing (anneal.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "sloserve/batch_plan.h"

namespace sloserve::detail {

// The requests behind the fixed ones, in an order that meets many deadlines of one batch after another: Moore and Hodgson's
// (earliest deadline first; when one would be late, the longest so far goes to the end), then, among those in time, the shortest
// first wherever all stay in time (Smith's backward rule). Optimal for batches of one with e2e targets only; a start otherwise.
inline std::vector<std::int64_t> on_time_order(const std::vector<BatchRequest>& requests, std::size_t fixed, double batch) {
  using Timed = std::pair<double, std::int64_t>;
  const auto at = [&](std::int64_t i) -> const BatchRequest& { return requests[static_cast<std::size_t>(i)]; };
  // In a batch of b, one request holds up those behind it by 1/b of its time.
  const auto work = [&](std::int64_t i) { return at(i).exec(batch) * at(i).share / batch; };
  double busy_s = 0.0;
  for (std::size_t i = 0; i < fixed; ++i) busy_s += work(static_cast<std::int64_t>(i));

  std::vector<Timed> due, late;
  for (std::size_t i = fixed; i < requests.size(); ++i) {
    const auto id = static_cast<std::int64_t>(i);
    const double end = requests[i].latest_start(batch) + work(id);
    if (end < busy_s + work(id)) late.emplace_back(work(id), id);
    else due.emplace_back(end, id);
  }
  std::sort(due.begin(), due.end());
  std::priority_queue<Timed> in_time;
  double end_s = busy_s;
  for (const auto& [end, id] : due) {
    in_time.emplace(work(id), id);
    end_s += work(id);
    if (end_s > end) {
      late.push_back(in_time.top());
      end_s -= in_time.top().first;
      in_time.pop();
    }
  }
  std::vector<bool> kept(requests.size(), false);
  for (; !in_time.empty(); in_time.pop()) kept[static_cast<std::size_t>(in_time.top().second)] = true;
  const auto is_late = [&](const Timed& one) { return !kept[static_cast<std::size_t>(one.second)]; };
  due.erase(std::remove_if(due.begin(), due.end(), is_late), due.end());

  // From the end: of those that may end this late, the longest; where rounding leaves none, the one due last.
  std::vector<std::int64_t> order;
  std::priority_queue<Timed> may_be_last;
  while (!due.empty() || !may_be_last.empty()) {
    while (!due.empty() && (due.back().first >= end_s || may_be_last.empty())) {
      may_be_last.emplace(work(due.back().second), due.back().second);
      due.pop_back();
    }
    end_s -= may_be_last.top().first;
    order.push_back(may_be_last.top().second);
    may_be_last.pop();
  }
  std::reverse(order.begin(), order.end());
  std::sort(late.begin(), late.end());
  for (const Timed& one : late) order.push_back(one.second);
  return order;
}

}  // namespace sloserve::detail
