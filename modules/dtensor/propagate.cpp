// From placement rules for one mesh axis to layouts on all axes.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;

namespace tessera {
namespace {

using Order = std::vector<int>;

/// In which order mesh axes cut the dims that several of them shard: one order that suits all
/// operands, or nothing.
std::optional<Order> common_order(int axes, std::span<const SpecHandle> specs) {
  std::array<std::array<bool, max_dims>, max_dims> before{};
  for (const SpecHandle& spec : specs) {
    if (spec == nullptr) {
      continue;
    }
    for (int dim = 0; dim <= spec->layout.top_dim(); ++dim) {
      const auto cut = spec->layout.axes_sharding(dim);
      for (std::size_t i = 0; i < cut.size(); ++i) {
        for (std::size_t j = i + 1; j < cut.size(); ++j) {
          before[static_cast<std::size_t>(cut[i])][static_cast<std::size_t>(cut[j])] = true;
        }
      }
    }
  }
  Order order;
  std::array<bool, max_dims> placed{};
  while (static_cast<int>(order.size()) < axes) {
    int next = -1;
    for (int a = 0; a < axes && next < 0; ++a) {
      bool free = !placed[static_cast<std::size_t>(a)];
      for (int b = 0; b < axes && free; ++b) {
        free = placed[static_cast<std::size_t>(b)] ||
               !before[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)];
      }
      next = free ? a : -1;
    }
    if (next < 0) {
      return std::nullopt;
    }
    placed[static_cast<std::size_t>(next)] = true;
    order.push_back(next);
  }
  return order;
}

/// Padding a shard to a term of a sum moves nothing now, but makes a tensor of the whole size on
/// every rank, to be reduced later: nobody's operand becomes that unasked.
bool is_free(const Plan& plan) {
  for (const Step& step : plan.steps) {
    if ((communicates(step.kind) || step.kind == StepKind::pad) && rank_count(step) > 1) {
      return false;
    }
  }
  return true;
}

/// Cost of bringing one operand from a placement to another on one axis; unreachable
/// placements cost most.
double conversion_cost(Placement from, Placement to, std::int64_t axis_size, double bytes) {
  if (from == to) {
    return 0;
  }
  if (to.is_norm()) {
    return std::numeric_limits<double>::infinity();  // nothing can be brought there
  }
  if (axis_size == 1) {
    return 1e-9;  // nothing moves; yet results keep their operands' placement where they can
  }
  constexpr double communication = 1e12;  // above every local pass
  if (from.is_shard() && to.is_partial()) {
    return communication + 2 * bytes;  // worse than gathering it
  }
  if (from.is_replicate()) {
    return to.is_shard() ? 1 + 1e-3 * bytes : 2 + 2e-3 * bytes;
  }
  return communication + bytes;
}

/// By operand or result, then by mesh axis.
using AxisPlacements = std::vector<std::vector<Placement>>;

struct Search {
  const Op& op;
  std::span<const Tensor> in;
  const Attributes& attributes;
  ResultShapes results;
  DeviceMesh mesh;
  InlineVector<SpecHandle, 4> specs;

  std::string describe_operand(std::size_t i) const { return op.operand_name(i, in.size()); }

  /// A converted copy of such an operand would take what is written along when it goes.
  bool is_written(std::size_t i) const { return op.writes(op.place_of(i, in.size()).operand); }

  /// Operands of one number lie in one shard order. Each place of an in-place operator's lists has
  /// its own: what stands there meets no other tensor.
  std::size_t meets(std::size_t i) const {
    const bool apart = op.in_place && op.operands[0].type.find("...") != std::string::npos;
    return apart ? static_cast<std::size_t>(op.place_of(i, in.size()).in_list) : 0;
  }

