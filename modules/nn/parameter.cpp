// Parameters and buffers of a whole tree: names, freezing, memory, first values.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

Parameter::Parameter(const Dims& shape, DType dtype, Initialization init)
    : value(empty(shape, dtype, meta)), initialization(init) {
  if (is_floating(dtype)) {
    value.set_requires_grad();
  }
}

const Tensor& gradient_memory_of(Parameter& parameter) {
  MemoryPlaces& places = parameter.attach<MemoryPlaces>();
  Tensor& memory = places.gradient_memory;
  const Tensor& gradient = parameter.value.grad();
  const auto holders = [&] { return memory.storage().references(); };
  const bool own = gradient && gradient.is_distributed() && memory &&
                   &gradient.local().storage() == &memory.storage();
  if (!memory || holders() > (own ? 2 : 1) || memory.impl()->references > (own ? 2 : 1)) {
    const Tensor& value = parameter.value;
    const Tensor& local = local_of(value);
    memory = allocate_in(*places.gradient, local.shape(), local.dtype(), local.device());
  }
  return memory;
}

Buffer::Buffer(Tensor first, bool is_saved) : initial(std::move(first)), saved(is_saved) {
  const bool fits =
      initial && !initial.is_distributed() && initial.device() == cpu && !initial.requires_grad();
  if (!fits) {
    fail({.thing = "buffer",
          .wrong = "its values are wrong",
          .expected = "a plain tensor on the CPU that requires no gradient",
          .got = !initial                   ? "none"
                 : initial.is_distributed() ? "a distributed one"
                 : initial.requires_grad()  ? "one that requires a gradient"
                                            : "one on " + to_string(initial.device()),
          .advice = "a style distributes it later, and what is trained is a Parameter"});
  }
  value = empty(initial.shape(), initial.dtype(), meta);
}

std::vector<std::pair<std::string, ParameterPointer>> named_parameters(Module& root) {
  std::vector<std::pair<std::string, ParameterPointer>> named;
  for (Module* module : all_modules(root)) {
    for (const auto& [key, parameter] : module->parameters()) {
      named.emplace_back(module->name().empty() ? key : module->name() + "." + key, parameter);
    }
  }
  return named;
}

