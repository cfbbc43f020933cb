// The loss over a vocabulary that is sharded, against the plain one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

constexpr std::int64_t ignored = -7;

/// Logits [3, 2, vocab] from -8 to 8, no two rows alike, and targets of which one is ignored.
Tensor logits_of(std::int64_t vocab, DType dtype) {
  const Tensor x = empty({3, 2, vocab}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = 8 * std::sin(1.7 * static_cast<double>(i) + 0.3);
  }
  return ops::cast(x, dtype);
}

Tensor targets_of(std::int64_t vocab) {
  std::vector<std::int64_t> values = {0, vocab - 1, ignored, vocab / 2, 1 % vocab, vocab - 1};
  return from_values(std::span<const std::int64_t>(values), {3, 2});
}

struct Outcome {
  std::vector<double> value;
  std::vector<double> gradient;
};

using Function = Tensor (*)(const Tensor& logits, const Tensor& targets);

Outcome plain(Function f, std::int64_t vocab, DType dtype) {
  Tensor x = logits_of(vocab, dtype);
  x.set_requires_grad();
  const Tensor y = f(x, targets_of(vocab));
  backward(ops::sum(ops::square(y)));
  return {to_doubles(detached(y)), to_doubles(x.grad())};
}

struct Distributed {
  Outcome outcome;
  std::vector<Communication> forward;
  std::vector<Communication> backward;
};

Distributed distributed(Function f, const Layout& layout, std::int64_t vocab, DType dtype) {
  const DeviceMesh& mesh = layout.mesh();
  Layout rows = layout;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (layout.placement(axis).is_shard(2)) {
      rows = rows.with_placement(axis, Replicate());
    }
  }
  Tensor x = distribute(logits_of(vocab, dtype), layout);
  x.set_requires_grad();
  const Tensor targets = distribute(targets_of(vocab), rows);
  Distributed result;
  Tensor y;
  {
    const CommunicationReport report;
    y = f(x, targets);
    result.forward = report.entries();
  }
  const Tensor whole = redistribute(y, Layout::replicated(mesh));
  {
    const CommunicationReport report;
    backward(ops::sum(ops::square(whole)));
    result.backward = report.entries();
  }
  check(x.grad().layout() == layout, "x.grad().layout() == layout");
  result.outcome = {to_doubles(full_tensor(detached(y))), to_doubles(full_tensor(x.grad()))};
  return result;
}

Tensor cross_entropy(const Tensor& x, const Tensor& t) {
  return ops::cross_entropy(
      x, t, {.reduction = ops::Reduction::sum, .ignore_index = ignored, .loss_parallel = true});
}
Tensor cross_entropy_rows(const Tensor& x, const Tensor& t) {
  return ops::cross_entropy_rows(x, t, ignored, true);
}
Tensor log_softmax(const Tensor& x, const Tensor&) { return ops::log_softmax(x, -1, true); }
Tensor nll_loss(const Tensor& x, const Tensor& t) {
  return ops::nll_loss(ops::log_softmax(x, -1, true), t, ops::Reduction::sum, ignored);
}

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 2e-2;
}

}  // namespace

TEST_CASE("losses over a sharded vocabulary are those of whole logits") {
  // Even, uneven, short and empty parts of the vocabulary.
  for (const auto& sizes : {std::pair{2, 8}, {2, 7}, {3, 7}, {4, 5}, {4, 3}, {2, 1}}) {
    const int ranks = sizes.first;
    const std::int64_t vocab = sizes.second;
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const Function f : {cross_entropy, cross_entropy_rows, log_softmax, nll_loss}) {
        const Outcome expected = plain(f, vocab, dtype);
        on_ranks(ranks, [&](int) {
          const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {ranks});
          const Layout layout = Layout::make(mesh, {Shard(2)});
          const Distributed got = distributed(f, layout, vocab, dtype);
          check(difference(got.outcome.value, expected.value) <= tolerance(dtype),
                "difference(got.outcome.value, expected.value) <= tolerance(dtype)");
          check(difference(got.outcome.gradient, expected.gradient) <= 10 * tolerance(dtype),
                "difference(got.outcome.gradient, expected.gradient) <= 10 * tolerance(dtype)");
        });
      }
    }
  }
}

