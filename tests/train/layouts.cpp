#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

import tessera;
import tessera.parallel;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using parallel_test::check;

namespace train_test {

std::vector<Layouts> layouts() {
  const parallel::StyleEntry replicate{"Replicate", "replicate", {"."}, "{}", ""};
  const parallel::StyleEntry sharded = parallel_test::fsdp({"blocks.*", "."});
  return {{"one rank", {"shard"}, {1}, {sharded}},
          {"fully sharded", {"shard"}, {2}, {sharded}},
          {"replicated", {"replicate"}, {2}, {replicate}},
          {"hybrid", {"replicate", "shard"}, {2, 2}, {replicate, sharded}}};
}

Layouts layout_named(const std::string& name) {
  const std::vector<Layouts> all = layouts();
  return *std::ranges::find(all, name, &Layouts::name);
}

void on_layout(const Layouts& layout, const std::function<void(const DeviceMesh&)>& f) {
  const std::int64_t ranks =
      std::accumulate(layout.shape.begin(), layout.shape.end(), std::int64_t{1}, std::multiplies());
  parallel_test::on_ranks(static_cast<int>(ranks),
                          [&](int) { f(DeviceMesh::make(layout.axes, Dims(layout.shape))); });
}

namespace {

std::map<std::string, std::vector<double>> state_of(Training& training) {
  std::map<std::string, std::vector<double>> all;
  const StateDict state = training.checkpoints().state();
  for (const auto& [name, tensor] : state.tensors) {
    all[name] = to_doubles(tensor.local());
  }
  for (const auto& [name, scalar] : state.scalars) {
    if (const auto* whole = std::get_if<std::int64_t>(&scalar)) {
      all[name] = {static_cast<double>(*whole)};
    }
  }
  return all;
}

}  // namespace

void same_state(Training& a, Training& b, const std::string& when) {
  const auto left = state_of(a);
  const auto right = state_of(b);
  check(left.size() == right.size(), when + ": the state has the same names");
  for (const auto& [name, values] : left) {
    const auto found = right.find(name);
    check(found != right.end() && found->second == values, when + ": " + name + " differs");
  }
}

}  // namespace train_test
