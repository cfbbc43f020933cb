// Parameters in the program of one rank: where each is used, written and differentiated.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import :data_parallel;
import :uses;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Finder {
 public:
  explicit Finder(const Program& program) : program_(program) {
    const std::size_t count = program.tensors.size();
    uses_.parameter_of.resize(count);
    uses_.root.resize(count);
    uses_.view.resize(count);
    uses_.complete_at.resize(count);
    uses_.alone = ByTensor<bool>(count, true);
  }

  ParameterUses find() {
    find_parameters();
    find_gradient_outputs();
    const ByPlace<const Instruction*> places = places_of(program_);
    for (const PlaceIndex place : places.keys()) {
      find_views(*places[place]);
      find_pairs(*places[place], place);
      uses_.computes.add(uses_.updates.empty() || is_of_model(*places[place]));
    }
    find_completions(places);
    for (const ParameterUpdate& update : uses_.updates) {
      uses_.all_complete_at.push_back(last_completion(update.first));
    }
    uses_.all_complete_at.push_back(last_completion(places.next()));
    return std::move(uses_);
  }

 private:
  void find_parameters() {
    for (const auto& [name, input] : program_.inputs) {
      if (input.role == Role::parameter) {
        uses_.parameters.push_back(input.tensor);
        uses_.parameter_of[input.tensor] = input.tensor;
        uses_.root[input.tensor] = input.tensor;
      }
    }
  }

  void find_gradient_outputs() {
    for (const auto& [output, name] : program_.gradients) {
      const ProgramInput& input = program_.inputs.at(name);
      if (input.role == Role::parameter) {
        uses_.parameter_of[program_.outputs.at(output)] = input.tensor;
      }
    }
  }

  bool is_of_model(const Instruction& i) const {
    const Phase phase = program_.scopes[i.scope].phase;
    return phase == Phase::forward || phase == Phase::backward || phase == Phase::recomputation;
  }

  void find_views(const Instruction& i) {
    const bool aliases = i.kind == Kind::alias || (i.kind == Kind::call && !i.op->in_place &&
                                                   effects_of(*i.op).aliasing != Aliasing::none);
    if (!aliases || i.in.empty() || !i.in[0].exists()) {
      return;
    }
    uses_.alone[i.in[0]] = false;
    for (const TensorIndex out : i.out) {
      if (out.exists()) {
        uses_.alone[out] = false;
      }
    }
    if (i.kind == Kind::call && i.op->view != nullptr && i.out.size() == 1 &&
        uses_.root[i.in[0]].exists()) {
      uses_.root[i.out[0]] = uses_.root[i.in[0]];
      uses_.view[i.out[0]] = &i;
    }
  }

  /// Finds the operands that have the place of a parameter which the instruction writes.
  void find_pairs(const Instruction& i, PlaceIndex place) {
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      if (!i.in[k].exists() || !i.writes(k) || uses_.parameter_of[i.in[k]] != i.in[k]) {
        continue;
      }
      note_update(i.in[k], place);
      const std::ptrdiff_t in_list = i.op->place_of(k, i.in.size()).in_list;
      for (std::size_t other = 0; other < i.in.size(); ++other) {
        const TensorIndex number = i.in[other];
        if (number.exists() && i.op->place_of(other, i.in.size()).in_list == in_list &&
            program_.tensors[number].shape == program_.tensors[i.in[k]].shape &&
            !uses_.root[number].exists()) {
          uses_.parameter_of[number] = i.in[k];
        }
      }
    }
  }

  /// `place`: the first one of which computes does not say anything yet.
  void note_update(TensorIndex parameter, PlaceIndex place) {
    std::vector<ParameterUpdate>& updates = uses_.updates;
    const auto computes = [&](PlaceIndex between) { return uses_.computes[between]; };
    const bool is_new =
        updates.empty() || std::ranges::any_of(Indices(updates.back().first, place), computes);
    if (is_new) {
      updates.push_back({.first = place});
    }
    updates.back().last = place;
    updates.back().parameters.push_back(parameter);
  }

  /// A gradient is complete after what last writes it before anything else reads it.
  void find_completions(const ByPlace<const Instruction*>& places) {
    ByTensor<bool> read(program_.tensors.size(), false);
    for (const PlaceIndex place : places.keys()) {
      const Instruction& i = *places[place];
      for (std::size_t k = 0; k < i.in.size(); ++k) {
        if (!i.in[k].exists()) {
          continue;
        }
        if (!i.writes(k)) {
          read[i.in[k]] = true;
        } else if (!read[i.in[k]]) {
          completes(i.in[k], place);
        }
      }
      for (const TensorIndex number : i.out) {
        if (number.exists()) {
          completes(number, place);
        }
      }
    }
  }

  void completes(TensorIndex number, PlaceIndex place) {
    const bool is_input = std::ranges::any_of(
        program_.inputs, [&](const auto& input) { return input.second.tensor == number; });
    if (uses_.parameter_of[number].exists() && !is_input && uses_.computes[place]) {
      uses_.complete_at[number] = place;
    }
  }

  /// Before the place, or none.
  PlaceIndex last_completion(PlaceIndex before) const {
    PlaceIndex last;
    for (const PlaceIndex place : uses_.complete_at) {
      last = place < before ? std::max(last, place) : last;
    }
    return last;
  }

  const Program& program_;
  ParameterUses uses_;
};

