// Virtual queues of a fleet: which instance serves which request groups in which order, and what lateness that brings.
//
// Source: QLM, Sec. 7, Eq. 6 to 13. Differs: a group's lateness is the mean of that of its first and its last request, since its
// requests have deadlines of their own; times are quantiles given by the caller (Eq. 12); a swap has a price of its own, so that
// of two plans without lateness the one with fewer swaps is better; a model leaves once what it runs has ended.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sloserve {

// Seconds from now throughout. Groups g < groups, instances i < instances, models m < models; kinds of instances share times.
struct Fleet {
  std::size_t groups, instances, models, kinds;
  const std::int64_t* model;  // [groups]
  const double* work;         // [kinds, groups]: how long what comes behind the group waits for it
  const double* judged;       // [kinds, groups]: from the start of one request's service to the token that its deadline is about
  const double* own;          // [kinds, groups]: from the start of one request's service to its end
  const double* first_due;    // [groups]: of the request that is served first; inf for none
  const double* last_due;     // [groups]
  const double* weight;       // [groups]: of a second of lateness of all its requests
  const std::int64_t* kind;   // [instances]
  const std::int64_t* active;  // [instances]: the model whose weights are on the device, -1 for none
  const double* ready;         // [instances]: from when on it could serve more of the active model
  const double* drained;       // [instances]: from when on the active model may leave: what it runs has ended
  const double* swap;          // [instances, models + 1, models]: from the model of the row, the last for none; inf where impossible
  double min_active;           // a model stays at least this long once it has come
  double swap_price;           // of a second of swapping
};

namespace detail {

// An instance at one place of its queue.
struct FleetPlace {
  double time;        // the next group's service could begin, if its model is active
  double leave;       // the active model may leave
  double cost;        // of the groups before, prices of swaps included
  double late;        // the part of it that is lateness
  std::int64_t model;
};

class FleetQueues {
 public:
  explicit FleetQueues(const Fleet& fleet) : fleet_(fleet), queues_(fleet.instances), places_(fleet.instances) {
    for (std::size_t i = 0; i < fleet.instances; ++i) places_[i].push_back(start(i));
  }

  const std::vector<std::int32_t>& queue(std::size_t i) const { return queues_[i]; }
  const std::vector<FleetPlace>& places(std::size_t i) const { return places_[i]; }
  const FleetPlace& end(std::size_t i) const { return places_[i].back(); }

  bool serves(std::size_t i, std::size_t group) const {
    const auto m = static_cast<std::size_t>(fleet_.model[group]);
    return fleet_.swap[(i * (fleet_.models + 1) + m) * fleet_.models + m] == 0.0;
  }

  double cost() const {
    double sum = 0.0;
    for (const auto& places : places_) sum += places.back().cost;
    return sum;
  }

  double late() const {
    double sum = 0.0;
    for (const auto& places : places_) sum += places.back().late;
    return sum;
  }

  FleetPlace after(std::size_t i, FleetPlace at, std::size_t group) const {
    const Fleet& f = fleet_;
    const std::int64_t m = f.model[group];
    const std::size_t row = static_cast<std::size_t>(f.kind[i]) * f.groups + group;
    if (m != at.model) {
      const std::size_t from = at.model < 0 ? f.models : static_cast<std::size_t>(at.model);
      const double swap = f.swap[(i * (f.models + 1) + from) * f.models + static_cast<std::size_t>(m)];
      at.time = std::max(at.time, at.leave) + swap;
      at.leave = at.time + f.min_active;
      at.cost += f.swap_price * swap;
      at.model = m;
    }
    const double end = at.time + f.work[row];
    const double late = 0.5 * f.weight[group] * (std::max(at.time + f.judged[row] - f.first_due[group], 0.0) +
                                                 std::max(end + f.judged[row] - f.last_due[group], 0.0));
    at.cost += late;
    at.late += late;
    at.leave = std::max(at.leave, end + f.own[row]);
    at.time = end;
    return at;
  }

