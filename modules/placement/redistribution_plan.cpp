module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tessera/recent_map.hpp>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {

namespace {

/// Key of a plan: all that it depends on. Links are in it by their version.
struct Key {
  std::uint32_t from, to;
  std::uint64_t links;
  std::size_t element_size;
  Dims shape;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t h = hash_combine(std::uint64_t{key.from} << 32 | key.to, key.links);
    h = hash_combine(h, key.element_size);
    for (const std::int64_t size : key.shape) {
      h = hash_combine(h, static_cast<std::uint64_t>(size));
    }
    return static_cast<std::size_t>(h);
  }
};

/// Bounded, as shapes may change with every step of a program.
struct Cache {
  std::mutex mutex;
  RecentMap<Key, std::shared_ptr<const Plan>, KeyHash> plans{1 << 12};
};

Cache& cache() {
  static Cache* const instance = new Cache;
  return *instance;
}

/// Keeps the plans that this thread was given last.
const Plan& kept(std::shared_ptr<const Plan> plan) {
  struct RecentPlans {
    std::array<std::shared_ptr<const Plan>, 256> plans;
    std::size_t next = 0;
  };
  thread_local RecentPlans last;
  return *(last.plans[last.next++ % last.plans.size()] = std::move(plan));
}

void check(const Layout& from, const Layout& to, const Dims& shape) {
  require(from && to, "redistribute: there is no layout; make one first");
  if (!(from.mesh() == to.mesh())) {
    fail_input({.thing = "redistribute",
                .wrong = fmt::format("the layouts are of different meshes ({} and {})",
                                     to_string(from.mesh()), to_string(to.mesh())),
                .advice = "move between layouts of one mesh"});
  }
  check_layout_fits(from, shape.size(), "redistribute");
  check_layout_fits(to, shape.size(), "redistribute");
  for (int axis = 0; axis < to.ndim(); ++axis) {
    const Placement wanted = to.placement(axis);
    if (wanted.is_norm() && wanted != from.placement(axis)) {
      fail_input(fmt::format(
          "redistribute: a value cannot be converted to {} (expected it on mesh axis '{}' "
          "already, got {}): a norm is never negative; request Replicate or Shard",
          to_string(wanted), to.mesh().axis_name(axis), to_string(from)));
    }
  }
}

std::string format_seconds(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
                        : fmt::format("{:.2f} ms", seconds * 1e3);
}

}  // namespace

std::string_view name_of(StepKind kind) {
  constexpr std::string_view names[] = {"slice",          "all_gather", "all_reduce",
                                        "reduce_scatter", "all_to_all", "keep_first",
                                        "relabel",        "pad",        "exchange"};
  return names[static_cast<int>(kind)];
}

bool Plan::is_local() const {
  return std::none_of(steps.begin(), steps.end(),
                      [](const Step& step) { return communicates(step.kind); });
}

const Plan& plan_redistribute(const Layout& from, const Layout& to, const Dims& shape,
                              std::size_t element_size) {
  check(from, to, shape);
  const Key key{from.id(), to.id(), cost_detail::links_version(), element_size, shape};
  Cache& c = cache();
  {
    const std::lock_guard lock(c.mutex);
    if (const auto* found = c.plans.find(key)) {
      return kept(*found);
    }
  }
  auto plan = std::make_unique<Plan>();
  plan->from = from;
  plan->to = to;
  plan->shape = shape;
  plan->element_size = element_size;
  plan->steps = plan_detail::cheapest_steps(from, to, shape, element_size);
  for (const Step& step : plan->steps) {
    plan->cost += step.cost;
  }
  const std::lock_guard lock(c.mutex);
  if (const auto* found = c.plans.find(key)) {  // another thread was faster
    return kept(*found);
  }
  return kept(c.plans.insert(key, std::move(plan)));
}

int rank_count(const Step& step) {
  int product = 1;
  for (const int axis : step.axes) {
    product *= step.before.mesh().axis_size(axis);
  }
  return product;
}

double norm_order(const Step& step) {
  const Placement before = step.before.placement(step.axes[0]);
  return before.is_norm() ? before.norm_order() : step.after.placement(step.axes[0]).norm_order();
}

std::string axis_names(const Step& step) {
  std::string names;
  for (const int axis : step.axes) {
    names += (names.empty() ? "" : "+") + step.before.mesh().axis_name(axis);
  }
  return names;
}

std::string explain(const Plan& plan) {
  std::string text = fmt::format("redistribute {} -> {}, shape {}, {} bytes an element, {}\n",
                                 to_string(plan.from), to_string(plan.to), to_string(plan.shape),
                                 plan.element_size, to_string(plan.from.mesh()));
  int number = 0;
  for (const Step& step : plan.steps) {
    const std::string traffic =
        communicates(step.kind) ? format_bytes(static_cast<std::uint64_t>(step.bytes)) + " received"
                                : "local";
    // An exchange changes several axes in different ways; "now" tells what they become.
    const std::string change =
        step.kind == StepKind::exchange
            ? ""
            : fmt::format(" {} -> {},", to_string(step.before.placement(step.axes[0])),
                          to_string(step.after.placement(step.axes[0])));
    text += fmt::format("  {}. {} on {} '{}':{} {}, {}; now {}\n", ++number, name_of(step.kind),
                        step.axes.size() == 1 ? "axis" : "axes", axis_names(step), change, traffic,
                        format_seconds(step.cost), to_string(step.after));
  }
  return text + (plan.steps.empty() ? "  nothing to do\n"
                                    : fmt::format("  cost {}\n", format_seconds(plan.cost)));
}

std::string explain(const Layout& from, const Layout& to, const Dims& shape,
                    std::size_t element_size) {
  return explain(plan_redistribute(from, to, shape, element_size));
}

}  // namespace tessera
