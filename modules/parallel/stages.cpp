module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.pipeline;
import tessera.mesh;
import tessera.ops;
import tessera.nn;

namespace tessera::parallel {
namespace {

/// The modules of these names, with those inside, in the order of the tree.
std::vector<nn::Module*> modules_of(nn::Module& model, const std::vector<std::string>& names) {
  std::vector<nn::Module*> found;
  for (nn::Module* const module : nn::all_modules(model)) {
    if (std::ranges::find(names, module->name()) != names.end()) {
      std::ranges::copy(nn::all_modules(*module), std::back_inserter(found));
    }
  }
  return found;
}

}  // namespace

Stages::Stages(nn::Module& model, const DeviceMesh& mesh, int axis, StageDivision division,
               std::string entry)
    : mesh_(mesh), axis_(axis), division_(std::move(division)), entry_(std::move(entry)) {
  const nn::LanguageModel* const chain = nn::as_language_model(model);
  chain_ = chain == nullptr ? std::vector<std::vector<std::string>>() : chain->pieces();
  const auto refuse = [&](const std::string& wrong, const std::string& advice) {
    fail_input({.where = entry_, .wrong = wrong, .advice = advice});
  };
  if (chain_.empty()) {
    refuse(fmt::format("models of the kind {} do not say how they are a chain of pieces",
                       model.kind()),
           "use another style, or let the family override pieces()");
  }
  const std::vector<std::size_t>& begins = division_.begins;
  if (begins.empty() || begins.front() != 0 || begins.back() >= chain_.size() ||
      std::ranges::adjacent_find(begins, std::ranges::greater_equal()) != begins.end()) {
    refuse(
        "stages must begin with the first piece, and each with a later one than the stage "
        "before",
        "correct the division");
  }
  for (std::size_t stage = 0; stage < begins.size(); ++stage) {
    const bool last = stage + 1 == begins.size();
    pieces_.push_back({begins[stage], last ? nn::PieceRange::end : begins[stage + 1]});
  }
  const int ranks = mesh.axis_size(axis);
  std::set<int> used(division_.rank_of_stage.begin(), division_.rank_of_stage.end());
  if (division_.rank_of_stage.size() != pieces_.size() || static_cast<int>(used.size()) != ranks ||
      *used.begin() != 0 || *used.rbegin() != ranks - 1) {
    refuse(fmt::format("{} stages do not give each of the {} ranks of axis '{}' one at least",
                       pieces_.size(), ranks, mesh.axis_name(axis)),
           "correct the schedule, or the axis");
  }
  std::map<const nn::Parameter*, SharedParameter> users;
  for (int stage = 0; stage < count(); ++stage) {
    const nn::PieceRange range = pieces(stage);
    std::set<const nn::Parameter*> own;
    for (std::size_t piece = range.first; piece < std::min(range.last, chain_.size()); ++piece) {
      for (const nn::Module* const module : modules_of(model, chain_[piece])) {
        for (const auto& [key, parameter] : module->parameters()) {
          own.insert(parameter.get());
          users[parameter.get()].name = parameter->name;
        }
      }
    }
    if (own.empty()) {
      refuse(fmt::format("{} has no parameters", text(stage)), "move its border");
    }
    for (const nn::Parameter* const parameter : own) {
      users[parameter].stages.push_back(stage);
    }
  }
  for (auto& [parameter, use] : users) {
    if (use.stages.size() > 1) {
      shared_.push_back(std::move(use));
    }
  }
  std::ranges::sort(shared_, {}, &SharedParameter::name);
}

std::vector<int> Stages::own() const {
  std::vector<int> stages;
  for (int stage = 0; stage < count(); ++stage) {
    if (is_own(stage)) {
      stages.push_back(stage);
    }
  }
  return stages;
}

ops::GroupArgument Stages::group() const {
  return ops::GroupArgument::of(mesh_.group(axis_, current_rank()), "stages");
}

DeviceMesh Stages::stage_mesh() const {
  return mesh_.ndim() == 1 ? DeviceMesh::make({"stage"}, {1}, {current_rank()})
                           : mesh_.at(mesh_.axis_name(axis_), place());
}

const pipeline::Schedule& Stages::schedule(int micro_batches) const {
  auto found = schedules_.find(micro_batches);
  if (found == schedules_.end()) {
    try {
      pipeline::Schedule made = division_.schedule(micro_batches);
      pipeline::check(made, entry_);
      if (made.micro_batches != micro_batches || made.stages() != count() ||
          made.rank_of_stage != division_.rank_of_stage) {
        fail_input(
            {.thing = fmt::format("schedule '{}'", made.name),
             .wrong = "it is not one of this step",
             .expected = fmt::format("{} stages and {} micro-batches", count(), micro_batches),
             .got =
                 fmt::format("{} stages and {} micro-batches", made.stages(), made.micro_batches),
             .advice = "set train.batch and train.micro_batch so that each rank has as "
                       "many micro-batches as the schedule"});
      }
      found = schedules_.emplace(micro_batches, std::move(made)).first;
    } catch (const Error& error) {
      fail_at(entry_, error);
    }
  }
  return found->second;
}

bool Stages::is_copy(const nn::Parameter& parameter) const {
  const auto found = std::ranges::find(shared_, parameter.name, &SharedParameter::name);
  return found != shared_.end() && !is_own(found->stages.front());
}

std::vector<int> Stages::own_users(nn::Module& model, const nn::Parameter& parameter) const {
  const std::vector<int> stages = own();
  if (stages.size() < 2) {
    return {};
  }
  std::vector<int> users;
  for (const int stage : stages) {
    const nn::PieceRange range = pieces(stage);
    const std::size_t last = std::min(range.last, chain_.size());
    bool uses = false;
    for (std::size_t piece = range.first; piece < last; ++piece) {
      for (nn::Module* const module : modules_of(model, chain_[piece])) {
        uses = uses || std::ranges::any_of(module->parameters(), [&](const auto& own) {
                 return own.second.get() == &parameter;
               });
      }
    }
    if (uses) {
      users.push_back(stage);
    }
  }
  return users;
}

std::string Stages::text(int stage) const {
  const nn::PieceRange range = pieces(stage);
  const std::string& first = chain_[range.first].front();
  const std::string& last = chain_[std::min(range.last, chain_.size()) - 1].back();
  return first == last ? fmt::format("stage {} ({})", stage, first)
                       : fmt::format("stage {} ({} to {})", stage, first, last);
}

std::set<const nn::Module*> Stages::cut(nn::Module& model) const {
  std::vector<std::string> absent;
  std::set<const nn::Module*> gone;
  for (int stage = 0; stage < count(); ++stage) {
    const nn::PieceRange range = pieces(stage);
    for (std::size_t piece = range.first;
         !is_own(stage) && piece < std::min(range.last, chain_.size()); ++piece) {
      absent.insert(absent.end(), chain_[piece].begin(), chain_[piece].end());
      for (const nn::Module* const module : modules_of(model, chain_[piece])) {
        gone.insert(module);
      }
    }
  }
  nn::make_absent(model, absent);
  return gone;
}

}  // namespace tessera::parallel
