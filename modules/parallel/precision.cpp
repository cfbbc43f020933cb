module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

namespace tessera::parallel {

/// Copy that a parameter computes with where no style provides it: a leaf of the narrow type.
/// Attached to the parameter.
class NarrowCopy {
 public:
  /// Makes the copy, again when the parameter was written since: a graph of the values before
  /// keeps theirs.
  void refresh(const nn::ParameterPointer& parameter, DType dtype) {
    const Tensor& value = parameter->value;
    const Tensor& source = local_of(value);
    const bool trained = value.requires_grad();
    if (copy_ && copy_.device() == value.device() && version_ == source.storage().version() &&
        of_ == &source.storage() && recording_ == recordings() &&
        copy_.requires_grad() == trained && copy_.dtype() == dtype) {
      return;
    }
    const NoGrad no_grad;
    const MemoryScope scope(MemoryCategory::parameter);
    parameter->computed = copy_ = Tensor();
    copy_ = ops::cast(value, dtype);
    if (trained) {
      copy_.set_requires_grad();
      add_final_accumulate_hook(copy_,
                                [owner = std::weak_ptr<nn::Parameter>(parameter)](Tensor& leaf) {
                                  if (const auto complete = owner.lock()) {
                                    take_gradient(*complete, leaf);
                                  }
                                });
    }
    version_ = source.storage().version();
    of_ = &source.storage();
    recording_ = recordings();
    parameter->computed = copy_;
  }

 private:
  static void take_gradient(nn::Parameter& parameter, Tensor& leaf) {
    const Tensor gradient = std::exchange(leaf.grad(), Tensor());
    if (gradient.requires_grad()) {
      fail({.thing = "precision",
            .wrong = fmt::format("the graph of the gradient of '{}' was requested (create_graph), "
                                 "but the gradient is cast outside of the graph",
                                 parameter.name),
            .advice = "compute second derivatives without set_precision"});
    }
    const NoGrad no_grad;
    const MemoryScope scope(MemoryCategory::gradient);
    add_to_gradient(parameter, ops::cast(gradient, parameter.value.dtype()),
                    gradient_sync_enabled());
  }

  Tensor copy_;
  std::uint64_t version_ = 0;
  std::uint64_t recording_ = 0;  // see recordings()
  const Storage* of_ = nullptr;
};

namespace {

/// Before a module computes: what its own parameters compute with, unless a style provides it.
void provide(const nn::Module& module) {
  for (const auto& [name, parameter] : module.parameters()) {
    const auto& form = parameter->attached<ComputedForm>();
    if (form.dtype && form.style.empty()) {
      parameter->attach<NarrowCopy>().refresh(parameter, *form.dtype);
    }
  }
}

void cast_floating(Tensors& values, DType dtype) {
  for (Tensor& value : values) {
    if (value && is_floating(value.dtype()) && !is_stored_only(value.dtype())) {
      value = ops::cast(value, dtype);
    }
  }
}

void check_memory(const nn::Parameter& parameter) {
  if (!parameter.value.is_meta()) {
    fail_input({.thing = "precision",
                .wrong = fmt::format("parameter '{}' has memory already", parameter.name),
                .advice = "call set_precision before materialize()"});
  }
}

/// Makes the parameter one that is stored in this type.
void store(nn::Parameter& parameter, DType type) {
  check_memory(parameter);
  const NoGrad no_grad;
  const bool trained = parameter.value.requires_grad();
  parameter.value = ops::cast(detached(parameter.value), type);
  parameter.value.set_requires_grad(trained);
}

/// Errors (input): what the parameter cannot compute with.
void check(const nn::Parameter& parameter, DType narrow) {
  const DType own = parameter.value.dtype();
  if (own != narrow && size_of(narrow) >= size_of(own)) {
    fail_input({.thing = "precision",
                .wrong = fmt::format("parameter '{}' cannot compute with {}", parameter.name,
                                     name_of(narrow)),
                .expected = fmt::format("a narrower type than {}", name_of(own)),
                .advice = "leave it out to compute with the type in which parameters are stored"});
  }
  check_memory(parameter);
}

}  // namespace

void set_precision(nn::Module& module, const Precision& precision) {
  set_precision(module, precision, nn::all_parameters(module));
}

void set_precision(nn::Module& module, const Precision& precision,
                   std::span<const nn::ParameterPointer> parameters) {
  for (const auto type : {precision.parameters, precision.outputs}) {
    if (type && (!is_floating(*type) || is_stored_only(*type))) {
      fail_input({.thing = "precision",
                  .wrong = "it is not a floating type to compute with",
                  .expected = "bf16, f16 or f32",
                  .got = std::string(name_of(*type))});
    }
  }
  if (precision.stored && *precision.stored != DType::bf16 && *precision.stored != DType::f32) {
    fail_input({.thing = "precision",
                .wrong = "parameters cannot be stored in this type",
                .expected = "bf16 or f32",
                .got = std::string(name_of(*precision.stored)),
                .advice = *precision.stored == DType::f16
                              ? "the range of f16 is too small for updates and moments; use bf16"
                              : "use bf16"});
  }
  for (const nn::ParameterPointer& parameter : parameters) {
    const DType made = parameter->value.dtype();
    const bool packed = parameter->initialization.kind == nn::Initialization::Kind::packed;
    if (!is_floating(made) || is_stored_only(made) || packed) {
      continue;
    }
    if (precision.stored && made != *precision.stored) {
      store(*parameter, *precision.stored);
    }
    const DType own = parameter->value.dtype();
    if (precision.parameters) {
      check(*parameter, *precision.parameters);
      parameter->attach<ComputedForm>().dtype =
          own != *precision.parameters ? precision.parameters : std::nullopt;
    }
  }
  if (precision.parameters) {
    for (nn::Module* const owner : nn::all_modules(module)) {
      const bool owns = std::ranges::any_of(owner->parameters(), [&](const auto& own) {
        return std::ranges::find(parameters, own.second) != parameters.end();
      });
      if (owns) {
        owner->add_outer_pre_hook([](nn::Module& called, Tensors&) { provide(called); });
      }
    }
  }
  if (precision.cast_inputs && precision.parameters) {
    module.add_pre_hook([type = *precision.parameters](nn::Module&, Tensors& inputs) {
      cast_floating(inputs, type);
    });
  }
  if (precision.outputs) {
    nn::add_conversion(module,
                       [type = *precision.outputs](nn::Module&, const Tensors&, Tensors& outputs) {
                         cast_floating(outputs, type);
                       });
  }
}

}  // namespace tessera::parallel
