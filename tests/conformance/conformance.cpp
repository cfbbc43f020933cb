// Every registered operator under every placement of its operands, on simulated ranks, forward and
// backward, against the plain operator. TESSERA_CONFORMANCE_TABLE=1 prints what was accepted.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.conformance;

#include "conformance.hpp"
#include "record.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace tessera::testing {

const std::map<std::string, std::string>& not_covered() {
  static const std::map<std::string, std::string> reasons = {
      {"adamw_rounded_", "where its parameter is: tests/optim/rounded.cpp"},
      {"all_gather", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"all_gather_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_gather_into", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_reduce", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"all_reduce_", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_reduce_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_reduce_coalesced_", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_to_all", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"all_to_all_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"all_to_all_rows", "a collective of local tensors: tests/ops/all_to_all_rows.cpp"},
      {"all_to_all_rows_async", "a collective of local tensors: tests/ops/all_to_all_rows.cpp"},
      {"broadcast", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"mirror", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"mirror_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"receive_", "a message of local tensors: tests/ops/collective_ops.cpp"},
      {"send", "a message of local tensors: tests/ops/collective_ops.cpp"},
      {"shift", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"shift_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"exact_sum", "of local tensors: tests/ops/exact_sum.cpp"},
      {"exact_value", "of local tensors: tests/ops/exact_sum.cpp"},
      {"logits_statistics", "local, of cross_entropy's own: tests/plugins/loss_parallel/loss.cpp"},
      {"softmax_statistics", "local, of log_softmax's own: tests/plugins/loss_parallel/loss.cpp"},
      {"reduce_scatter", "a collective of local tensors: tests/ops/collective_ops.cpp"},
      {"reduce_scatter_async", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"reduce_scatter_into", "a collective of local tensors: tests/ops/collective_async.cpp"},
      {"scaled_linear", "of 8-bit codes: tests/ops/float8.cpp"},
      {"scaled_linear_grad_input", "of 8-bit codes: tests/ops/float8.cpp"},
      {"scaled_linear_grad_input_", "of 8-bit codes: tests/ops/float8.cpp"},
      {"scaled_linear_grad_weight", "of 8-bit codes: tests/ops/float8.cpp"},
      {"scaled_linear_grad_weight_", "of 8-bit codes: tests/ops/float8.cpp"},
      {"wait", "the end of a collective: tests/ops/collective_async.cpp"},
      {"wait_readers", "the end of a collective: tests/ops/collective_async.cpp"},
      {"as_strided", "plain tensors only: strides mean nothing for distributed ones"},
      {"as_strided_backward", "plain tensors only"},
      {"from_local", "makes a distributed tensor: its layout is an argument"},
      {"to_local", "leaves the distributed tensors: the gradient's layout is an argument"},
      {"redistribute", "is communication: its layouts are arguments"},
      {"redistribute_between", "is communication: tests/dtensor/redistribute.cpp"},
      {"exchange", "a collective of local tensors: tests/dtensor/redistribute.cpp"},
      {"exchange_messages", "a collective of local tensors: tests/dtensor/redistribute.cpp"},
      {"exchange_async", "a collective of local tensors: tests/dtensor/redistribute.cpp"},
      {"distribute", "makes a distributed tensor: its layout is an argument"},
      {"from_local_terms", "makes a distributed tensor: its layout is an argument"},
  };
  return reasons;
}

}  // namespace tessera::testing

namespace {

std::map<std::string, std::vector<CallSample>> samples_by_operator(std::size_t most) {
  std::map<std::string, std::vector<CallSample>> by_op;
  for (CallSample& sample : call_samples(most)) {
    by_op[sample.op->name].push_back(std::move(sample));
  }
  return by_op;
}

void print(const std::string& name, const Verdict& verdict) {
  std::cout << std::left << std::setw(28) << name << std::right << std::setw(8) << verdict.accepted
            << std::setw(8) << verdict.refused << "  ";
  for (const std::string& text : verdict.narrow) {
    std::cout << text << "; ";
  }
  std::cout << "\n";
}

/// Operators whose rule leaves nothing but Replicate.
const std::map<std::string, std::string>& whole_only() {
  static const std::map<std::string, std::string> reasons = {
      {"unique", "every rank must see all values"},
  };
  return reasons;
}

const char* only_operator() { return std::getenv("TESSERA_CONFORMANCE_ONLY"); }

Verdict checked(const std::vector<CallSample>& samples, const Extent& extent) {
  Verdict verdict = check_operator(samples, extent);
  std::string findings;
  for (std::size_t i = 0; i < verdict.findings.size() && i < 6; ++i) {
    findings += "\n  " + verdict.findings[i];
  }
  INFO(verdict.findings.size() << " findings:" << findings);
  CHECK(verdict.findings.empty());
  return verdict;
}

Record check_all(std::size_t most_samples, const Extent& extent) {
  const bool table = std::getenv("TESSERA_CONFORMANCE_TABLE") != nullptr;
  const char* only = only_operator();
  if (table) {
    std::cout << "operator                    accepted refused  refused, and would be right\n";
  }
  std::map<std::string, std::vector<CallSample>> by_op = samples_by_operator(most_samples);
  CHECK((only == nullptr || by_op.contains(only) || not_covered().contains(only)));
  Record record;
  for (const Op* op : all_ops()) {
    if (op->name.starts_with("wrong_") || (only != nullptr && op->name != only)) {
      continue;  // another test's
    }
    INFO(op->name);
    CHECK((by_op.contains(op->name) || not_covered().contains(op->name)));
    if (!by_op.contains(op->name) || not_covered().contains(op->name)) {
      continue;
    }
    const Verdict verdict = checked(by_op[op->name], extent);
    if (table) {
      print(op->name, verdict);
    }
    if (extent.order == 1 && !whole_only().contains(op->name)) {
      // Replicate is always accepted: a rule must place something else too.
      CHECK((verdict.placed > 0) == (op->rule != nullptr));
    }
    record[op->name] = {{{"f64", {verdict.accepted, verdict.refused}}}, verdict.narrow};
  }
  return record;
}

/// The same in f32, bf16 and f16: the first samples that the operator takes in each.
Record check_types(const Extent& extent) {
  constexpr std::size_t most = 2;
  const char* only = only_operator();
  std::map<std::string, std::vector<CallSample>> by_op = samples_by_operator(4);
  Record record;
  for (const Op* op : all_ops()) {
    if (op->name.starts_with("wrong_") || (only != nullptr && op->name != only) ||
        !by_op.contains(op->name) || not_covered().contains(op->name)) {
      continue;
    }
    record[op->name];
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::string type(name_of(dtype));
      std::vector<CallSample> samples = in_type(by_op[op->name], dtype);
      samples.resize(std::min(samples.size(), most));
      if (samples.empty()) {
        continue;  // integers only, or f64 only
      }
      INFO(op->name << " in " << type);
      const Verdict verdict = checked(samples, extent);
      record[op->name].types[type] = {verdict.accepted, verdict.refused};
    }
  }
  return record;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Holds what the operators accept against record.txt, or writes it there.
void compare_with_record(const Record& found, const std::set<std::string>& types) {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return;  // fewer samples
#endif
  if (only_operator() != nullptr) {
    return;
  }
  const std::string path = TESSERA_SOURCE_DIR "/tests/conformance/record.txt";
  const Record recorded = record_of(text_of(path));
  if (std::getenv("TESSERA_WRITE_CONFORMANCE_RECORD") != nullptr) {
    std::ofstream(path) << to_text(updated(recorded, found, types));
    return;
  }
  const RecordDifference difference = compare(recorded, found, types);
  const std::string how =
      "TESSERA_WRITE_CONFORMANCE_RECORD=1 build/release/bin/test_conformance '[record]'";
  for (const std::string& gain : difference.gains) {
    std::cout << gain << "; to record it: " << how << "\n";
  }
  for (const std::string& failure : difference.failures) {
    INFO("if this is intended: " << how);
    FAIL_CHECK(failure);
  }
}

/// Operators whose operands' strides are what they work on.
const std::set<std::string>& of_strides() {
  static const std::set<std::string> names = {"as_strided", "as_strided_backward"};
  return names;
}

/// Operators that refuse operands which do not lie in order.
const std::map<std::string, std::string>& of_order() {
  static const std::map<std::string, std::string> reasons = {
      {"adadelta_", "writes parameters, which are contiguous"},
      {"adagrad_", "writes parameters, which are contiguous"},
      {"adam_8bit_", "writes parameters, which are contiguous"},
      {"adamw_8bit_", "writes parameters, which are contiguous"},
      {"adam_", "writes parameters, which are contiguous"},
      {"adamax_", "writes parameters, which are contiguous"},
      {"adamw_", "writes parameters, which are contiguous"},
      {"adamw_rounded_", "writes parameters, which are contiguous"},
      {"asgd_", "writes parameters, which are contiguous"},
      {"flatten", "a view, which not all strides have"},
      {"lion_", "writes parameters, which are contiguous"},
      {"nadam_", "writes parameters, which are contiguous"},
      {"radam_", "writes parameters, which are contiguous"},
      {"rmsprop_", "writes parameters, which are contiguous"},
      {"rprop_", "writes parameters, which are contiguous"},
      {"sgd_", "writes parameters, which are contiguous"},
      {"view", "a view, which not all strides have"},
  };
  return reasons;
}

std::set<std::string> names_of(const std::map<std::string, std::string>& reasons) {
  std::set<std::string> names;
  for (const auto& [name, reason] : reasons) {
    names.insert(name);
  }
  return names;
}

}  // namespace

TEST_CASE("operators keep what their placement rules promise", "[record]") {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  constexpr std::size_t samples = 1;  // every operator, in a tenth of the speed
#else
  constexpr std::size_t samples = 4;
#endif
  compare_with_record(check_all(samples, {.list_narrow = true}), {"f64"});
}

TEST_CASE("operators keep what their placement rules promise in every floating type",
          "[record][.long]") {
  compare_with_record(check_types({.one_axis_cases = 18,
                                   .grid_cases = 3,
                                   .same_on_all_axes = 2,
                                   .sizes = {3},
                                   .grids = {Dims{2, 2}}}),
                      {"f32", "bf16", "f16"});
}

TEST_CASE("gradients of gradients keep it too", "[.long]") {
  check_all(1, {.one_axis_cases = 20, .order = 2});
}

TEST_CASE("operators do not depend on how operands and gradients lie in memory") {
  std::map<std::string, std::vector<CallSample>> by_op = samples_by_operator(4);
  std::set<std::string> without_gradient;
  std::set<std::string> refusing;
  for (const Op* op : all_ops()) {
    if (op->name.starts_with("wrong_") || !by_op.contains(op->name)) {
      continue;
    }
    INFO(op->name);
    const StrideAccount verdict = check_strides(by_op[op->name], !of_strides().contains(op->name));
    std::string findings;
    for (std::size_t i = 0; i < verdict.findings.size() && i < 6; ++i) {
      findings += "\n  " + verdict.findings[i];
    }
    INFO(verdict.findings.size() << " findings:" << findings);
    CHECK(verdict.findings.empty());
    CHECK(verdict.calls > 0);
    if (verdict.refused > 0) {
      refusing.insert(op->name);
    }
    if (op->backward != nullptr && !op->in_place && verdict.gradients == 0) {
      without_gradient.insert(op->name);
    }
  }
  CHECK(without_gradient == std::set<std::string>{});
  CHECK(refusing == names_of(of_order()));
}

TEST_CASE("long sums of equal values do not stop growing in types of 16 bits") {
  std::map<std::string, std::vector<CallSample>> by_op = samples_by_operator(2);
  std::size_t with_calls = 0;
  std::size_t with_long_sums = 0;
  for (const Op* op : all_ops()) {
    if (op->name.starts_with("wrong_") || !by_op.contains(op->name)) {
      continue;
    }
    INFO(op->name);
    const SumAccount account = check_sums(by_op[op->name]);
    std::string findings;
    for (std::size_t i = 0; i < account.findings.size() && i < 6; ++i) {
      findings += "\n  " + account.findings[i];
    }
    INFO(account.findings.size() << " findings:" << findings);
    CHECK(account.findings.empty());
    with_calls += account.compared > 0 ? 1 : 0;
    with_long_sums += account.long_sums > 0 ? 1 : 0;
  }
  CHECK(with_calls > 200);
  CHECK(with_long_sums > 40);
}

TEST_CASE("operators keep what their placement rules promise, at length", "[.long]") {
  check_all(40, {.one_axis_cases = 2000,
                 .grid_cases = 150,
                 .sizes = {1, 2, 3, 4},
                 .grids = {Dims{2, 2}, Dims{3, 2}, Dims{1, 4}, Dims{2, 1, 2}, Dims{2, 2, 2}},
                 .both_gradient_forms = true,
                 .list_narrow = true});
}

TEST_CASE("gradients of gradients keep it too, at length", "[.long]") {
  check_all(20, {.one_axis_cases = 300,
                 .grid_cases = 30,
                 .sizes = {1, 2, 3, 4},
                 .grids = {Dims{2, 2}, Dims{3, 2}, Dims{2, 1, 2}},
                 .both_gradient_forms = true,
                 .order = 2});
}

TEST_CASE("docs/operators.md says what the registered operators say", "[page]") {
  const std::string path = TESSERA_SOURCE_DIR "/docs/operators.md";
  const std::string page = operators_page(samples_by_operator(40));
  if (std::getenv("TESSERA_WRITE_OPERATORS_PAGE") != nullptr) {
    std::ofstream(path) << page;
  }
  std::ifstream file(path);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  INFO(
      "after a change of operators: TESSERA_WRITE_OPERATORS_PAGE=1 "
      "build/release/bin/test_conformance '[page]'");
  CHECK((written == page));
}
