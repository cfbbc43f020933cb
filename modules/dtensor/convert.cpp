module;
#include <fmt/format.h>

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
import tessera.collective;
import tessera.ops;

namespace tessera {
namespace {

const Spec* spec_argument(AttributeReader& reader) { return reader.pointer<Spec>(); }

const Spec* with_layout(const Spec& spec, const Layout& layout) {
  return Spec::make(layout, spec.shape, spec.dtype);
}

void check_shape(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

const Op& redistribute_op = register_op({
    .schema = "redistribute(x; to: spec, gradient: spec)",
    .infer = check_shape,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader reader = context.read();
          spec_argument(reader);
          out[0] = redistribute(grads[0], spec_argument(reader)->layout);
        },
    .distributed =
        [](const Call& call, Tensors& out) {
          AttributeReader reader = call.read();
          out.push_back(
              carry_out_redistribution(call.in[0], spec_argument(reader), false, "redistribute"));
        },
    .about = "The same value in another layout: slices, all-gathers, reduce-scatters, all-to-alls "
             "as the planner finds.",
});

const Op& to_local_op = register_op({
    .schema = "to_local(x; gradient: spec)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          out.push_back({local_shape(*call.in[0].spec()), call.in[0].dtype()});
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader reader = context.read();
          const Spec& gradient = *spec_argument(reader);
          out[0] = from_local(grads[0], gradient.layout, gradient.shape);
        },
    .distributed = [](const Call& call,
                      Tensors& out) { out.push_back(detached(call.in[0].local())); },
    .about = "This rank's part as a plain tensor; the gradient comes back in the layout that the "
             "caller states.",
});

const Op& from_local_op = register_op({
    .schema = "from_local(x; to: spec)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          AttributeReader reader = call.read();
          out.push_back({spec_argument(reader)->shape, call.in[0].dtype()});
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader reader = context.read();
          const Layout layout = gradient_layout(spec_argument(reader)->layout);
          out[0] = to_local(redistribute(grads[0], layout), layout);
        },
    .distributed =
        [](const Call& call, Tensors& out) {
          AttributeReader reader = call.read();
          out.push_back(make_distributed(detached(call.in[0]), spec_argument(reader)));
        },
    .about = "The distributed tensor of which the operand is this rank's part.",
});

void require_distributed(const Tensor& x, const char* what) {
  if (!x || !x.is_distributed()) {
    fail(fmt::format("{}: a distributed tensor is expected; distribute() or from_local() makes one",
                     what));
  }
}

void require_plain(const Tensor& x, const char* what) {
  if (!x || x.is_distributed()) {
    fail(fmt::format(
        "{}: a plain tensor is expected; redistribute() changes the layout of a distributed one",
        what));
  }
}

Tensor cut(const Tensor& x, const Layout& layout) {
  check_layout_fits(layout, x.dims(), "distribute");
  if (layout.has_partial()) {
    fail(
        fmt::format("distribute: a whole value cannot become {}; use from_local for terms of a sum",
                    to_string(layout)));
  }
  const Spec* const spec = Spec::make(layout, x.shape(), x.dtype());
  const LocalPart part = local_part(x.shape(), layout, my_coordinates(layout.mesh()));
  const NoGrad no_grad;
  Tensor local = detached(x);
  for (int dim = 0; dim < x.dims(); ++dim) {
    local = ops::narrow(local, dim, part.offset[dim], part.shape[dim]);
  }
  local = layout.is_replicated() ? ops::clone(local) : ops::clone(ops::contiguous(local));
  Tensor result = make_distributed(std::move(local), spec);
  if (x.requires_grad()) {
    result.set_requires_grad();
  }
  return result;
}

}  // namespace

Layout gradient_layout(const Layout& layout) {
  Layout result = layout;
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_partial()) {
      result = result.with_placement(axis, Replicate());
    }
  }
  return result;
}

collective::Communicator& communicator(const DeviceMesh& mesh, int axis) {
  return collective::World::current().communicator(mesh.group(axis, current_rank()));
}

Tensor distribute(const Tensor& x, const Layout& layout) {
  require_plain(x, "distribute");
  return cut(x, layout);
}

