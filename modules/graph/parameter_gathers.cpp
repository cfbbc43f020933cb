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

/// Elements from one whole to the next, so that each begins with a line of the cache.
std::int64_t padded(std::int64_t elements, DType dtype) {
  const auto line = static_cast<std::int64_t>(64 / size_of(dtype));
  return (elements + line - 1) / line * line;
}

/// Calls `use` for each use of all of a parameter: with it, the instruction and its place.
void each_use(const Program& program, const ParameterUses& uses, const ByTensor<bool>& sharded,
              const std::function<void(TensorIndex, const Instruction&, PlaceIndex)>& use) {
  const ByPlace<const Instruction*> places = places_of(program);
  for (const PlaceIndex place : places.keys()) {
    if (!uses.computes[place]) {
      continue;
    }
    const Instruction& i = *places[place];
    const bool is_view = i.kind == Instruction::Kind::call && i.out.size() == 1 &&
                         i.out[0].exists() && uses.view[i.out[0]] == &i;
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const TensorIndex root = i.in[k].exists() ? uses.root[i.in[k]] : TensorIndex();
      if (root.exists() && sharded[root] && !is_view && !i.writes(k)) {
        use(root, i, place);
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
  for (const TensorIndex number : uses.parameters) {
    all += bytes_of(program.tensors[number]);
  }
  constexpr std::int64_t share = 16;
  return std::clamp(all / share, std::int64_t{64} << 10, std::int64_t{16} << 20);
}

ParameterGathers::ParameterGathers(const Program& program, const ParameterUses& uses,
                                   const ByTensor<bool>& sharded, const ByTensor<Tensor>& tensors,
                                   const DataParallelOptions& options)
    : program_(program), uses_(uses), sharded_(sharded), tensors_(tensors), options_(options) {
  const DeviceMesh& mesh = options.mesh;
  ranks_ = ops::GroupArgument::of(mesh.group(mesh.ndim() - 1, current_rank()), "parameters");
  make_groups();
  find_order();
}

ParameterGathers::Pass ParameterGathers::pass_of(const Instruction& i, PlaceIndex place) const {
  const auto begun = std::ranges::partition_point(
      uses_.updates, [&](const ParameterUpdate& update) { return update.first <= place; });
  return {!options_.gathers_again || program_.scopes[i.scope].phase == Phase::forward,
          static_cast<std::size_t>(begun - uses_.updates.begin())};
}

void ParameterGathers::make_groups() {
  const std::int64_t limit = group_bytes(program_, uses_, options_);
  each_use(program_, uses_, sharded_, [&](TensorIndex number, const Instruction&, PlaceIndex) {
    if (group_of_.contains(number)) {
      return;
    }
    const ProgramTensor& x = program_.tensors[number];
    const bool fits = !groups_.empty() &&
                      program_.tensors[groups_.back().numbers.front()].dtype == x.dtype &&
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
  std::optional<Pass> pass;
  each_use(program_, uses_, sharded_,
           [&](TensorIndex number, const Instruction& i, PlaceIndex place) {
             const Pass now = pass_of(i, place);
             if (pass != now) {
               in_pass.clear();
               pass = now;
             }
             const std::size_t group = group_of_.at(number);
             if (in_pass.insert(group).second) {
               order_.push_back({group, &i, last_write(group, place)});
             }
           });
}

PlaceIndex ParameterGathers::last_write(std::size_t group, PlaceIndex place) const {
  PlaceIndex last;
  for (const ParameterUpdate& update : uses_.updates) {
    const bool writes = std::ranges::any_of(
        groups_[group].numbers, [&](TensorIndex number) { return update.writes(number); });
    if (writes && update.last < place) {
      last = update.last;
    }
  }
  return last;
}

void ParameterGathers::enter(const Instruction& i, PlaceIndex place) {
  pass_ = pass_of(i, place);
  place_ = place;
  const auto update = std::ranges::find(uses_.updates, place, &ParameterUpdate::first);
  if (update != uses_.updates.end()) {
    wait_for_readers(*update);
  }
  const bool waited = issued_ == used_ && issued_ < order_.size();
  if (waited && order_[issued_].written_at.exists() && order_[issued_].written_at + 1 == place) {
    issue_next();
  }
}

void ParameterGathers::issue_next() {
  ahead_[issued_] = issued(order_[issued_]);
  ++issued_;
}

ParameterGathers::IssuedGather ParameterGathers::issued(const Use& use) const {
  const MemoryScope booked(MemoryCategory::communication);
  const std::vector<TensorIndex>& numbers = groups_[use.group].numbers;
  const DType dtype = program_.tensors[numbers.front()].dtype;
  std::int64_t elements = 0;
  std::vector<std::int64_t> begins;
  std::uint64_t identity = 0;
  for (const TensorIndex number : numbers) {
    begins.push_back(elements);
    elements += padded(program_.tensors[number].shape.product(), dtype);
    identity = hash_combine(identity, hash_of_name(name_of_input(program_, number)));
  }
  IssuedGather made;
  std::vector<Tensor> shards;
  run_in_scope(program_, *use.first, [&] {
    const Tensor memory = empty({elements}, dtype, meta);
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const Dims& shape = program_.tensors[numbers[k]].shape;
      made.wholes.push_back(alias(memory, shape, contiguous_strides(shape), begins[k]));
      shards.push_back(to_local(tensors_[numbers[k]]));
    }
    ops::all_gather_into(made.wholes, shards, ranks_,
                         static_cast<std::int64_t>(identity & 0x7fffffffU));
  });
  return made;
}

const Tensor& ParameterGathers::local_whole(TensorIndex number) {
  const std::size_t group = group_of_.at(number);
  if (!now_.contains(group)) {
    while (order_[used_].group != group) {
      ++used_;
    }
    while (issued_ <= used_) {
      issue_next();
    }
    now_[group] = std::move(ahead_.at(used_));
    ahead_.erase(used_);
    if (++used_ == issued_ && issued_ < order_.size() && order_[issued_].written_at < place_) {
      issue_next();
    }
  }
  IssuedGather& now = now_.at(group);
  if (!std::exchange(now.complete, true)) {
    ops::wait(now.wholes.front());
  }
  const std::vector<TensorIndex>& numbers = groups_[group].numbers;
  const auto place = std::ranges::find(numbers, number) - numbers.begin();
  return now.wholes[static_cast<std::size_t>(place)];
}

Tensor ParameterGathers::whole(TensorIndex number) {
  if (pass_of_use_ != pass_) {
    pass_of_use_ = pass_;
    now_.clear();  // what one pass has gathered is not kept for the next one
    wholes_.clear();
  }
  if (const auto kept = wholes_.find(number); kept != wholes_.end()) {
    return kept->second;
  }
  Tensor made;
  if (number == uses_.root[number]) {
    made = from_local(local_whole(number), Layout::replicated(options_.mesh),
                      program_.tensors[number].shape);
  } else {
    const Instruction& view = *uses_.view[number];
    made = call(*view.op, {whole(view.in[0])}, view.attributes)[0];
  }
  return wholes_[number] = made;
}

void ParameterGathers::wait_for_readers(const ParameterUpdate& update) {
  std::vector<Tensor> shards;
  for (const Group& group : groups_) {
    for (const TensorIndex number : group.numbers) {
      if (update.writes(number)) {
        shards.push_back(to_local(tensors_[number]));
      }
    }
  }
  if (!shards.empty()) {
    ops::wait_readers(shards, ranks_);
  }
}

}  // namespace tessera::graph
