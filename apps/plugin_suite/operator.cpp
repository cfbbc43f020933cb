module;
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.conformance;

// An operator of a plugin: whether it is complete, and does what it declares. The checks are those
// of Tessera's own operators.
namespace tessera::plugin_suite {
namespace {

using conformance::CallSample;

std::string is_complete(const std::string& name) {
  const Op& op = load_operator(name);
  if (op.cpu == nullptr && op.view == nullptr) {
    return "it has neither a kernel of the CPU nor a view";
  }
  if (op.rule == nullptr) {
    return "it has no placement rule (Op::rule): distributed operands would be errors";
  }
  if (op.about.empty()) {
    return "it has no description (Op::about), which reports show";
  }
  return "";
}

/// Calls that the operator accepts. Throws SkippedCheck: there are none.
std::vector<CallSample> calls_of(const std::string& name) {
  constexpr std::size_t most = 8;
  const Op& op = load_operator(name);
  conformance::Recorder recorder(most, true);
  recorder.trying = trying;
  conformance::make_samples(op, recorder);
  std::vector<CallSample> calls = std::move(recorder.by_op[op.name]);
  if (calls.empty()) {
    throw SkippedCheck{
        "it accepts no call that follows from its schema; give it examples (Op::examples)"};
  }
  return calls;
}

/// A check of its calls that returns what it has found.
template <class F>
std::function<std::string()> of_calls(const std::string& name, F check) {
  return [name, check] { return some_of(check(calls_of(name))); };
}

std::vector<std::string> placements(const std::vector<CallSample>& calls) {
  return conformance::check_operator(calls, {.one_axis_cases = 30, .grid_cases = 4}).findings;
}

std::vector<std::string> derivatives(const std::vector<CallSample>& calls) {
  const Op& op = *calls.front().op;
  if (op.backward == nullptr || op.in_place) {
    throw SkippedCheck{"it has no gradient"};
  }
  conformance::DerivativeAccount account;
  for (const CallSample& call : calls) {
    for (const int order : {1, 2}) {
      conformance::check_derivatives(call, order, account);
    }
  }
  if (account.compared == 0 && account.findings.empty()) {
    throw SkippedCheck{"no call has a floating operand that is away from kinks and jumps"};
  }
  return account.findings;
}

std::vector<std::string> elements(const std::vector<CallSample>& calls) {
  if (calls.front().op->element == nullptr) {
    return {};  // it takes part in no compiled kernel
  }
  const conformance::ElementAccount account = conformance::check_elements(calls);
  if (!account.missing.empty()) {
    throw SkippedCheck{account.missing};
  }
  if (account.calls == 0) {
    return {
        "no call could be compiled: it needs one result, at most three operands (floating or bool) "
        "and three numbers as dynamic arguments; of rows at most three results and five operands"};
  }
  return account.findings;
}

std::vector<std::string> sums(const std::vector<CallSample>& calls) {
  const conformance::SumAccount account = conformance::check_sums(calls);
  if (account.compared == 0 && account.findings.empty()) {
    throw SkippedCheck{"no call takes a type of 16 bits and operands of other extents"};
  }
  return account.findings;
}

}  // namespace

std::vector<SuiteCheck> operator_suite(const std::string& name) {
  return {
      {"it is complete", [=] { return is_complete(name); }},
      {"calls that follow from its schema return, or are refused",
       of_calls(name, [](const auto&) { return std::vector<std::string>{}; })},
      {"it does what it declares, and nothing else",
       of_calls(name, [](const auto& calls) { return conformance::check_effects(calls); })},
      {"shapes without data are those with data",
       of_calls(name, [](const auto& calls) { return conformance::check_meta(calls); })},
      {"operands and gradients may be strided",
       of_calls(
           name,
           [](const auto& calls) { return conformance::check_strides(calls, true).findings; })},
      {"gradients are the limits of differences", of_calls(name, derivatives)},
      {"long sums in 16 bits are formed in f32 and rounded once", of_calls(name, sums)},
      {"its element, where it has one, has the kernel's bits when it is compiled",
       of_calls(name, elements)},
      {"every placement that it accepts computes what one rank does", of_calls(name, placements)}};
}

}  // namespace tessera::plugin_suite
