// What an operator declares that it does besides computing its results, compared with what its
// calls do (check_effects); and operators with a group of ranks. No operator is known here by its
// name.
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("operators do what they declare to do, and nothing else") {
  std::map<const Op*, std::vector<CallSample>> by_op;
  for (CallSample& sample : call_samples(6)) {
    by_op[sample.op].push_back(std::move(sample));
  }
  CHECK(by_op.size() > 150);
  for (const auto& [op, samples] : by_op) {
    for (const std::string& finding : check_effects(samples)) {
      FAIL_CHECK(finding);
    }
  }
}

namespace {

/// The operator's arguments with this group, these layouts in turn, and at each integer (a dim, an
/// extent, a root) each of a few integers.
std::vector<Attributes> group_arguments(const Op& op, collective::Communicator& group) {
  std::vector<std::vector<ArgumentValue>> lists{{}};
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  int cut = 0;
  const std::vector<ArgumentValue> blank = op.arguments->values(op.arguments->blank());
  for (std::size_t i = 0; i < blank.size(); ++i) {
    std::vector<ArgumentValue> choices{blank[i]};
    if (op.arguments->fields[i].type == ArgumentType<ops::GroupArgument>::name) {
      choices = {ArgumentType<ops::GroupArgument>::value(ops::GroupArgument::of(group))};
    } else if (op.arguments->fields[i].type == ArgumentType<SpecArgument>::name) {
      const Layout layout = Layout::make(mesh, {Shard(cut++)});
      choices = {ArgumentType<SpecArgument>::value({Spec::make(layout, {4, 2}, DType::f32)})};
    } else if (std::get_if<std::int64_t>(&blank[i]) != nullptr) {
      choices = {std::int64_t{0}, std::int64_t{1}, std::int64_t{4}};
    }
    std::vector<std::vector<ArgumentValue>> longer;
    for (const std::vector<ArgumentValue>& list : lists) {
      for (const ArgumentValue& choice : choices) {
        longer.push_back(list);
        longer.back().push_back(choice);
      }
    }
    lists = std::move(longer);
  }
  std::vector<Attributes> all;
  for (const std::vector<ArgumentValue>& list : lists) {
    all.push_back(op.arguments->from_values(list));
  }
  return all;
}

/// Operands whose first dim is that of a rank's part, or that of the whole of two ranks; or counts
/// of rows by rank.
std::vector<std::vector<Tensor>> group_operands(const Op& op) {
  std::vector<std::vector<Tensor>> all{{}};
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    std::vector<std::vector<Tensor>> longer;
    for (const std::vector<Tensor>& list : all) {
      for (const std::int64_t rows : {2, 4}) {
        longer.push_back(list);
        longer.back().push_back(full({rows, 2}, 1));
      }
      longer.push_back(list);
      longer.back().push_back(full({2, 2}, 1, DType::i64));
    }
    all = std::move(longer);
  }
  return all;
}

/// What an operator with a group sends, in the first of its calls that it accepts.
std::set<Communicates> sent_by(const Op& op, collective::Communicator& group) {
  for (const std::vector<Tensor>& in : group_operands(op)) {
    for (const Attributes& arguments : group_arguments(op, group)) {
      try {
        CallKinds sent;
        const collective::ObserverScope scope(sent);
        call(op, in, arguments);
        return sent.kinds;
      } catch (const Error&) {
        continue;  // on every rank, before anything is sent
      }
    }
  }
  return {Communicates::none};  // it accepts none of these
}

}  // namespace

TEST_CASE("operators with a group send what they declare, and nothing else") {
  std::map<const Op*, std::vector<std::set<Communicates>>> sent;
  for (const Op* op : all_ops()) {
    const Communicates kind = effects_of(*op).communicates;
    if (kind != Communicates::none && kind != Communicates::planned) {
      sent[op].resize(2);
    }
  }
  CHECK(sent.size() > 4);
  collective::LaunchOptions options;
  options.timeout_seconds = 30;
  collective::run_threads(
      2,
      [&](collective::World& world) {
        for (auto& [op, ranks] : sent) {
          ranks[static_cast<std::size_t>(world.rank())] = sent_by(*op, world.everyone());
        }
      },
      options);
  for (const auto& [op, ranks] : sent) {
    INFO(op->schema);
    const Communicates kind = effects_of(*op).communicates;
    CHECK(ranks[0] == (kind == Communicates::waits ? std::set<Communicates>{} : std::set{kind}));
    CHECK(ranks[1] == ranks[0]);
  }
}

TEST_CASE("operators with a group of ranks say what they send, and others send nothing") {
  for (const Op* op : all_ops()) {
    bool has_group = false;
    for (const Op::Parameter& parameter : op->parameters) {
      has_group = has_group || parameter.type == "group";
    }
    const Communicates kind = effects_of(*op).communicates;
    INFO(op->schema << ": " << name_of(kind));
    CHECK(has_group == (kind != Communicates::none && kind != Communicates::planned));
    CHECK((kind != Communicates::planned || op->distributed != nullptr));
  }
}
