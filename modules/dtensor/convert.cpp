// The conversions as operators, so that each is recorded, listened to and differentiated as any
// other.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import :redistribution;
import :redistribution_steps;

namespace tessera {

/// State of a PendingRedistribution.
struct RedistributionState {
  Tensor x;
  SpecHandle to;
  SpecHandle gradient;
  std::shared_ptr<const Redistribution> how;
  Walk walk;
  ops::PendingTensor pending;  // of the walk's next step
  bool issued = false;
  Tensor result;

  Tensor finish();
};

namespace {

struct RedistributeArgs {
  SpecArgument to;
  SpecArgument gradient;
};
struct BetweenArgs {
  SpecArgument from;
  SpecArgument to;
};
struct DistributeArgs {
  SpecArgument to;
};

/// The redistribution whose wait() calls the operator: a state of this process, so it is not an
/// argument.
thread_local constinit RedistributionState* finishing = nullptr;
class FinishingScope {
 public:
  explicit FinishingScope(RedistributionState& state) : before_(std::exchange(finishing, &state)) {}
  ~FinishingScope() { finishing = before_; }
  FinishingScope(const FinishingScope&) = delete;
  FinishingScope& operator=(const FinishingScope&) = delete;

 private:
  RedistributionState* const before_;
};

/// The result of redistributing x, in memory of its own where its ranks hold something else than
/// x's: a cut may be a piece of this rank's replica, and a term of a sum all of it. A write there
/// would change one replica.
Tensor own_memory(const Tensor& result, const Tensor& x) {
  const Tensor& local = result.local();
  if (result.spec() == x.spec() || &local.storage() != &x.local().storage()) {
    return result;
  }
  if (!redistribution_between(*x.spec(), *result.spec())->moves) {
    return result;  // each rank has what it had
  }
  const NoGrad no_grad;
  return make_distributed(ops::clone(local), result.spec());
}

void same_shape(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Gradient of a redistribution; the second attribute is the gradient's layout.
void redistribute_backward(const BackwardContext& context, std::span<const Tensor> grads,
                           std::span<Tensor> out) {
  out[0] = redistribute(grads[0], context.args<RedistributeArgs>().gradient->layout);
}

const Op& redistribute_op = register_op<RedistributeArgs>({
    .schema = "redistribute(x)",
    .infer = same_shape,
    .backward = redistribute_backward,
    .aliasing = Aliasing::sometimes,
    .communicates = Communicates::planned,
    .moves_elements = true,
    .distributed =
        [](const Call& call, Tensors& out) {
          const Tensor& x = call.in[0];
          const SpecHandle to = call.args<RedistributeArgs>().to.spec;
          if (finishing != nullptr && finishing->x.same_as(x) && finishing->to == to) {
            out.push_back(finishing->finish());
            return;
          }
          out.push_back(own_memory(carry_out_redistribution(x, to, false, "redistribute"), x));
        },
    .about = "The same value in another layout: slices, all-gathers, reduce-scatters, all-to-alls "
             "as the planner finds.",
});

const Op& redistribute_between_op = register_op<BetweenArgs>({
    .schema = "redistribute_between(x?)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const Spec& from = *call.args<BetweenArgs>().from;
          out.push_back({from.shape, from.dtype});
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Spec& from = *context.args<BetweenArgs>().from;
          out[0] = redistribute_between(grads[0], *grads[0].spec(), gradient_layout(from.layout));
        },
    .communicates = Communicates::planned,
    .moves_elements = true,
    .distributed =
        [](const Call& call, Tensors& out) {
          const auto args = call.args<BetweenArgs>();
          const Spec& from = *args.from;
          const Spec& to = *args.to;
          // Terms are reduced on the mesh that has them, and made on the one that wants them.
          const SpecHandle sent = with_layout(from, gradient_layout(from.layout));
          const SpecHandle received = with_layout(to, gradient_layout(to.layout));
          Tensor local;
          if (call.in[0]) {
            local = carry_out_redistribution(call.in[0], sent, false, "redistribute").local();
          }
          Tensor moved = move_between(local, *sent, *received, "redistribute");
          out.push_back(moved ? carry_out_redistribution(make_distributed(moved, received),
                                                         args.to.spec, false, "redistribute")
                              : moved);
        },
    .about = "The same value on another mesh, sent as boxes of elements.",
});

const Op& distribute_op = register_op<DistributeArgs>({
    .schema = "distribute(x)",
    .infer = same_shape,
    .backward = [](const BackwardContext&, std::span<const Tensor> grads,
                   std::span<Tensor> out) { out[0] = full_tensor(grads[0]); },
    .communicates = Communicates::planned,
    .moves_elements = true,
    .distributed =
        [](const Call& call, Tensors& out) {
          const SpecHandle whole_spec = call.args<DistributeArgs>().to.spec;
          const Spec& to = *whole_spec;
          const SpecHandle cut = with_layout(to, gradient_layout(to.layout));
          const LocalPart part =
              local_part(to.shape, cut->layout, my_coordinates(to.layout.mesh()));
          const Tensor& x = call.in[0];
          const LocalPart whole{Dims::filled(x.dims(), 0), x.shape()};
          const NoGrad no_grad;
          Tensor local = ops::clone(box_of(x, whole, part));  // a call, so that it is recorded
          out.push_back(carry_out_redistribution(make_distributed(std::move(local), cut),
                                                 whole_spec, false, "distribute"));
        },
    .about = "This rank's part of a value of which every rank has a copy.",
});

Layout layout_on(const Tensor& x, std::initializer_list<Placement> placements, const char* what) {
  const DeviceMesh mesh = x && x.is_distributed() ? x.layout().mesh() : require_mesh(what);
  return Layout::make(mesh, placements);
}

bool same_ranks(const DeviceMesh& a, const DeviceMesh& b) {
  return a.size() == b.size() &&
         std::ranges::all_of(a.ranks(), [&](int rank) { return b.contains(rank); });
}

}  // namespace

Tensor RedistributionState::finish() {
  if (issued) {
    issued = false;
    walk.settle(pending);
  }
  walk.take_all();
  return own_memory(make_distributed(std::move(walk.local), to), x);
}

collective::Communicator& communicator(const DeviceMesh& mesh, int axis) {
  return collective::World::current().communicator(mesh.group(axis, current_rank()));
}

collective::Communicator& communicator(const DeviceMesh& mesh, std::span<const int> axes) {
  return collective::World::current().communicator(mesh.group(axes, current_rank()));
}

Tensor distribute(const Tensor& x, const Layout& layout) {
  if (x && x.is_distributed()) {
    return redistribute(x, layout);
  }
  require_plain(x, "distribute");
  check_layout_fits(layout, x.dims(), "distribute");
  const Attributes attributes = DistributeArgs{{Spec::make(layout, x.shape(), x.dtype())}};
  if (x.requires_grad() && is_leaf(x)) {
    const NoGrad no_grad;
    return call_one(distribute_op, {detached(x)}, attributes).set_requires_grad();
  }
  return call_one(distribute_op, {x}, attributes);
}

Tensor distribute(const Tensor& x, std::initializer_list<Placement> placements) {
  return distribute(x, layout_on(x, placements, "distribute"));
}

Tensor distribute_from(const Tensor& x, const Layout& layout, int source) {
  require_plain(x, "distribute_from");
  check_layout_fits(layout, x.dims(), "distribute_from");
  if (!layout.mesh().contains(source)) {
    fail({.thing = "distribute_from",
          .wrong = fmt::format("rank {} is not in the mesh {}", source, to_string(layout.mesh())),
          .advice = "name one of its ranks"});
  }
  const SpecHandle one = Spec::make(Layout::replicated(DeviceMesh::make({"source"}, {1}, {source})),
                                    x.shape(), x.dtype());
  const Tensor held = current_rank() == source ? make_distributed(detached(x), one) : Tensor();
  const NoGrad no_grad;
  Tensor result = redistribute_between(held, *one, layout);
  if (x.requires_grad()) {
    result.set_requires_grad();
  }
  return result;
}

Tensor redistribute(const Tensor& x, const Layout& to, std::optional<Layout> gradient) {
  require_distributed(x, "redistribute");
  check_layout_fits(to, x.dims(), "redistribute");
  if (!(to.mesh() == x.layout().mesh())) {
    for (const int rank : to.mesh().ranks()) {
      if (!x.layout().mesh().contains(rank)) {
        fail({.thing = "redistribute",
              .wrong = fmt::format("rank {} of {} is not in the tensor's {}", rank,
                                   to_string(to.mesh()), to_string(x.layout().mesh())),
              .advice = "call redistribute_between on the ranks of both meshes"});
      }
    }
    return redistribute_between(x, *x.spec(), to);
  }
  const Targets targets = targets_of(*x.spec(), to, gradient);
  return call_one(redistribute_op, {x}, RedistributeArgs{{targets.to}, {targets.gradient}});
}

Tensor redistribute(const Tensor& x, std::initializer_list<Placement> to) {
  require_distributed(x, "redistribute");
  return redistribute(x, layout_on(x, to, "redistribute"));
}

Tensor redistribute_axis(const Tensor& x, int axis, Placement to) {
  require_distributed(x, "redistribute_axis");
  return redistribute(x, x.layout().with_placement(axis, to));
}

Tensor redistribute_between(const Tensor& x, const Spec& from, const Layout& to) {
  check_layout_fits(to, from.shape.size(), "redistribute_between");
  const bool sends = from.layout.mesh().contains(current_rank());
  if (!sends && !to.mesh().contains(current_rank())) {
    fail({.thing = "redistribute_between",
          .wrong = fmt::format("rank {} is in neither mesh ({} and {})", current_rank(),
                               to_string(from.layout.mesh()), to_string(to.mesh())),
          .advice = "only their ranks call it"});
  }
  if (sends != static_cast<bool>(x) || (x && x.spec().get() != &from)) {
    fail({.thing = "redistribute_between",
          .wrong = fmt::format(
              "rank {} gave {}", current_rank(),
              x ? to_string(x.shape()) +
                      (x.spec() == nullptr ? std::string(", plain") : " as " + to_string(*x.spec()))
                : "an undefined tensor"),
          .expected = fmt::format(
              "{}", sends ? to_string(from) : "an undefined tensor: it is not in the first mesh")});
  }
  if (x && x.requires_grad() && grad_enabled() && !same_ranks(from.layout.mesh(), to.mesh())) {
    fail({.thing = "redistribute_between",
          .wrong = fmt::format("x needs a gradient, but {} and {} do not have the same ranks: "
                               "backward would not run on all of them",
                               to_string(from.layout.mesh()), to_string(to.mesh())),
          .advice = "call cross_meshes, whose gradient comes back"});
  }
  return call_one(redistribute_between_op, {x},
                  BetweenArgs{{from.handle()}, {with_layout(from, to)}});
}

PendingRedistribution redistribute_async(const Tensor& x, const Layout& to,
                                         std::optional<Layout> gradient) {
  require_distributed(x, "redistribute_async");
  check_layout_fits(to, x.dims(), "redistribute_async");
  const Targets targets = targets_of(*x.spec(), to, gradient);
  const auto how = redistribution_between(*x.spec(), *targets.to);
  auto state = std::make_unique<RedistributionState>(
      RedistributionState{x,
                          targets.to,
                          targets.gradient,
                          how,
                          {*how, "redistribute_async", false, 0, x.local()},
                          {},
                          false,
                          {}});
  Walk& walk = state->walk;
  while (!walk.ended() && !walk.communicates_next()) {
    walk.take();
  }
  if (!walk.ended()) {
    state->pending = walk.issue();
    state->issued = true;
  }
  return PendingRedistribution(std::move(state));
}

PendingRedistribution::PendingRedistribution(std::unique_ptr<RedistributionState> state)
    : state_(std::move(state)) {}
PendingRedistribution::PendingRedistribution(PendingRedistribution&&) noexcept = default;
PendingRedistribution& PendingRedistribution::operator=(PendingRedistribution&&) noexcept = default;
PendingRedistribution::~PendingRedistribution() = default;

const Tensor& PendingRedistribution::wait() {
  RedistributionState& s = *state_;
  if (!s.result) {
    const FinishingScope scope(s);
    s.result = call_one(redistribute_op, {s.x}, RedistributeArgs{{s.to}, {s.gradient}});
  }
  return s.result;
}

bool PendingRedistribution::done() {
  return state_->result || !state_->issued || state_->pending.done();
}

}  // namespace tessera