  /// The cheapest way for one axis. `chosen`: what operands become on the axes before it.
  Strategy best_for(int axis, const AxisPlacements& chosen) const {
    const Call call{op, in, attributes};
    const std::int64_t size = mesh.axis_size(axis);
    const auto shards_of = [&](std::size_t i, int dim) {
      std::int64_t shards = size;
      for (int other = 0; other < mesh.ndim(); ++other) {
        const Placement placement = other < axis ? chosen[i][static_cast<std::size_t>(other)]
                                                 : specs[i]->layout.placement(other);
        shards *= other != axis && placement.is_shard(dim) ? mesh.axis_size(other) : 1;
      }
      return shards;
    };
    RuleContext context{call, results, axis, size, shards_of};
    Strategies all;
    if (op.rule != nullptr) {
      op.rule(context, all);
    }
    if (!op.never_replicated) {
      Strategy replicated;
      replicated.in.resize(in.size());
      replicated.out.resize(results.size());
      all.push_back(std::move(replicated));
    }
    const Strategy* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Strategy& s : all) {
      double cost = 0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (specs[i] == nullptr) {
          continue;
        }
        const Placement from = specs[i]->layout.placement(axis);
        const double bytes =
            static_cast<double>(in[i].numel()) * static_cast<double>(size_of(in[i].dtype()));
        cost += conversion_cost(from, s.in[i], size, bytes);
        if (is_written(i) && !(from == s.in[i])) {
          cost = std::numeric_limits<double>::infinity();
        }
      }
      if (!s.reductions.empty()) {
        cost += 1e6;  // above every local pass that would avoid it, below every conversion
      }
      if (cost < least) {
        least = cost;
        best = &s;
      }
    }
    if (best == nullptr) {
      refuse_all();
    }
    return *best;
  }

  [[noreturn]] void refuse_all() const {
    std::string text = fmt::format("{}: no placement rule accepts these operands:", op.name);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (specs[i] != nullptr) {
        text += fmt::format(" {} is {};", describe_operand(i), to_string(*specs[i]));
      }
    }
    fail(text + " redistribute one of them first");
  }

  [[noreturn]] void refuse(std::size_t i, const SpecHandle& wanted) const {
    const std::string layout = to_string(wanted->layout);
    fail({.thing = in_backward() ? fmt::format("{} in backward", op.name) : op.name,
          .wrong = fmt::format("operand '{}' {} must be redistributed to {}, and operators do not "
                               "communicate implicitly",
                               describe_operand(i), to_string(*specs[i]), layout),
          .advice = in_backward()
                        ? fmt::format("give the gradient the layout \"{}\" by a redistribute in "
                                      "forward, or open an AllowRedistribution scope around the "
                                      "call in forward or around backward",
                                      layout)
                        : fmt::format("call redistribute(x, Layout::parse(mesh, \"{}\")) first, or "
                                      "open an AllowRedistribution scope",
                                      layout)});
  }
};

/// The operands' specs and mesh, and the shapes of the results. Errors: plain operands among
/// distributed ones; operands on different meshes; an operator without a rule.
Search search_of(const Call& call, bool allow_communication) {
  Search search{call.op, call.in, call.attributes, {}, {}, {}};
  for (const Tensor& x : call.in) {
    search.specs.push_back(x ? x.spec() : SpecHandle());
    if (!x) {
      continue;
    }
    if (!x.is_distributed()) {
      fail({.thing = call.op.name,
            .wrong = fmt::format(
                "plain and distributed operands cannot be mixed (operand '{}' is plain)",
                search.describe_operand(search.specs.size() - 1)),
            .advice = "distribute() it, or call to_local() on the others"});
    }
    const DeviceMesh& mesh = x.layout().mesh();
    if (search.mesh && !(search.mesh == mesh)) {
      fail({.thing = call.op.name,
            .wrong = "the operands are on different meshes",
            .got = fmt::format("{} and {}", to_string(search.mesh), to_string(mesh)),
            .advice = "redistribute one of them"});
    }
    search.mesh = mesh;
  }
  if (call.op.infer != nullptr) {
    call.op.infer(call, search.results);
  } else if (call.op.in_place) {
    search.results.push_back({call.in[0].shape(), call.in[0].dtype()});
  }
  for (const ResultShape& result : search.results) {
    checked_product(result.shape, call.op.name);
  }
  if (call.op.rule == nullptr && !allow_communication) {
    for (const SpecHandle& spec : search.specs) {
      if (spec != nullptr && !spec->layout.is_replicated()) {
        fail({.thing = call.op.name,
              .wrong =
                  fmt::format("the operator has no placement rule for distributed operands ({})",
                              to_string(*spec)),
              .advice = "wrap the call in local_map, register the operator with a rule, or open an "
                        "AllowRedistribution scope, in which its operands are gathered"});
      }
    }
  }
  return search;
}

/// Placements that the cheapest strategy of every axis wants of operands, and makes of results.
struct ChosenPlacements {
  AxisPlacements in;
  AxisPlacements out;
  std::vector<Order> orders = {};  // of the shards, by what meets (Search::meets)
};

