// Blocks of the KV cache that tokens take.
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arrays.h"
#include "facts.h"
#include "module.h"
#include "sloserve/kv_layout.h"

namespace sloserve::bindings {

namespace {

std::int64_t checked(const char* name, std::int64_t tokens) {
  check_within(name, tokens, 0, kMostCount);
  return tokens;
}

}  // namespace

void bind_kv_layout(nb::module_& m) {
  bind_facts<KvGroups>(m, "KvGroups", "KV cache groups that are counted alike.", Fact<&KvGroups::count>{"num_groups"},
                       Fact<&KvGroups::block_size>{"block_size"}, Fact<&KvGroups::window_tokens>{"window_tokens"},
                       Fact<&KvGroups::chunk_tokens>{"chunk_tokens"}, Fact<&KvGroups::states>{"states"},
                       Fact<&KvGroups::checkpoints>{"checkpoints"}, Fact<&KvGroups::spare_blocks>{"spare_blocks"},
                       Fact<&KvGroups::most_blocks>{"most_blocks"}, Fact<&KvGroups::copied_blocks>{"copied_blocks"});
  nb::class_<KvLayout>(m, "KvLayout")
      .def(nb::init<std::vector<KvGroups>, std::int64_t, std::int64_t>(), "groups"_a, "lookahead_tokens"_a, "max_model_len"_a)
      .def(
          "held",
          [](const KvLayout& self, const Column<std::int64_t>& computed, const Column<std::int64_t>& in_flight) {
            check_size("in_flight", in_flight.shape(0), computed.shape(0), "requests");
            return made<std::int64_t>(computed.shape(0), [&](std::size_t i) {
              return self.held(checked("computed", computed.data()[i]), checked("in_flight", in_flight.data()[i]));
            });
          },
          "computed"_a.noconvert(), "in_flight"_a.noconvert())
      .def(
          "growth",
          [](const KvLayout& self, const Column<std::int64_t>& computed, std::int64_t tokens) {
            checked("tokens", tokens);
            return made<std::int64_t>(computed.shape(0),
                                      [&](std::size_t i) { return self.growth(checked("computed", computed.data()[i]), tokens); });
          },
          "computed"_a.noconvert(), "tokens"_a)
      .def(
          "most_growth",
          [](const KvLayout& self, std::int64_t tokens, std::int64_t requests) {
            return self.most_growth(checked("tokens", tokens), checked("requests", requests));
          },
          "tokens"_a, "requests"_a)
      .def(
          "to_admit",
          [](const KvLayout& self, const Column<std::int64_t>& tokens) {
            return made<std::int64_t>(tokens.shape(0),
                                      [&](std::size_t i) { return self.to_admit(checked("tokens", tokens.data()[i])); });
          },
          "tokens"_a.noconvert())
      .def(
          "filled",
          [](const KvLayout& self, const Column<double>& tokens) {
            return made<double>(tokens.shape(0), [&](std::size_t i) { return self.filled(tokens.data()[i]); });
          },
          "tokens"_a.noconvert())
      .def(
          "mean",
          [](const KvLayout& self, const Column<double>& tokens) {
            return made<double>(tokens.shape(0), [&](std::size_t i) { return self.mean(tokens.data()[i]); });
          },
          "tokens"_a.noconvert());
}

}  // namespace sloserve::bindings