std::vector<ParameterPointer> all_parameters(Module& root) {
  std::vector<ParameterPointer> parameters;
  std::set<const Parameter*> seen;
  for (const auto& [name, parameter] : named_parameters(root)) {
    if (seen.insert(parameter.get()).second) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

std::map<std::string, Tensor> values_by_name(std::span<const ParameterPointer> parameters) {
  std::map<std::string, Tensor> values;
  for (const ParameterPointer& parameter : parameters) {
    values.emplace(parameter->name, parameter->value);
  }
  return values;
}

void end_step(Module& root) {
  const NoGrad constant;
  for (Module* const module : all_modules(root)) {
    if (const StepEnd& end = module->attached<StepEnd>(); end.call) {
      end.call();
    }
  }
}

std::vector<BufferPointer> all_buffers(Module& root) {
  std::vector<BufferPointer> buffers;
  std::set<const Buffer*> seen;
  for (Module* module : all_modules(root)) {
    for (const auto& [key, buffer] : module->buffers()) {
      if (seen.insert(buffer.get()).second) {
        buffers.push_back(buffer);
      }
    }
  }
  return buffers;
}

bool matches(const Parameter& parameter, const std::string& pattern) {
  return matches_pattern(parameter.name, pattern) ||
         std::ranges::any_of(parameter.other_names, [&](const std::string& name) {
           return matches_pattern(name, pattern);
         });
}

std::vector<std::size_t> matching_parameters(std::span<const ParameterPointer> parameters,
                                             const std::string& pattern) {
  std::vector<std::size_t> found;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    names.push_back(p.name);
    names.insert(names.end(), p.other_names.begin(), p.other_names.end());
    if (matches(p, pattern)) {
      found.push_back(i);
    }
  }
  if (found.empty()) {
    fail_input(fmt::format("the pattern '{}' matches no parameter{}", shown(pattern),
                           did_you_mean(pattern, names)));
  }
  return found;
}

void freeze(Module& root, std::span<const std::string> patterns) {
  const std::vector<ParameterPointer> parameters = all_parameters(root);
  for (const std::string& pattern : patterns) {
    for (const std::size_t i : matching_parameters(parameters, pattern)) {
      parameters[i]->value.set_requires_grad(false);
    }
  }
  if (!patterns.empty() && std::ranges::none_of(parameters, [](const ParameterPointer& p) {
        return p->value.requires_grad();
      })) {
    fail_input(
        fmt::format("all {} parameters are frozen, so there is nothing to train; remove a "
                    "pattern",
                    parameters.size()));
  }
}

void materialize(Module& root, Device device) {
  const MemoryScope scope(MemoryCategory::parameter);
  for (const ParameterPointer& parameter : all_parameters(root)) {
    Tensor& value = parameter->value;
    if (!value.is_meta()) {
      continue;
    }
    const bool trained = value.requires_grad();
    if (value.is_distributed()) {
      value = make_distributed(zeros(value.local().shape(), value.dtype(), device), value.spec());
    } else {
      value = zeros(value.shape(), value.dtype(), device);
    }
    value.set_requires_grad(trained);
  }
  for (const BufferPointer& buffer : all_buffers(root)) {
    Tensor& value = buffer->value;
    if (value.is_meta() && value.is_distributed()) {
      fail({.thing = fmt::format("buffer '{}'", buffer->name),
            .wrong = "it is distributed",
            .advice = "materialise it with its plan (ParallelPlan::materialize)"});
    }
    if (value.is_meta()) {
      value = ops::clone(ops::to_device(buffer->initial, device));
    }
  }
}

namespace {

void initialize(const Tensor& x, const Initialization& init) {
  RandomStream& stream = random_stream("init");
  switch (init.kind) {
    case Initialization::Kind::zeros:
      ops::fill_(x, 0);
      break;
    case Initialization::Kind::ones:
      ops::fill_(x, 1);
      break;
    case Initialization::Kind::normal:
      ops::normal_(x, 0, init.standard_deviation, stream);
      break;
    case Initialization::Kind::uniform:
      ops::uniform_(x, -init.bound, init.bound, stream);
      break;
    case Initialization::Kind::constant:
      ops::fill_(x, init.value);
      break;
    case Initialization::Kind::packed:
      break;
  }
}

}  // namespace

// Of absent modules, which are on the meta device, drawing values only moves the stream.
void initialize(Module& root) {
  const NoGrad no_grad;
  const std::vector<WholeModule> modules = whole_modules(root);
  std::set<const Parameter*> seen;
  for (const auto& [module, absent] : modules) {
    for (const ParameterPointer& update : own_update_parameters(*module)) {
      seen.insert(update.get());  // they come last
    }
  }
  for (const auto& [module, absent] : modules) {
    for (const PackedWeight& weight : packed_weights_of(*module)) {
      const Tensor values = absent ? empty(weight.shape, DType::f32, meta) : first_values(weight);
      initialize(values, weight.initialization);
      if (!absent) {
        weight.pack(values);
      }
    }
    for (const auto& [name, parameter] : module->parameters()) {
      if (seen.insert(parameter.get()).second) {
        initialize(parameter->value, parameter->initialization);
      }
    }
  }
  initialize_updates(root);
}

void initialize(std::span<const ParameterPointer> parameters) {
  const NoGrad no_grad;
  for (const ParameterPointer& parameter : parameters) {
    initialize(parameter->value, parameter->initialization);
  }
}

std::int64_t parameter_count(Module& root) {
  std::int64_t count = 0;
  for (const ParameterPointer& parameter : all_parameters(root)) {
    count += parameter->value.numel();
  }
  return count;
}

}  // namespace tessera::nn
