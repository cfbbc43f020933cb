// Operators that are wrong on purpose: the check must find each of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
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

namespace {

/// A shipped operator with other parts, as an operator of its own.
template <class F>
const Op& changed(const std::string& name, F change) {
  Op op = find_op(name);
  op.schema = "wrong_" + op.schema;
  op.operands.clear();
  op.parameters.clear();
  change(op);
  return register_op(std::move(op));
}

/// The findings for `op` on the samples of the operator that it was made from.
Verdict account_of(const Op& op, const std::string& name,
                   const Extent& extent = {.list_narrow = true}) {
  std::vector<CallSample> samples;
  for (CallSample& sample : call_samples(4)) {
    if (sample.op->name == name) {
      sample.op = &op;
      samples.push_back(std::move(sample));
    }
  }
  REQUIRE(!samples.empty());
  return check_operator(samples, extent);
}

/// Whether a finding says this.
bool finds(const Verdict& verdict, const std::string& what) {
  for (const std::string& finding : verdict.findings) {
    if (finding.find(what) != std::string::npos) {
      return true;
    }
  }
  return false;
}

void shard_every_dim(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

/// The part of an operand that a sum of it is, taken for the whole sum.
void forget_the_others(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(rules::strategy({Shard(d)}, {Replicate()}));
  }
}

void pass_partial(const RuleContext& context, Strategies& strategies) {
  rules::linear(context, strategies);
}

}  // namespace

TEST_CASE("a softmax over a sharded dim is found") {
  const Op& op = changed("softmax", [](Op& o) { o.rule = shard_every_dim; });
  CHECK(finds(account_of(op, "softmax"), "where the plain one has"));
}

TEST_CASE("a sum that forgets the other ranks is found") {
  const Op& op = changed("sum", [](Op& o) { o.rule = forget_the_others; });
  CHECK(finds(account_of(op, "sum"), "result 0: replicas differ"));
}

TEST_CASE("a rule that promises another shape is found") {
  const Op& op = changed("transpose", [](Op& o) { o.rule = shard_every_dim; });
  CHECK(finds(account_of(op, "transpose"), "its placement rule is wrong"));
}

TEST_CASE("a shard that is right only where it divides is found") {
  const Op& op = changed("flatten", [](Op& o) {
    o.rule = [](const RuleContext& context, Strategies& strategies) {
      if (context.call.in[0].dims() > 0) {
        strategies.push_back(rules::strategy({Shard(0)}, {Shard(0)}));
      }
    };
  });
  CHECK(finds(account_of(op, "flatten"), "its placement rule is wrong"));
}

TEST_CASE("a rule that forgets the other mesh axes is found") {
  const Op& op = changed("reshape", [](Op& o) {
    o.rule = [](const RuleContext& context, Strategies& strategies) {
      const Dims& from = context.call.in[0].shape();
      const Dims& to = context.out[0].shape;
      if (!from.empty() && !to.empty() && from[0] % context.axis_size == 0 &&
          to[0] % context.axis_size == 0) {
        strategies.push_back(rules::strategy({Shard(0)}, {Shard(0)}));
      }
    };
  });
  const Verdict verdict = account_of(op, "reshape");
  CHECK(finds(verdict, "(a=2, b=2)"));
  CHECK(!finds(verdict, "(a=2) "));
}

TEST_CASE("a rule that refuses what would be right is listed, and one that does not is not") {
  const Op& shy =
      changed("sigmoid", [](Op& o) { o.rule = [](const RuleContext&, Strategies&) {}; });
  const Verdict of_shy = account_of(shy, "sigmoid");
  CHECK(of_shy.narrow.contains("sigmoid/stored0 Shard(0) -> Shard(0)"));
  CHECK(of_shy.accepted > 0);  // as Replicate
  CHECK(of_shy.placed == 0);
  const Op& forgetful = changed("mm", [](Op& o) {
    o.rule = [](const RuleContext&, Strategies& strategies) {
      strategies.push_back(rules::strategy({Shard(0), Replicate()}, {Shard(0)}));
      strategies.push_back(rules::strategy({Replicate(), Shard(1)}, {Shard(1)}));
    };
  });
  const Verdict verdict = account_of(forgetful, "mm");
  CHECK(verdict.narrow.contains("mm/stored0 Shard(1), Shard(0) -> Partial(sum)"));
  CHECK(!verdict.narrow.contains("mm/stored0 Shard(0), Replicate -> Shard(0)"));
  CHECK(!verdict.narrow.contains("mm/stored0 Shard(1), Shard(1) -> Shard(1)"));
}