TEST_CASE("rows and vocabulary may be sharded at once, and the vocabulary by two axes") {
  const Outcome expected = plain(cross_entropy, 7, DType::f64);
  on_ranks(4, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
    for (const Layout& layout :
         {Layout::make(mesh, {Shard(0), Shard(2)}), Layout::make(mesh, {Shard(2), Shard(1)}),
          Layout::make(mesh, {Shard(2), Shard(2)}),
          Layout::make(mesh, {Shard(2), Shard(2)}, {1, 0}),
          Layout::make(mesh, {Shard(2), Replicate()})}) {
      const Distributed got = distributed(cross_entropy, layout, 7, DType::f64);
      check(difference(got.outcome.value, expected.value) <= 1e-12,
            "difference(got.outcome.value, expected.value) <= 1e-12");
      check(difference(got.outcome.gradient, expected.gradient) <= 1e-11,
            "difference(got.outcome.gradient, expected.gradient) <= 1e-11");
    }
  });
}

TEST_CASE("a loss over a sharded vocabulary reduces three numbers a token, and backward none") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
    const Layout layout = Layout::make(mesh, {Shard(2)});
    for (const std::int64_t vocab : {6, 600}) {  // of any size
      const Distributed got = distributed(cross_entropy, layout, vocab, DType::f32);
      check(got.forward.size() == 2, "got.forward.size() == 2");
      std::int64_t bytes = 0;
      for (const Communication& c : got.forward) {
        check(c.operation == "all_reduce", "c.operation == \"all_reduce\"");
        check(c.axis == "tensor", "c.axis == \"tensor\"");
        check(c.where == "cross_entropy", "c.where == \"cross_entropy\"");
        bytes += c.bytes;
      }
      check(bytes == 6 * 3 * 4,
            "bytes == 6 * 3 * 4");  // six tokens; two ranks receive as much as they hold
      check(got.backward.empty(), "got.backward.empty()");
    }
    check(distributed(log_softmax, layout, 600, DType::f32).backward.size() == 1,
          "distributed(log_softmax, layout, 600, DType::f32).backward.size() == 1");
  });
}

TEST_CASE("a sharded vocabulary is an error where the caller has not asked for its reductions") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
    const Tensor x = distribute(logits_of(6, DType::f32), Layout::make(mesh, {Shard(2)}));
    const Tensor t = distribute(targets_of(6), Layout::replicated(mesh));
    const std::string error =
        error_of([&] { ops::cross_entropy(x, t, {.ignore_index = ignored}); });
    check(error.find("operand 'logits'") != std::string::npos,
          "error.find(\"operand 'logits'\") != std::string::npos");
    check(error.find("must be redistributed to") != std::string::npos,
          "error.find(\"must be redistributed to\") != std::string::npos");
    check(error_of([&] { ops::log_softmax(x, -1); }) != "no error", "a dim that is sharded");
    check(error_of([&] { ops::log_softmax(x, 1); }) == "no error",
          "its own dim");  // its own dim is whole
    const Tensor bad =
        distribute(from_values<std::int64_t>({0, 1, 2, 3, 6, 0}, {3, 2}), Layout::replicated(mesh));
    check(error_of([&] {
            ops::cross_entropy(x, bad, {.ignore_index = ignored, .loss_parallel = true});
          }).find("target 6 of row 4 is out of range (expected 0 to 5") != std::string::npos,
          "error_of([&] { ops::cross_entropy(x, bad, ignored, true); }) .find(\"target 6 of row 4 "
          "is out of range (expected 0 to 5\") != std::string::npos");
  });
}

TEST_CASE("nll_loss of log_softmax is cross_entropy") {
  const Outcome a = plain(nll_loss, 9, DType::f64);
  const Outcome b = plain(cross_entropy, 9, DType::f64);
  CHECK(difference(a.value, b.value) <= 1e-12);
  CHECK(difference(a.gradient, b.gradient) <= 1e-12);
}