  // The instance's cost if `queue` were its queue, which differs from the present one from place `from` on; beyond `limit` infinity,
  // and `places` is of no use. Else fills `places` from there.
  double trial(std::size_t i, const std::vector<std::int32_t>& queue, std::size_t from, double limit,
               std::vector<FleetPlace>& places) const {
    places.resize(queue.size() + 1);
    places[from] = places_[i][from];
    for (std::size_t k = from; k < queue.size(); ++k) {
      places[k + 1] = after(i, places[k], static_cast<std::size_t>(queue[k]));
      if (places[k + 1].cost > limit) return HUGE_VAL;
    }
    return places.back().cost;
  }

  // Takes over what `trial` was asked; the arguments hold what was there before.
  void accept(std::size_t i, std::vector<std::int32_t>& queue, std::size_t from, std::vector<FleetPlace>& places) {
    std::copy_n(places_[i].begin(), from, places.begin());
    queues_[i].swap(queue);
    places_[i].swap(places);
  }

  void set(std::size_t i, std::vector<std::int32_t> queue) {
    std::vector<FleetPlace> places;
    trial(i, queue, 0, HUGE_VAL, places);
    accept(i, queue, 0, places);
  }

 private:
  FleetPlace start(std::size_t i) const {
    return {fleet_.ready[i], std::max(fleet_.drained[i], fleet_.ready[i]), 0.0, 0.0, fleet_.active[i]};
  }

  Fleet fleet_;
  std::vector<std::vector<std::int32_t>> queues_;
  std::vector<std::vector<FleetPlace>> places_;
};

inline void check_fleet(const Fleet& fleet) {
  const auto within = [](const std::int64_t* values, std::size_t n, std::int64_t low, std::size_t high, const char* name) {
    for (std::size_t k = 0; k < n; ++k) {
      if (values[k] < low || values[k] >= static_cast<std::int64_t>(high)) {
        throw std::invalid_argument(std::string(name) + ": " + std::to_string(values[k]) + " is not within " +
                                    std::to_string(low) + ".." + std::to_string(static_cast<std::int64_t>(high) - 1));
      }
    }
  };
  const auto finite = [](const double* values, std::size_t n, double low, const char* name) {
    for (std::size_t k = 0; k < n; ++k) {
      if (!(values[k] >= low) || !std::isfinite(values[k])) {
        throw std::invalid_argument(std::string(name) + ": " + std::to_string(values[k]) + " is not a finite number from " +
                                    std::to_string(low) + " on");
      }
    }
  };
  within(fleet.model, fleet.groups, 0, fleet.models, "model");
  within(fleet.kind, fleet.instances, 0, fleet.kinds, "kind");
  within(fleet.active, fleet.instances, -1, fleet.models, "active");
  finite(fleet.work, fleet.kinds * fleet.groups, 0.0, "work");
  finite(fleet.judged, fleet.kinds * fleet.groups, 0.0, "judged");
  finite(fleet.own, fleet.kinds * fleet.groups, 0.0, "own");
  finite(fleet.weight, fleet.groups, 0.0, "weight");
  finite(fleet.ready, fleet.instances, 0.0, "ready");
  finite(fleet.drained, fleet.instances, 0.0, "drained");
  finite(&fleet.min_active, 1, 0.0, "min_active");
  finite(&fleet.swap_price, 1, 0.0, "swap_price");
  for (std::size_t k = 0; k < fleet.groups; ++k) {
    if (std::isnan(fleet.first_due[k]) || std::isnan(fleet.last_due[k])) throw std::invalid_argument("due: not a number");
  }
  const std::size_t m = fleet.models;
  for (std::size_t i = 0; i < fleet.instances; ++i) {
    for (std::size_t from = 0; from <= m; ++from) {
      for (std::size_t to = 0; to < m; ++to) {
        const double swap = fleet.swap[(i * (m + 1) + from) * m + to];
        const double same = fleet.swap[(i * (m + 1) + to) * m + to];
        const bool served = same == 0.0;
        if (!(swap >= 0.0) || (!served && std::isfinite(swap)) || (served && from == m && !std::isfinite(swap))) {
          throw std::invalid_argument("swap: from " + std::to_string(from) + " to " + std::to_string(to) + " on instance " +
                                      std::to_string(i) + ": " + std::to_string(swap) +
                                      " is not 0 or more, or is inf where the instance serves the model");
        }
      }
    }
  }
}

}  // namespace detail
}  // namespace sloserve
