module;
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;

namespace tessera::app {
namespace {

using Key = std::pair<std::string, std::string>;
Key key_of(const KernelSum& sum) { return {sum.name, {}}; }
Key key_of(const CollectiveSum& sum) { return {sum.name, sum.axes}; }

/// The longest first.
template <class Sum>
std::vector<Sum> sorted(std::map<Key, Sum> sums) {
  std::vector<Sum> all;
  for (auto& [key, sum] : sums) {
    all.push_back(std::move(sum));
  }
  std::ranges::sort(all, [](const Sum& a, const Sum& b) {
    return a.seconds != b.seconds ? a.seconds > b.seconds : key_of(a) < key_of(b);
  });
  return all;
}

void add(KernelSum& to, const KernelSum& sum, double times) {
  to.name = sum.name;
  to.calls += times * sum.calls;
  to.seconds += times * sum.seconds;
}

void add(CollectiveSum& to, const CollectiveSum& sum, double times) {
  to.name = sum.name;
  to.axes = sum.axes;
  to.calls += times * sum.calls;
  to.received += times * sum.received;
  to.seconds += times * sum.seconds;
  to.waited += times * sum.waited;
}

/// The sums of `last`, and `more` times what they are more than those of `first`.
template <class Sum>
std::vector<Sum> continued(const std::vector<Sum>& first, const std::vector<Sum>& last,
                           double more) {
  std::map<Key, Sum> sums;
  for (const Sum& sum : last) {
    add(sums[key_of(sum)], sum, 1 + more);
  }
  for (const Sum& sum : first) {
    add(sums[key_of(sum)], sum, -more);
  }
  return sorted(std::move(sums));
}

}  // namespace

std::string axes_of(const DeviceMesh& mesh, const CallGroup& group) {
  const auto first = mesh.coordinates_of(group.ranks.front());
  const auto last = mesh.coordinates_of(group.ranks.back());
  std::string axes;
  for (int axis = 0; first && last && axis < mesh.ndim(); ++axis) {
    if ((*first)[axis] != (*last)[axis]) {
      axes += (axes.empty() ? "" : "+") + mesh.axis_name(axis);
    }
  }
  return axes;
}

std::string kernel_name(const Instruction& i) {
  return i.kind == Instruction::Kind::call ? i.op->name : "full";
}

StepTimes sums_of(const Program& program, const SimulatedStep& step, const DeviceMesh& mesh) {
  const auto places = graph::places_of(program);
  std::map<Key, KernelSum> kernels;
  for (const StepSpan& span : step.computing) {
    const KernelSum one{kernel_name(*places[span.place]), 1, span.end - span.begin};
    add(kernels[key_of(one)], one, 1);
  }
  std::map<Key, CollectiveSum> collectives;
  const auto sum_of = [&](PlaceIndex place) {
    const Instruction& i = *places[place];
    const CallGroup* const group = graph::group_of(i);
    return CollectiveSum{.name = i.op->name,
                         .axes = group == nullptr ? std::string() : axes_of(mesh, *group)};
  };
  for (const StepSpan& span : step.communicating) {
    if (span.end > span.begin) {
      CollectiveSum one = sum_of(span.place);
      one.calls = 1;
      one.received = static_cast<double>(graph::received_bytes(program, *places[span.place]));
      one.seconds = span.end - span.begin;
      add(collectives[key_of(one)], one, 1);
    }
  }
  for (const StepSpan& span : step.waiting) {
    CollectiveSum one = sum_of(span.place);
    one.waited = span.end - span.begin;
    add(collectives[key_of(one)], one, 1);
  }
  return {.seconds = step.seconds,
          .computing = step.computed(),
          .communicating = step.communicated(),
          .waiting = step.waited(),
          .kernels = sorted(std::move(kernels)),
          .collectives = sorted(std::move(collectives))};
}

void add_host(StepTimes& step, double seconds) {
  step.calling += seconds;
  step.seconds += seconds;
}

StepTimes continued(const StepTimes& first, const StepTimes& last, double more) {
  const auto number = [&](double StepTimes::* what) {
    return last.*what + more * (last.*what - first.*what);
  };
  return {.seconds = number(&StepTimes::seconds),
          .computing = number(&StepTimes::computing),
          .calling = number(&StepTimes::calling),
          .communicating = number(&StepTimes::communicating),
          .waiting = number(&StepTimes::waiting),
          .kernels = continued(first.kernels, last.kernels, more),
          .collectives = continued(first.collectives, last.collectives, more)};
}

}  // namespace tessera::app
