// Gathers of a placed step, issued ahead of their use.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import :data_parallel;
import :parameter_gathers;
import :uses;

namespace tessera::graph {
namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// Elements from one whole to the next, so that each begins with a line of the cache.
std::int64_t padded(std::int64_t elements, DType dtype) {
  const auto line = static_cast<std::int64_t>(64 / size_of(dtype));
  return (elements + line - 1) / line * line;
}

/// Calls `use` for each use of all of a parameter: with its number and the instruction.
void each_use(const Program& program, const ParameterUses& uses, const std::vector<bool>& sharded,
              const std::function<void(int, const Instruction&)>& use) {
  const std::vector<const Instruction*> places = places_of(program);
  for (int place = 0; place < uses.update; ++place) {
    const Instruction& i = *places[at(place)];
    const bool is_view = i.kind == Instruction::Kind::call && i.out.size() == 1 && i.out[0] >= 0 &&
                         uses.view[at(i.out[0])] == &i;
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const int root = i.in[k] < 0 ? -1 : uses.root[at(i.in[k])];
      if (root >= 0 && sharded[at(root)] && !is_view && !is_written(i, k)) {
        use(root, i);
      }
    }
  }
}

}  // namespace

std::int64_t group_bytes(const Program& program, const ParameterUses& uses,
                         const DataParallelOptions& options) {
  if (options.group_bytes > 0) {
    return options.group_bytes;
  }
  std::int64_t all = 0;
  for (const int number : uses.parameters) {
    all += bytes_of(program.tensors[at(number)]);
  }
  constexpr std::int64_t share = 16;
  return std::clamp(all / share, std::int64_t{64} << 10, std::int64_t{16} << 20);
}

ParameterGathers::ParameterGathers(const Program& program, const ParameterUses& uses,
                                   const std::vector<bool>& sharded,
                                   const std::vector<Tensor>& tensors,
                                   const DataParallelOptions& options)
    : program_(program), uses_(uses), sharded_(sharded), tensors_(tensors), options_(options) {
  const DeviceMesh& mesh = options.mesh;
  ranks_ = ops::GroupArgument::of(mesh.group(mesh.ndim() - 1, current_rank()), "parameters");
  make_groups();
  find_order();
}

bool ParameterGathers::is_forward(Phase phase) const {
  return !options_.gathers_again || phase == Phase::forward;
}

void ParameterGathers::make_groups() {
  const std::int64_t limit = group_bytes(program_, uses_, options_);
  each_use(program_, uses_, sharded_, [&](int number, const Instruction&) {
    if (group_of_.contains(number)) {
      return;
    }
    const ProgramTensor& x = program_.tensors[at(number)];
    const bool fits = !groups_.empty() &&
                      program_.tensors[at(groups_.back().numbers.front())].dtype == x.dtype &&
                      groups_.back().bytes + bytes_of(x) <= limit;
    if (!fits) {
      groups_.emplace_back();
    }
    groups_.back().numbers.push_back(number);
    groups_.back().bytes += bytes_of(x);
    group_of_[number] = groups_.size() - 1;
  });
}

void ParameterGathers::find_order() {
  std::set<std::size_t> in_pass;
  std::optional<bool> forward;
  each_use(program_, uses_, sharded_, [&](int number, const Instruction& i) {
    const bool now = is_forward(program_.scopes[at(i.scope)].phase);
    if (forward != now) {
      in_pass.clear();
      forward = now;
    }
    if (in_pass.insert(group_of_.at(number)).second) {
      order_.push_back({group_of_.at(number), &i});
    }
  });
}

void ParameterGathers::enter(Phase phase) {
  const bool now = is_forward(phase);
  if (forward_ == now) {
    return;
  }
  forward_ = now;
  now_.clear();  // what one pass has gathered is not kept for the next one
  wholes_.clear();
}

ParameterGathers::Issued ParameterGathers::issued(const Use& use) const {
  const MemoryScope booked(MemoryCategory::communication);
  const std::vector<int>& numbers = groups_[use.group].numbers;
  const DType dtype = program_.tensors[at(numbers.front())].dtype;
  std::int64_t elements = 0;
  std::vector<std::int64_t> begins;
  std::uint64_t identity = 0;
  for (const int number : numbers) {
    begins.push_back(elements);
    elements += padded(program_.tensors[at(number)].shape.product(), dtype);
    identity = hash_combine(identity, hash_of_name(name_of_input(program_, number)));
  }
  Issued made;
  std::vector<Tensor> shards;
  run_in_scope(program_, *use.first, [&] {
    const Tensor memory = empty({elements}, dtype, meta);
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const Dims& shape = program_.tensors[at(numbers[k])].shape;
      made.wholes.push_back(alias(memory, shape, contiguous_strides(shape), begins[k]));
      shards.push_back(to_local(tensors_[at(numbers[k])]));
    }
    ops::all_gather_into(made.wholes, shards, ranks_,
                         static_cast<std::int64_t>(identity & 0x7fffffffU));
  });
  return made;
}

const Tensor& ParameterGathers::local_whole(int number) {
  const std::size_t group = group_of_.at(number);
  if (!now_.contains(group)) {
    while (order_[used_].group != group) {
      ++used_;
    }
    for (; issued_ <= used_; ++issued_) {
      ahead_[issued_] = issued(order_[issued_]);
    }
    now_[group] = std::move(ahead_.at(used_));
    ahead_.erase(used_);
    if (++used_ == issued_ && issued_ < order_.size()) {
      ahead_[issued_] = issued(order_[issued_]);
      ++issued_;
    }
  }
  Issued& now = now_.at(group);
  if (!std::exchange(now.complete, true)) {
    ops::wait(now.wholes.front());
  }
  const std::vector<int>& numbers = groups_[group].numbers;
  const auto place = std::ranges::find(numbers, number) - numbers.begin();
  return now.wholes[static_cast<std::size_t>(place)];
}

Tensor ParameterGathers::whole(int number) {
  if (const auto kept = wholes_.find(number); kept != wholes_.end()) {
    return kept->second;
  }
  Tensor made;
  if (number == uses_.root[at(number)]) {
    made = from_local(local_whole(number), Layout::replicated(options_.mesh),
                      program_.tensors[at(number)].shape);
  } else {
    const Instruction& view = *uses_.view[at(number)];
    made = call(*view.op, {whole(view.in[0])}, view.attributes)[0];
  }
  return wholes_[number] = made;
}

void ParameterGathers::wait_for_readers() {
  std::vector<Tensor> shards;
  for (const Group& group : groups_) {
    for (const int number : group.numbers) {
      shards.push_back(to_local(tensors_[at(number)]));
    }
  }
  if (!shards.empty()) {
    ops::wait_readers(shards, ranks_);
  }
}

}  // namespace tessera::graph