TEST_CASE("a function that is not linear and takes terms of a sum is found") {
  const Op& op = changed("square", [](Op& o) { o.rule = pass_partial; });
  CHECK(finds(account_of(op, "square"), "where the plain one has"));
}

TEST_CASE("a sum in 16 bits that is rounded after each term is found") {
  const Op& op = changed("dot", [](Op& o) {
    o.workspace = nullptr;
    o.cpu = [](const Call& call, std::span<Tensor> out) {
      const std::vector<double> a = to_doubles(call.in[0]);
      const std::vector<double> b = to_doubles(call.in[1]);
      const DType dtype = out[0].dtype();
      Tensor sum = zeros({}, dtype);
      for (std::size_t i = 0; i < a.size(); ++i) {
        sum = full({}, to_doubles(sum)[0] + a[i] * b[i], dtype);
      }
      std::memcpy(out[0].raw_data(), sum.raw_data(), size_of(dtype));
    };
  });
  const auto account_for = [](const Op& checked) {
    std::vector<CallSample> samples;
    for (CallSample& sample : call_samples(1)) {
      if (sample.op->name == "dot") {
        sample.op = &checked;
        samples.push_back(std::move(sample));
      }
    }
    REQUIRE(!samples.empty());
    return check_sums(samples);
  };
  const SumAccount wrong = account_for(op);
  const auto finds_in = [&](const std::string& what) {
    return std::ranges::any_of(wrong.findings, [&](const std::string& finding) {
      return finding.find(what) != std::string::npos;
    });
  };
  CHECK(finds_in("in bf16 of [1024], [1024]: result 0 has 256.0"));
  CHECK(finds_in("in f16 of [4096], [4096]: result 0 has 2048.0"));
  CHECK(account_for(find_op("dot")).findings.empty());
}

TEST_CASE("a gradient that is wrong only when distributed is found") {
  const Op& op = changed("neg", [](Op& o) {
    o.backward = [](const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
      const Tensor g = ops::neg(grads[0]);
      const Layout& layout = g.is_distributed() ? g.layout() : Layout();
      out[0] = layout && layout.is_replicated()
                   ? make_distributed(g.local(), Spec::make(layout.with_placement(0, Partial()),
                                                            g.shape(), g.dtype()))
                   : g;
    };
  });
  CHECK(finds(account_of(op, "neg"), "gradient 0"));
}

TEST_CASE("a gradient's gradient that is lost only when distributed is found") {
  const Op& op = changed("softmax", [](Op& o) {
    o.schema = "wrong_twice_softmax(x)";
    o.backward = [](const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
      const Tensor& y = context.out[0];
      out[0] = call_one(find_op("softmax_backward"),
                        {grads[0], y.is_distributed() ? ops::detach(y) : y}, context.attributes);
    };
  });
  CHECK(account_of(op, "softmax").findings.empty());
  CHECK(finds(account_of(op, "softmax", {.order = 2}), "gradient 0 is missing"));
}

TEST_CASE("a reduction that divides by one axis where two cut is found") {
  // The average of the parts' averages is the average where all parts are of one size.
  const Op& op = changed("mean", [](Op& o) {
    o.rule = [](const RuleContext& context, Strategies& strategies) {
      const Dims& shape = context.call.in[0].shape();
      const Dims dims = operands::reduced_dims(context.call).dims;
      for (const std::int64_t d : dims) {
        if (shape[static_cast<int>(d)] % context.axis_size == 0) {
          strategies.push_back(
              rules::strategy({Shard(static_cast<int>(d))}, {Partial(ReduceOp::avg)}));
        }
      }
    };
  });
  const Verdict verdict = account_of(op, "mean");
  CHECK(finds(verdict, "(a=2, b=2)"));
  CHECK(!finds(verdict, "(a=2) "));
  CHECK(!finds(verdict, "(a=3) "));
}

TEST_CASE("a backward that fails is not excused by the words of its error") {
  const Op& op = changed("neg", [](Op& o) {
    o.schema = "wrong_refusing_neg(x)";
    o.backward = [](const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
      if (grads[0].is_distributed()) {
        fail("neg: x Partial(max) would have to be communicated to become Replicate");
      }
      out[0] = ops::neg(grads[0]);
    };
  });
  CHECK(finds(account_of(op, "neg"), "would have to be communicated"));
}