Tensor distribute_from(const Tensor& x, const Layout& layout, int source) {
  require_plain(x, "distribute_from");
  const DeviceMesh& mesh = layout.mesh();
  const int root = mesh.position_of(source);
  if (root < 0) {
    fail(fmt::format("distribute_from: rank {} is not in the mesh {}", source, to_string(mesh)));
  }
  Tensor whole = ops::clone(detached(x));
  const auto ranks = mesh.ranks();
  whole = ops::broadcast(whole, root, collective::World::current().communicator(ranks));
  if (x.requires_grad()) {
    whole.set_requires_grad();
  }
  return cut(whole, layout);
}

Tensor from_local(const Tensor& local, const Layout& layout, std::optional<Dims> shape) {
  require_plain(local, "from_local");
  check_layout_fits(layout, local.dims(), "from_local");
  if (!shape) {
    shape = local.shape();
    for (int dim = 0; dim < local.dims(); ++dim) {
      (*shape)[dim] *= layout.ways(dim);
    }
  }
  const Spec* const spec = Spec::make(layout, *shape, local.dtype());
  const Dims expected = local_shape(*spec);
  if (!(local.shape() == expected)) {
    fail(
        fmt::format("from_local: this rank's part of {} is {} (got a local tensor of {}); pass the "
                    "global shape",
                    to_string(*spec), to_string(expected), to_string(local.shape())));
  }
  return call_one(from_local_op, {local}, Attributes().add_pointer(spec));
}

Tensor to_local(const Tensor& x, std::optional<Layout> gradient) {
  require_distributed(x, "to_local");
  if (!gradient) {
    gradient = gradient_layout(x.layout());
    for (int axis = 0; axis < x.layout().ndim() && x.requires_grad() && grad_enabled(); ++axis) {
      if (x.layout().placement(axis).is_replicate() && x.layout().mesh().axis_size(axis) > 1) {
        fail(
            fmt::format("to_local: x is Replicate on axis '{}' and needs a gradient, whose layout "
                        "depends on how the "
                        "ranks use the value; pass it: Replicate if all use it alike, Partial if "
                        "each uses it for its "
                        "own part",
                        x.layout().mesh().axis_name(axis)));
      }
    }
  }
  return call_one(to_local_op, {x}, Attributes().add_pointer(with_layout(*x.spec(), *gradient)));
}

Tensor redistribute(const Tensor& x, const Layout& to, std::optional<Layout> gradient) {
  require_distributed(x, "redistribute");
  check_layout_fits(to, x.dims(), "redistribute");
  if (!(to.mesh() == x.layout().mesh())) {
    fail(fmt::format("redistribute: both layouts must be of one mesh (got {} and {})",
                     to_string(x.layout().mesh()), to_string(to.mesh())));
  }
  const Layout back = gradient ? *gradient : gradient_layout(x.layout());
  return call_one(redistribute_op, {x},
                  Attributes()
                      .add_pointer(with_layout(*x.spec(), to))
                      .add_pointer(with_layout(*x.spec(), back)));
}

Tensor redistribute_axis(const Tensor& x, int axis, Placement to) {
  require_distributed(x, "redistribute_axis");
  return redistribute(x, x.layout().with_placement(axis, to));
}

Tensor full_tensor(const Tensor& x) {
  require_distributed(x, "full_tensor");
  const Layout whole = Layout::replicated(x.layout().mesh());
  return to_local(redistribute(x, whole), whole);
}

Tensor distributed_empty(const Dims& shape, const Layout& layout, DType dtype, Device device) {
  const Spec* const spec = Spec::make(layout, shape, dtype);
  return make_distributed(empty(local_shape(*spec), dtype, device), spec);
}

Tensor distributed_zeros(const Dims& shape, const Layout& layout, DType dtype, Device device) {
  const Spec* const spec = Spec::make(layout, shape, dtype);
  return make_distributed(zeros(local_shape(*spec), dtype, device), spec);
}

Tensor distributed_full(const Dims& shape, double value, const Layout& layout, DType dtype,
                        Device device) {
  if (layout.has_partial()) {
    fail(fmt::format(
        "distributed_full: a value cannot be made {}; make it Replicate and redistribute",
        to_string(layout)));
  }
  const Spec* const spec = Spec::make(layout, shape, dtype);
  return make_distributed(full(local_shape(*spec), value, dtype, device), spec);
}

}  // namespace tessera
