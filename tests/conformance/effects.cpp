// What an operator declares that it does besides computing its results, compared with what its
// calls do: memory before and after, addresses, versions, repeated calls, other seeds, calls of
// communicators. No operator is known here by its name.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
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

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Tensor& x) {
  const Tensor whole = operands::contiguous(x);
  Bytes bytes(static_cast<std::size_t>(whole.numel()) * size_of(whole.dtype()));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), whole.raw_data(), bytes.size());
  }
  return bytes;
}

std::vector<Bytes> bytes_of(const std::vector<Tensor>& tensors) {
  std::vector<Bytes> all;
  for (const Tensor& x : tensors) {
    all.push_back(x ? bytes_of(x) : Bytes());
  }
  return all;
}

std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& x : tensors) {
    all.push_back(x ? ops::clone(detached(x)) : x);
  }
  return all;
}

std::vector<Bytes> results(const Op& op, const std::vector<Tensor>& inputs,
                           const Attributes& attributes) {
  const Tensors out = call(op, copies(inputs), attributes);
  return bytes_of(std::vector<Tensor>(out.begin(), out.end()));
}

/// The same arguments with another seed. Numbers that are 0 become a half: with a probability of 0
/// nothing is drawn.
Attributes reseeded(const Op& op, const Attributes& attributes, std::uint64_t seed) {
  std::vector<ArgumentValue> values = op.arguments->values(attributes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (op.arguments->fields[i].type == ArgumentType<RandomNumbers>::name) {
      RandomNumbers numbers = ArgumentType<RandomNumbers>::from_value(values[i]);
      numbers.seed = seed;
      values[i] = ArgumentType<RandomNumbers>::value(numbers);
    } else if (const double* number = std::get_if<double>(&values[i]);
               number != nullptr && *number == 0) {
      values[i] = 0.5;
    }
  }
  return op.arguments->from_values(values);
}

/// The sample's operands; those that are written hold something else than after the call that the
/// sample was recorded from. `shifted`: so do all floating ones, as a write that is not declared
/// would otherwise find what it has written before.
std::vector<Tensor> fresh_operands(const CallSample& sample, bool shifted) {
  std::vector<Tensor> in = copies(sample.inputs);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] && in[i].dtype() != DType::boolean &&
        ((shifted && is_floating(in[i].dtype())) ||
         sample.op->writes(sample.op->place_of(i, in.size()).operand))) {
      in[i] = ops::clone(ops::add_scalar(in[i], static_cast<double>(i + 1)));
    }
  }
  return in;
}

/// Which kinds of calls the communicators of this rank issue.
class Sent final : public collective::Observer {
 public:
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    if (activity.kind == collective::Activity::Kind::issue) {
      kinds.insert(kind_of(activity.call.kind));
    }
    run();
  }
  std::set<Communicates> kinds;

 private:
  /// What an operator that issues such a call must declare.
  static Communicates kind_of(collective::CallKind kind) {
    using collective::CallKind;
    switch (kind) {
      case CallKind::all_reduce:
        return Communicates::all_reduce;
      case CallKind::all_gather:
      case CallKind::all_gather_segments:
        return Communicates::all_gather;
      case CallKind::reduce_scatter:
      case CallKind::reduce_scatter_segments:
        return Communicates::reduce_scatter;
      case CallKind::all_to_all:
      case CallKind::all_to_all_counts:
      case CallKind::send:  // of messages that all ranks exchange
      case CallKind::receive:
        return Communicates::all_to_all;
      case CallKind::broadcast:
        return Communicates::broadcast;
      default:
        return Communicates::planned;  // no operator with a group may declare it
    }
  }
};

/// What the calls of one operator did.
struct Observed {
  std::set<std::size_t> written;  // operands of the schema
  std::set<std::size_t> versions;
  bool shares = false;  // a result had an operand's memory
  bool owns = false;    // a result had memory of its own
  bool draws = false;
  bool repeats = true;  // two equal calls had equal results
  bool moves_streams = false;
  bool sends = false;
};

std::size_t operand_of(const Op& op, std::size_t i, std::size_t count) {
  return op.place_of(i, count).operand;
}