/// `p` receives what the strategies reduce. Error: no rule accepts the operands.
ChosenPlacements choose(const Search& search, Propagation& p) {
  const int axes = search.mesh.ndim();
  const std::vector<Placement> none(static_cast<std::size_t>(axes));
  ChosenPlacements chosen{.in = AxisPlacements(search.in.size(), none),
                          .out = AxisPlacements(search.results.size(), none)};
  for (int axis = 0; axis < axes; ++axis) {
    const Strategy s = search.best_for(axis, chosen.in);
    if (!s.reductions.empty()) {
      p.reductions = s.reductions;  // an operator declares the same for every axis
      p.reduced_axes.push_back(axis);
    }
    for (std::size_t i = 0; i < chosen.in.size(); ++i) {
      chosen.in[i][static_cast<std::size_t>(axis)] = s.in[i];
    }
    for (std::size_t i = 0; i < chosen.out.size(); ++i) {
      chosen.out[i][static_cast<std::size_t>(axis)] = s.out[i];
    }
  }
  std::vector<std::vector<SpecHandle>> meeting(1);
  for (std::size_t i = 0; i < search.in.size(); ++i) {
    meeting.resize(std::max(meeting.size(), search.meets(i) + 1));
    meeting[search.meets(i)].push_back(search.specs[i]);
  }
  for (const std::vector<SpecHandle>& specs : meeting) {
    std::optional<Order> order = common_order(axes, specs);
    if (!order) {
      search.refuse_all();
    }
    chosen.orders.push_back(*std::move(order));
  }
  return chosen;
}

/// Error: an operand would have to be communicated, and that is not allowed.
void add_operands(Propagation& p, const Search& search, const ChosenPlacements& chosen,
                  bool allow_communication) {
  for (std::size_t i = 0; i < search.in.size(); ++i) {
    const SpecHandle& spec = search.specs[i];
    p.in.push_back(spec);
    if (spec == nullptr) {
      p.wanted.emplace_back();
      continue;
    }
    const SpecHandle target =
        Spec::make(Layout::make(search.mesh, chosen.in[i], chosen.orders[search.meets(i)]),
                   spec->shape, spec->dtype);
    p.wanted.push_back(target);
    if (target == spec) {
      continue;
    }
    p.converts = true;
    if (!is_free(
            plan_redistribute(spec->layout, target->layout, spec->shape, size_of(spec->dtype)))) {
      p.communicates = true;
      if (!allow_communication) {
        search.refuse(i, target);
      }
    }
  }
}

void add_results(Propagation& p, const Search& search, const ChosenPlacements& chosen) {
  for (std::size_t i = 0; i < chosen.out.size(); ++i) {
    p.out.push_back(Spec::make(Layout::make(search.mesh, chosen.out[i], chosen.orders[0]),
                               search.results[i].shape, search.results[i].dtype));
    for (int axis = 0; axis < search.mesh.ndim(); ++axis) {
      p.peers_read |=
          p.out[i]->layout.placement(axis).is_partial() && search.mesh.axis_size(axis) > 1;
    }
  }
}

/// Error: the rule promises another shape than the local call gives, which is a fault of the
/// operator. Found here, once for each plan.
void check_promise(const Op& op, const Propagation& p, const Attributes& local) {
  Tensors locals;
  for (const SpecHandle& spec : p.wanted) {
    if (spec == nullptr) {
      locals.emplace_back();
      continue;
    }
    // No part of the call: nothing is booked for it (PlannedMemoryScope).
    const Dims shape = local_shape(*spec);
    locals.push_back(
        from_storage(Storage::none(), shape, contiguous_strides(shape), 0, spec->dtype, meta));
  }
  check_call(op, locals, local);
  ResultShapes shapes;
  op.infer({op, locals, local}, shapes);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Dims promised = local_shape(*p.out[i]);
    if (!(shapes[i].shape == promised)) {
      fail({.thing = op.name,
            .wrong = fmt::format("its placement rule is wrong: result {} as {} has the local "
                                 "shape {}, the local call gives {}",
                                 i, to_string(*p.out[i]), to_string(promised),
                                 to_string(shapes[i].shape))});
    }
  }
}

}  // namespace

Propagation propagate(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
                      bool allow_communication) {
  const Call call{op, in, attributes};
  const Search search = search_of(call, allow_communication);
  Propagation p;
  const ChosenPlacements chosen = choose(search, p);
  p.op = &op;
  p.arguments = attributes;
  add_operands(p, search, chosen, allow_communication);
  add_results(p, search, chosen);
  if (op.localize != nullptr) {
    p.local = op.localize({call, p.wanted, p.out});
  }
  if (op.infer != nullptr) {
    check_promise(op, p, p.local ? *p.local : attributes);
  }
  return p;
}

}  // namespace tessera
