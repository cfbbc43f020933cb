// A plugin that changes captured steps: the experts of a mixture get equally many tokens, without
// a term of the loss. A bias for each expert is added to the router's scores where experts are
// chosen, and not where their results are weighted; after each step the bias grows where an expert
// had fewer tokens than the average, and shrinks where it had more (Wang et al., 2024,
// arXiv:2408.15664). The model does not know of it. In a config:
//   [graph]
//   capture = true
//   transforms = ["Balance"]
// docs/graph-changes.md explains it.
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.program;
import tessera.passes;
import tessera.plugin;
import tessera.tensor;

namespace {

using namespace tessera;

constexpr double rate = 0.01;  // of a bias in a step; scores are from 0 to 1

struct InstructionPlace {
  std::size_t section = 0;
  std::size_t at = 0;
};

class Balance {
 public:
  explicit Balance(graph::Editor& edit) : edit_(edit) {}

  void run() {
    find_counts();
    if (counts_.empty()) {
      fail_input({.thing = "Balance",
                  .wrong = "the step has no mixture of experts",
                  .advice = "use it with a family that has experts, such as mixtral"});
    }
    for (const auto& [module, counts] : counts_) {
      const Dims experts = program().tensors[counts[0]].shape;
      bias_[module] = edit_.state(module + ".bias", zeros(experts));
      tokens_[module] = edit_.state(module + ".tokens", zeros(experts));
    }
    for (std::size_t section = 0; section < program().sections.size(); ++section) {
      for (std::size_t at = 0; at < program().sections[section].instructions.size(); ++at) {
        if (is(instruction({section, at}), "topk")) {
          at = choose_with_bias({section, at});
        }
      }
    }
    update();
  }

 private:
  static bool is(const Instruction& i, std::string_view op) {
    return i.kind == Instruction::Kind::call && i.op->name == op;
  }
  Program& program() { return edit_.program(); }
  Instruction& instruction(InstructionPlace place) {
    return program().sections[place.section].instructions[place.at];
  }
  const ProgramScope& scope_of(const Instruction& i) { return program().scopes[i.scope]; }

  /// The numbers of tokens of each expert, by the module of the mixture: of each micro-batch.
  void find_counts() {
    for (const Section& section : program().sections) {
      for (const Instruction& i : section.instructions) {
        const ProgramScope& scope = scope_of(i);
        constexpr std::string_view experts = ".experts";
        if (is(i, "scatter_add") && scope.phase == Phase::forward &&
            scope.module.ends_with(experts)) {
          counts_[scope.module.substr(0, scope.module.size() - experts.size())].push_back(i.out[0]);
        }
        const std::string arguments = i.op == nullptr ? "" : print_arguments(*i.op, i.attributes);
        const std::size_t group = arguments.find("group=ranks");
        if (is(i, "all_reduce") && group != std::string::npos) {
          const std::string ranks = arguments.substr(group);
          all_ranks_ = ranks.size() > all_ranks_.size() ? ranks : all_ranks_;
        }
      }
    }
  }

  /// Returns the place of the call that now gives the weights.
  std::size_t choose_with_bias(InstructionPlace place) {
    const auto bias = bias_.find(scope_of(instruction(place)).module);
    if (bias == bias_.end()) {
      return place.at;  // of something else
    }
    const TensorIndex scores = instruction(place).in[0];
    const Dims shape = program().tensors[scores].shape;
    edit_.move_to(place.section, place.at);
    const TensorIndex biased = edit_.value("add", {scores, bias->second}, "alpha=1");
    Instruction& topk = instruction({place.section, edit_.at()});
    topk.in[0] = biased;
    const TensorIndex weights = topk.out[0];
    const TensorIndex chosen = topk.out[1];
    topk.out[0] = program().tensors.add(program().tensors[weights]);  // nothing needs it
    edit_.move_to(place.section, edit_.at() + 1);
    edit_.value("gather", {scores, chosen}, "dim=" + std::to_string(shape.size() - 1));
    instruction({place.section, edit_.at() - 1}).out[0] = weights;
    return edit_.at() - 1;
  }

  /// At the end of the step's last section, which a skipped step does not have.
  void update() {
    const std::size_t last = program().sections.size() - 1;
    edit_.move_to(last, program().sections[last].instructions.size());
    for (const auto& [module, counts] : counts_) {
      TensorIndex sum = counts[0];
      for (std::size_t i = 1; i < counts.size(); ++i) {
        sum = edit_.value("add", {sum, counts[i]}, "alpha=1");
      }
      sum = edit_.value("cast", {sum}, "dtype=f32");
      if (!all_ranks_.empty()) {
        sum = edit_.value("all_reduce", {sum}, "op=sum, " + all_ranks_);
      }
      edit_.call("copy_", {tokens_.at(module), sum});
      const TensorIndex mean = edit_.value("mean", {sum}, "dims=[], keepdim=false");
      const TensorIndex missing = edit_.value("sign", {edit_.value("sub", {mean, sum}, "alpha=1")});
      edit_.call("add_", {bias_.at(module), missing}, "alpha=" + std::to_string(rate));
    }
  }

  graph::Editor& edit_;
  std::map<std::string, std::vector<TensorIndex>> counts_;
  std::map<std::string, TensorIndex> bias_;
  std::map<std::string, TensorIndex> tokens_;  // of each expert in the last step: to look at
  std::string all_ranks_;                      // "group=ranks 0 1"
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Change>("Balance", [] {
    return graph::Change{.name = "Balance",
                         .about = "Gives the experts of a mixture equally many tokens.",
                         .run = [](graph::Editor& edit) { Balance(edit).run(); }};
  });
}
