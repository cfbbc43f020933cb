module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tessera/links_version.hpp>
#include <tessera/recent_map.hpp>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import :redistribution;
import :redistribution_steps;

namespace tessera {
namespace {

constexpr std::size_t most_kept = 1 << 10;

// Keys have addresses of Specs, which their values hold: no other Spec gets one while it is a key.
struct Key {
  const Spec* from;
  const Spec* to;
  std::uint64_t links;
  int rank;
  friend bool operator==(const Key&, const Key&) = default;
};

struct TargetKey {
  const Spec* from;
  std::uint32_t to;
  std::int64_t gradient;  // a layout's id, or -1
  friend bool operator==(const TargetKey&, const TargetKey&) = default;
};

std::uint64_t bits_of(const Spec* spec) { return reinterpret_cast<std::uint64_t>(spec); }

struct Hash {
  std::size_t operator()(const Key& key) const {
    return hash_combine(hash_combine(bits_of(key.from), bits_of(key.to)),
                        key.links << 32 ^ static_cast<std::uint64_t>(key.rank));
  }
  std::size_t operator()(const TargetKey& key) const {
    return hash_combine(bits_of(key.from),
                        std::uint64_t{key.to} << 32 ^ static_cast<std::uint64_t>(key.gradient));
  }
};

using Redistributions = RecentMap<Key, std::shared_ptr<const Redistribution>, Hash>;
using AllTargets = RecentMap<TargetKey, Targets, Hash>;

// A rank is a thread or a process, so nothing is locked.
struct ThreadCaches {
  Redistributions redistributions{most_kept};
  AllTargets targets{most_kept};
};

ThreadCaches& cached() {
  thread_local ThreadCaches instance;
  return instance;
}

ResolvedStep resolved(const Step& step, const Spec& spec, const Dims& coordinates, int rank) {
  ResolvedStep result;
  result.step = &step;
  result.ranks = rank_count(step);
  result.communicates = communicates(step.kind) && result.ranks > 1;
  result.shape = local_shape(spec.shape, step.after, coordinates);
  if (result.communicates) {
    result.group = ops::GroupArgument::of(step.before.mesh().group(step.axes, rank));
  }
  if (step.from_dim >= 0) {
    Layout without = step.before;
    for (const int axis : step.axes) {
      without = without.with_placement(axis, Replicate());
    }
    result.extent = local_shape(spec.shape, without, coordinates)[step.from_dim];
  }
  const auto index = static_cast<int>(coordinates[step.axes[0]]);
  if (step.kind == LocalStep::slice) {
    const std::int64_t extent = local_shape(spec.shape, step.before, coordinates)[step.to_dim];
    result.mine = chunk_of({0, extent}, result.ranks, index);
  } else if (step.kind == LocalStep::pad) {
    result.mine = chunk_of({0, result.extent}, result.ranks, index);
  }
  if (step.kind.is_exchange()) {
    result.before = with_layout(spec, step.before);
    result.after = with_layout(spec, step.after);
  }
  return result;
}

}  // namespace

std::shared_ptr<const Redistribution> redistribution_between(const Spec& from, const Spec& to) {
  const Key key{&from, &to, internal::links_version(), current_rank()};
  if (const auto* found = cached().redistributions.find(key)) {
    return *found;
  }
  auto made = std::make_shared<Redistribution>();
  made->from = from.handle();
  made->to = to.handle();
  made->coordinates = my_coordinates(from.layout.mesh());
  made->plan = plan_redistribute(from.layout, to.layout, from.shape, size_of(from.dtype));
  for (const Step& step : made->plan.steps) {
    made->steps.push_back(resolved(step, from, made->coordinates, key.rank));
    made->moves = made->moves || made->steps.back().ranks > 1;
  }
  return cached().redistributions.insert(key, std::move(made));
}

Targets targets_of(const Spec& from, const Layout& to, const std::optional<Layout>& gradient) {
  const TargetKey key{&from, to.id(), gradient ? std::int64_t{gradient->id()} : -1};
  if (const Targets* found = cached().targets.find(key)) {
    return *found;
  }
  const Layout back = gradient ? *gradient : gradient_layout(from.layout);
  return cached().targets.insert(key,
                                 {from.handle(), with_layout(from, to), with_layout(from, back)});
}

std::size_t redistributions_kept() {
  return cached().redistributions.size() + cached().targets.size();
}

}  // namespace tessera