void observe(const CallSample& sample, Observed& seen) {
  const Op& op = *sample.op;
  const NoGrad constant;
  std::vector<Tensor> in;
  std::vector<Bytes> before;
  std::vector<std::uint64_t> versions;
  std::map<std::string, RandomStream> streams;
  Sent sent;
  const collective::ObserverScope scope(sent);
  const auto called = [&](bool shifted) {
    in = fresh_operands(sample, shifted);
    before = bytes_of(in);
    versions.clear();
    for (const Tensor& x : in) {
      versions.push_back(x ? x.storage().version() : 0);
    }
    set_seed(5);
    random_stream();
    streams = random_state();
    sent.kinds.clear();
    return call(op, in, sample.attributes);
  };
  Tensors out;
  try {
    out = called(true);
  } catch (const Error&) {
    out = called(false);  // a probability, for example, is at most 1
  }
  seen.sends = seen.sends || !sent.kinds.empty();
  for (const auto& [name, stream] : random_state()) {
    const auto found = streams.find(name);
    seen.moves_streams =
        seen.moves_streams || found == streams.end() || found->second.offset != stream.offset;
  }
  const std::vector<Bytes> after = bytes_of(in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in[i]) {
      continue;
    }
    if (after[i] != before[i]) {
      seen.written.insert(operand_of(op, i, in.size()));
    }
    if (in[i].storage().version() != versions[i]) {
      seen.versions.insert(operand_of(op, i, in.size()));
    }
  }
  for (const Tensor& result : out) {
    if (!result || result.numel() == 0) {
      continue;
    }
    bool shares = false;
    for (const Tensor& x : in) {
      shares = shares || (x && &x.storage() == &result.storage());
    }
    (shares ? seen.shares : seen.owns) = true;
  }
  const std::vector<Bytes> first = results(op, sample.inputs, sample.attributes);
  seen.repeats = seen.repeats && results(op, sample.inputs, sample.attributes) == first;
  if (effects_of(op).draws) {
    seen.draws = seen.draws || results(op, sample.inputs, reseeded(op, sample.attributes, 1)) !=
                                   results(op, sample.inputs, reseeded(op, sample.attributes, 2));
  }
}

std::map<const Op*, Observed> observe_all() {
  std::map<const Op*, Observed> all;
  for (const CallSample& sample : call_samples(6)) {
    observe(sample, all[sample.op]);
  }
  return all;
}

}  // namespace

TEST_CASE("operators do what they declare to do, and nothing else") {
  const std::map<const Op*, Observed> all = observe_all();
  CHECK(all.size() > 150);
  for (const auto& [op, seen] : all) {
    const Effects effects = effects_of(*op);
    const std::set<std::size_t> declared(effects.writes.begin(), effects.writes.end());
    INFO(op->schema);
    for (const std::size_t operand : seen.written) {
      INFO("writes " << op->operands[operand].name);
      CHECK(declared.contains(operand));
    }
    for (const std::size_t operand : declared) {
      INFO("declares that it writes " << op->operands[operand].name);
      CHECK(seen.written.contains(operand));
      CHECK(seen.versions.contains(operand));
    }
    for (const std::size_t operand : seen.versions) {
      INFO("moves the version of " << op->operands[operand].name);
      CHECK(declared.contains(operand));
    }
    CHECK((effects.aliasing == Aliasing::none ? !seen.shares : seen.shares));
    CHECK((effects.aliasing == Aliasing::always ? !seen.owns : true));
    CHECK(seen.draws == effects.draws);
    CHECK(seen.repeats);
    CHECK((effects.communicates != Communicates::none || !seen.sends));
    CHECK_FALSE(seen.moves_streams);  // the numbers are arguments; functions take them
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

/// Operands whose first dim is that of a rank's part, or that of the whole of two ranks.
std::vector<std::vector<Tensor>> group_operands(const Op& op) {
  std::vector<std::vector<Tensor>> all{{}};
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    std::vector<std::vector<Tensor>> longer;
    for (const std::vector<Tensor>& list : all) {
      for (const std::int64_t rows : {2, 4}) {
        longer.push_back(list);
        longer.back().push_back(full({rows, 2}, 1));
      }
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
        Sent sent;
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