TEST_CASE("a gradient that assumes how dy lies in memory is found") {
  const Op& op = changed("neg", [](Op& o) {
    o.schema = "wrong_contiguous_neg(x)";
    o.backward = [](const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
      out[0] = empty(grads[0].shape(), DType::f64);
      const double* dy = grads[0].data<double>();
      for (std::int64_t i = 0; i < out[0].numel(); ++i) {
        out[0].data<double>()[i] = -dy[i];
      }
    };
  });
  std::vector<CallSample> samples;
  for (CallSample& sample : call_samples(4)) {
    if (sample.op->name == "neg") {
      sample.op = &op;
      samples.push_back(std::move(sample));
    }
  }
  const StrideAccount verdict = check_strides(samples, true);
  const auto says = [&](const std::string& what) {
    return std::any_of(verdict.findings.begin(), verdict.findings.end(),
                       [&](const std::string& f) { return f.find(what) != std::string::npos; });
  };
  CHECK(says("with a gradient transposed: gradient 0"));
  CHECK(!says("with operands"));
}

TEST_CASE("an operator that communicates in secret is found") {
  const Op& op = changed("exp", [](Op& o) {
    o.distributed = [](const Call& call, Tensors& out) {
      Tensor x = call.in[0];
      if (x.is_distributed()) {
        x = redistribute(x, Layout::replicated(x.layout().mesh()));
      }
      out = tessera::call(find_op("exp"), {x});
    };
  });
  CHECK(finds(account_of(op, "exp"), "communicates"));
}

TEST_CASE("an error that names neither operator nor layout is found") {
  const Op& op = changed("relu", [](Op& o) {
    o.rule = [](const RuleContext&, Strategies&) { fail("something went wrong"); };
  });
  CHECK(finds(account_of(op, "relu"), "refuses without naming"));
}

TEST_CASE("what rounding explains in a narrow type is little") {
  const Op& op = changed("log_softmax", [](Op& o) { o.rule = shard_every_dim; });
  std::vector<CallSample> samples;
  for (CallSample& sample : call_samples(2)) {
    if (sample.op->name == "log_softmax") {
      sample.op = &op;
      samples.push_back(std::move(sample));
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(name_of(dtype));
    CHECK(finds(check_operator(in_type(samples, dtype), {}), "where the plain one has"));
  }
}

TEST_CASE("statistics of a narrow type are f32, and are refused as anything else") {
  for (CallSample& sample : call_samples(1)) {
    if (sample.op->name != "rms_norm_backward") {
      continue;
    }
    const std::vector<CallSample> narrow = in_type({&sample, 1}, DType::bf16);
    REQUIRE(narrow.size() == 1);
    CHECK(narrow[0].inputs[0].dtype() == DType::bf16);
    CHECK(narrow[0].inputs[3].dtype() == DType::f32);
  }
}

TEST_CASE("the record of what operators accept is read back, and fewer is a failure") {
  const Record record = {{"add", {{{"f64", {5, 2}}, {"bf16", {3, 4}}}, {}}},
                         {"cat", {{{"f64", {7, 1}}}, {"cat/0 Shard(0) -> Shard(0)"}}}};
  const std::set<std::string> f64 = {"f64"};
  const auto failures = [&](const Record& found, const std::set<std::string>& types) {
    return compare(record, found, types).failures;
  };
  const auto gains = [&](const Record& found) { return compare(record, found, f64).gains; };
  CHECK(to_text(record_of(to_text(record))) == to_text(record));
  CHECK(failures(record, {"f64", "bf16"}).empty());
  CHECK(gains(record).empty());

  Record found = record;
  found["add"].types["f64"] = {4, 3};
  CHECK(failures(found, f64) == std::vector<std::string>{"add in f64: accepts 4 and refuses 3 "
                                                         "(recorded: 5 and 2)"});
  CHECK(failures(found, {"bf16"}).empty());
  CHECK(to_text(updated(record, found, {"bf16"})) == to_text(record));
  CHECK(to_text(updated(record, found, f64)) == to_text(found));
  found["add"].types["f64"] = {6, 1};
  CHECK(failures(found, f64).empty());
  CHECK(gains(found).size() == 1);

  found = record;
  found["cat"].narrow = {"cat/0 Shard(1) -> Shard(1)"};
  CHECK(failures(found, f64).size() == 1);
  CHECK(gains(found).size() == 1);
  found = record;
  found["sub"] = found["add"];
  CHECK(failures(found, f64) == std::vector<std::string>{"sub is not in the record"});
  found.erase("add");
  CHECK(failures(found, f64).size() == 2);
  CHECK_THROWS_AS(record_of("add f64 5-2\n"), Error);
}

TEST_CASE("a right operator gives no findings") {
  const Op& op = changed("tanh", [](Op&) {});
  const Verdict verdict = account_of(op, "tanh");
  CHECK(verdict.findings.empty());
  CHECK(verdict.accepted > 0);
  CHECK(verdict.refused > 0);
}