/// Bytes of what forward makes and backward uses.
std::int64_t kept_activations(const Program& program) {
  std::map<TensorIndex, std::int64_t> made;
  std::int64_t bytes = 0;
  for (const Instruction* i : places_of(program)) {
    const Phase phase = program.scopes[i->scope].phase;
    if (phase == Phase::backward) {
      for (const TensorIndex number : i->in) {
        const auto found = made.find(number);
        bytes += found == made.end() ? 0 : found->second;
        made.erase(number);  // counted once
      }
    }
    const bool fresh = i->kind == Kind::call && effects_of(*i->op).aliasing == Aliasing::none;
    for (const TensorIndex number : i->out) {
      if (phase == Phase::forward && fresh && number.exists()) {
        made[number] = bytes_of(program.tensors[number]);
      }
    }
  }
  return bytes;
}

/// The arguments as they are written: what distribution has added says how one rank has cut it.
Attributes written_arguments(const Instruction& i) {
  if (i.op->localize == nullptr || i.op->arguments == nullptr) {
    return i.attributes;
  }
  std::vector<ArgumentValue> values = i.op->arguments->values(i.attributes);
  for (std::size_t f = 0; f < values.size(); ++f) {
    if (i.op->arguments->fields[f].type == ArgumentType<SpecArgument>::name) {
      values[f] = std::string("none");
    }
  }
  return i.op->arguments->from_values(values);
}

}  // namespace

bool ParameterUpdate::writes(TensorIndex number) const {
  return std::ranges::find(parameters, number) != parameters.end();
}

std::int64_t bytes_of(const ProgramTensor& x) {
  return x.shape.product() * static_cast<std::int64_t>(size_of(x.dtype));
}

std::string name_of_input(const Program& program, TensorIndex number) {
  return std::ranges::find_if(program.inputs,
                              [&](const auto& input) { return input.second.tensor == number; })
      ->first;
}

std::uint64_t hash_of_name(const std::string& name) { return std::hash<std::string>{}(name); }

void check_random_numbers(const Instruction& i, std::int64_t elements, int ranks) {
  if (i.op->arguments == nullptr) {
    return;
  }
  const std::vector<ArgumentValue> values = i.op->arguments->values(i.attributes);
  for (std::size_t f = 0; f < values.size(); ++f) {
    if (i.op->arguments->fields[f].type != ArgumentType<RandomNumbers>::name) {
      continue;
    }
    const std::uint64_t run = ArgumentType<RandomNumbers>::from_value(values[f]).run;
    if (run != 0 &&
        run * static_cast<std::uint64_t>(ranks) != static_cast<std::uint64_t>(elements)) {
      fail(
          fmt::format("the random numbers belong to rows of one of several micro-batches; record "
                      "the step with one micro-batch, or with rows of {} parts of the batch",
                      ranks));
    }
  }
}

Program as_written(Program program) {
  for (Section& section : program.sections) {
    for (Instruction& i : section.instructions) {
      if (i.kind == Kind::call) {
        i.attributes = written_arguments(i);
      }
    }
  }
  return program;
}

Program without_whole_views(Program program) {
  const Shadow shadow = shadow_of(program);
  std::map<MemoryIndex, TensorIndex> parameters;
  for (const auto& [name, input] : program.inputs) {
    if (input.role == Role::parameter) {
      parameters[shadow.memory(input.tensor)] = input.tensor;
    }
  }
  Replacement replacement(program);
  for (const TensorIndex number : program.tensors.keys()) {
    const auto found = parameters.find(shadow.memory(number));
    if (found == parameters.end()) {
      continue;
    }
    const Tensor& x = shadow.at(number);
    const Tensor& whole = shadow.at(found->second);
    if (x.shape() == whole.shape() && x.strides() == whole.strides() &&
        x.dtype() == whole.dtype()) {
      replacement.replace(number, found->second);
    }
  }
  replacement.apply(program);
  return program;
}

ParameterUses parameter_uses_of(const Program& program) { return Finder(program).find(); }

ByTensor<bool> sharded_parameters(const Program& program, const ParameterUses& uses,
                                  const DataParallelOptions& options) {
  ByTensor<bool> sharded(program.tensors.size(), false);
  const int ranks = options.mesh.size();
  const int shards = options.mesh.axis_size(options.mesh.ndim() - 1);
  if (options.mode == DataParallelMode::expand || options.mode == DataParallelMode::replicate) {
    return sharded;
  }
  ByTensor<std::int64_t> bytes(program.tensors.size(), 0);  // with gradient and state
  for (const TensorIndex number : program.tensors.keys()) {
    if (const TensorIndex parameter = uses.parameter_of[number]; parameter.exists()) {
      bytes[parameter] += bytes_of(program.tensors[number]);
    }
  }
  std::vector<TensorIndex> by_size = uses.parameters;
  std::ranges::sort(by_size, {},
                    [&](TensorIndex number) { return std::pair(bytes[number], number); });
  constexpr int share = 16;
  std::int64_t left =
      options.mode == DataParallelMode::mixed ? kept_activations(program) / ranks / share : 0;
  for (const TensorIndex number : by_size) {
    left -= bytes[number];
    const Dims& shape = program.tensors[number].shape;
    sharded[number] = left < 0 && shape.size() > 0 && shape[0] >= shards;
  }
  return sharded;
}

DataParallelMode data_parallel_mode(std::string_view name) {
  using Mode = DataParallelMode;
  const std::map<std::string_view, Mode> modes = {{"expand", Mode::expand},
                                                  {"replicate", Mode::replicate},
                                                  {"fully_shard", Mode::fully_shard},
                                                  {"default", Mode::mixed}};
  const auto found = modes.find(name);
  if (found == modes.end()) {
    fail_input({.wrong = fmt::format("there is no mode '{}'", shown(name)),
                .expected = "expand, replicate, fully_shard or default"});
  }
  return found->second;
}

}  // namespace tessera::graph
