module;
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;

// Effects of operators besides their results, against what they declare.
namespace tessera::conformance {
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

/// The arguments with another seed. Numbers that are 0 become a half: with a probability of 0
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

/// Effects of the calls of one operator.
struct ObservedEffects {
  std::set<std::size_t> written;  // operands of the schema
  std::set<std::size_t> versions;
  bool shares = false;  // a result had an operand's memory
  bool owns = false;    // a result had memory of its own
  bool draws = false;
  bool repeats = true;  // two equal calls had equal results
  bool moves_streams = false;
  bool sends = false;
  bool issues = false;  // and left the collective to wait
};

std::size_t operand_of(const Op& op, std::size_t i, std::size_t count) {
  return op.place_of(i, count).operand;
}

void observe(const CallSample& sample, ObservedEffects& seen) {
  const Op& op = *sample.op;
  const NoGrad constant;
  std::vector<Tensor> in;
  std::vector<Bytes> before;
  std::vector<std::uint64_t> versions;
  std::map<std::string, RandomStream> streams;
  CallKinds sent;
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
  seen.issues = seen.issues || (!out.empty() && out[0] && out[0].storage().pending() != nullptr);
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

}  // namespace

std::vector<std::string> check_effects(std::span<const CallSample> samples) {
  std::vector<std::string> findings;
  if (samples.empty()) {
    return findings;
  }
  const Op& op = *samples.front().op;
  ObservedEffects seen;
  for (const CallSample& sample : samples) {
    observe(sample, seen);
  }
  const Effects effects = effects_of(op);
  const std::set<std::size_t> declared(effects.writes.begin(), effects.writes.end());
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds) {
      findings.push_back(op.name + " " + what);
    }
  };
  const auto operand = [&](std::size_t i) { return "operand '" + op.operands[i].name + "'"; };
  for (const std::size_t i : seen.written) {
    expect(declared.contains(i), "writes " + operand(i) + ", which it does not declare");
  }
  for (const std::size_t i : declared) {
    expect(seen.written.contains(i), "declares that it writes " + operand(i) + ", and does not");
    expect(seen.versions.contains(i), "does not move the version of " + operand(i));
  }
  for (const std::size_t i : seen.versions) {
    expect(declared.contains(i),
           "moves the version of " + operand(i) + ", which it does not write");
  }
  const bool aliases = effects.aliasing != Aliasing::none;
  expect(seen.shares == aliases, aliases
                                     ? "declares that results share memory, and none does"
                                     : "returns memory of an operand, which it does not declare");
  expect(effects.aliasing != Aliasing::always || !seen.owns,
         "declares that results always share memory, and one does not");
  expect(seen.draws == effects.draws, effects.draws
                                          ? "has random numbers as argument, and does not use them"
                                          : "draws random numbers that are no argument");
  expect(seen.repeats, "gives other results when it is called again");
  expect(effects.communicates != Communicates::none || !seen.sends,
         "communicates, which it does not declare");
  expect(seen.issues == effects.issues,
         effects.issues ? "declares that it only issues, and leaves nothing to wait for"
                        : "leaves a collective to wait for, which it does not declare");
  // The numbers are arguments; functions take them from a stream.
  expect(!seen.moves_streams, "moves a random stream");
  return findings;
}

}  // namespace tessera::conformance
