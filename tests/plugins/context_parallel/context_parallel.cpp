// Sequences that are split over ranks: losses and gradients are those of one rank, for both forms,
// every kind of attention and the styles of other axes; and what is refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
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
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Entries = std::vector<parallel::StyleEntry>;
using Values = std::map<std::string, std::vector<double>>;

constexpr std::int64_t batch = 4;
constexpr std::int64_t tokens = 24;
constexpr std::int64_t vocabulary = 20;

/// What differs between the attentions of a model, and how its rows are.
struct Kind {
  const char* name;
  std::int64_t window = 0;
  double softcap = 0;
  bool documents = false;
  std::int64_t kv_heads = 4;
  double dropout = 0;
  nn::HeadNorm query_key_norm = nn::HeadNorm::none;
};

nn::DecoderShape shape_of(const Kind& kind, DType dtype) {
  return {.vocab = vocabulary,
          .dim = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = kind.kv_heads,
          .ffn_dim = 24,
          .query_key_norm = kind.query_key_norm,
          .attention_softcap = kind.softcap,
          .window = kind.window,
          .dropout = kind.dropout,
          .standard_deviation = dtype == DType::f64 ? 0.4 : 0.1,
          .dtype = dtype};
}

Tensor rows_of(std::int64_t factor, std::int64_t ignored) {
  std::vector<std::int64_t> values(batch * tokens);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    values[i] = place % 7 == ignored ? -100 : (place * factor + place / 5) % vocabulary;
  }
  return from_values(std::span<const std::int64_t>(values), {batch, tokens});
}

/// Documents of lengths that no number of ranks divides, others in each row.
nn::RowDocuments documents_of_rows() {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
      if (i == 5 + row || i == 7 + row || i == 23) {
        begin = i;
      }
      first.push_back(begin);
      positions.push_back(i - begin);
    }
  }
  return {from_values(std::span<const std::int64_t>(first), {batch, tokens}),
          from_values(std::span<const std::int64_t>(positions), {batch, tokens})};
}

struct Settings {
  DType dtype = DType::f64;
  bool checkpointing = false;
  std::int64_t head_rows = 0;
};

/// The loss and all gradients, in full.
Values computed(const DeviceMesh& mesh, const Entries& entries, const Kind& kind,
                const Settings& settings = {}) {
  nn::DecoderLM model(shape_of(kind, settings.dtype));
  model.set_activation_checkpointing(settings.checkpointing);
  model.set_head_rows(settings.head_rows);
  parallel::ParallelPlan plan(model, mesh, entries, shipped_styles());
  plan.materialize();
  set_seed(5);
  nn::initialize(model);
  const auto placed = [&](const Tensor& rows) { return distribute(rows, plan.batch_layout()); };
  nn::RowDocuments documents;
  if (kind.documents) {
    const nn::RowDocuments whole = documents_of_rows();
    documents = {placed(whole.first), placed(whole.positions)};
  }
  const Tensor loss = model.loss_sum(placed(rows_of(11, -1)), placed(rows_of(17, 3)), documents);
  Values values;
  values["loss"] = to_doubles(full_tensor(detached(loss)));
  backward(loss);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    values[parameter->name] = to_doubles(full_tensor(parameter->value.grad()));
  }
  return values;
}

struct Layouts {
  std::string name;
  std::vector<std::string> axes;
  Dims shape;
  Entries entries;
};

parallel::StyleEntry context(const std::string& options, const std::string& axis = "context") {
  return {
      .style = "ContextParallel", .axis = axis, .on = {"**.inner_attention"}, .options = options};
}

const char* const ring = R"({"form": "ring"})";
const char* const unbalanced = R"({"form": "ring", "balance": false})";
const char* const heads = R"({"form": "all_to_all"})";

Layouts alone(const std::string& options, std::int64_t ranks) {
  return {options + " on " + std::to_string(ranks), {"context"}, {ranks}, {context(options)}};
}

const Entries fsdp = {{.style = "FSDP", .axis = "shard", .on = {"model.layers.*", "."}}};
/// Tensor, sequence and loss parallel, as configs/loss_parallel.toml has them.
const Entries tensor = {
    {.style = "RowwiseParallel",
     .axis = "tensor",
     .on = {"model.embed_tokens"},
     .options = R"~({"input": "Replicate", "output": "Shard(1)"})~"},
    {.style = "SequenceParallel",
     .axis = "tensor",
     .on = {"model.layers.*.{input,post_attention}_layernorm", "model.norm"}},
    {.style = "PrepareModuleInput",
     .axis = "tensor",
     .on = {"model.layers.*.{self_attn,mlp}"},
     .options = R"~({"input": "Shard(1)", "desired": "Replicate"})~"},
    {.style = "ColwiseParallel",
     .axis = "tensor",
     .on = {"model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.mlp.{gate,up}_proj"}},
    {.style = "RowwiseParallel",
     .axis = "tensor",
     .on = {"model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"},
     .options = R"~({"output": "Shard(1)"})~"},
    {.style = "ColwiseParallel",
     .axis = "tensor",
     .on = {"lm_head"},
     .options = R"~({"input": "Shard(1)", "output": "Shard(-1)"})~"},
    {.style = "LossParallel", .axis = "tensor", .on = {"loss"}}};

Entries joined(Entries a, const Entries& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void check_layouts(const std::vector<Layouts>& layouts, const Kind& kind,
                   const Settings& settings = {}) {
  const double tolerance = settings.dtype == DType::f64 ? 1e-11 : 2e-6;
  Values expected;
  on_ranks(1,
           [&](int) { expected = computed(DeviceMesh::make({"rank"}, {1}), {}, kind, settings); });
  for (const Layouts& layout : layouts) {
    INFO(kind.name << ", " << layout.name);
    Values got;
    on_ranks(static_cast<int>(layout.shape.product()), [&](int rank) {
      const Values own =
          computed(DeviceMesh::make(layout.axes, layout.shape), layout.entries, kind, settings);
      if (rank == 0) {
        got = own;
      }
    });
    REQUIRE(got.size() == expected.size());
    for (const auto& [name, values] : expected) {
      INFO(name);
      CHECK(difference(got.at(name), values) < tolerance);
    }
  }
}

const std::vector<Kind> kKinds = {
    {.name = "causal"},
    {.name = "a short window", .window = 5},
    {.name = "a long window", .window = 17},
    {.name = "a softcap and grouped queries", .softcap = 1.5, .kv_heads = 2},
    {.name = "documents", .documents = true},
    {.name = "documents, a window and one key head",
     .window = 6,
     .documents = true,
     .kv_heads = 1,
     .query_key_norm = nn::HeadNorm::shared}};

bool splits_heads(const Kind& kind, std::int64_t parts) { return kind.kv_heads % parts == 0; }

}  // namespace

TEST_CASE("a split sequence has the loss and the gradients of one rank", "[context]") {
  for (const Kind& kind : kKinds) {
    std::vector<Layouts> layouts;
    for (const std::int64_t ranks : {2, 3, 4}) {
      layouts.push_back(alone(ring, ranks));
      if (ranks != 3) {
        layouts.push_back(alone(unbalanced, ranks));
      }
      if (ranks != 3 && splits_heads(kind, ranks)) {
        layouts.push_back(alone(heads, ranks));
      }
    }
    layouts.push_back(alone("{}", 4));
    check_layouts(layouts, kind);
  }
}

TEST_CASE("styles of other axes leave a split sequence what it is", "[context]") {
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[4]}) {
    std::vector<Layouts> layouts;
    for (const char* const options : {ring, heads}) {
      layouts.push_back({std::string("FSDP, ") + options,
                         {"shard", "context"},
                         {2, 2},
                         joined({context(options)}, fsdp)});
      if (options == ring || splits_heads(kind, 4)) {
        layouts.push_back({std::string("tensor, sequence and loss parallel, ") + options,
                           {"context", "tensor"},
                           {2, 2},
                           joined({context(options)}, tensor)});
      }
    }
    layouts.push_back({"FSDP and tensor parallel with a ring",
                       {"shard", "context", "tensor"},
                       {2, 2, 2},
                       joined(joined({context(ring)}, tensor), fsdp)});
    layouts.push_back({"Replicate",
                       {"context", "data"},
                       {2, 2},
                       {context(ring), {.style = "Replicate", .axis = "data", .on = {"."}}}});
    check_layouts(layouts, kind);
  }
}

TEST_CASE("a split sequence goes with recomputation, logits in parts, dropout and f32",
          "[context]") {
  const std::vector<Layouts> both = {alone(ring, 2), alone(heads, 2)};
  check_layouts(both, kKinds[0], {.dtype = DType::f32});
  check_layouts(both, kKinds[4], {.checkpointing = true});
  check_layouts(both, kKinds[0], {.head_rows = 7});
  check_layouts(both, {.name = "dropout", .dropout = 0.3}, {});
}

namespace {

/// Attention alone, of a program's own: what a DecoderLM does not have.
Tensor attended(const nn::AttentionOptions& options, const DeviceMesh& mesh, const Entries& entries,
                const Tensor& mask, bool split) {
  nn::Attention layer(options);
  layer.set_names();
  parallel::ParallelPlan plan(layer, mesh, entries, shipped_styles());
  plan.materialize();
  set_seed(5);
  nn::initialize(layer);
  std::vector<double> values;
  for (std::int64_t i = 0; i < 2 * 12 * 8; ++i) {
    values.push_back(static_cast<double>(i * 7 % 23) / 11 - 1);
  }
  const Tensor x = from_values(std::span<const double>(values), {2, 12, 8});
  Layout layout = Layout::replicated(mesh);
  const Tensor given = mask ? distribute(mask, layout) : mask;
  if (split) {
    layout = layout.with_placement(0, Shard(1));
  }
  set_seed(9);
  return full_tensor(layer.by_name({{"hidden_states", distribute(x, layout)}, {"mask", given}})[0]);
}

Tensor every_third_hidden(std::int64_t heads_of_mask) {
  std::vector<std::uint8_t> sees;
  for (std::int64_t i = 0; i < heads_of_mask * 12 * 12; ++i) {
    sees.push_back(i % 3 != 0);
  }
  return ops::cast(from_values(std::span<const std::uint8_t>(sees), {1, heads_of_mask, 12, 12}),
                   DType::boolean);
}

}  // namespace

TEST_CASE("masks, dropped probabilities and attention that is not causal", "[context]") {
  nn::AttentionOptions options{
      .dim = 8, .heads = 4, .standard_deviation = 0.4, .dtype = DType::f64};
  const auto same = [&](const char* what, const char* form, const Tensor& mask, double most) {
    INFO(what << ", " << form);
    std::vector<double> expected;
    on_ranks(1, [&](int) {
      expected = to_doubles(attended(options, DeviceMesh::make({"rank"}, {1}), {}, mask, false));
    });
    on_ranks(2, [&](int) {
      const std::vector<double> got =
          to_doubles(attended(options, DeviceMesh::make({"context"}, {2}),
                              {{.style = "ContextParallel",
                                .axis = "context",
                                .on = {"inner_attention"},
                                .options = form}},
                              mask, true));
      check(difference(got, expected) <= most, what);
    });
  };
  same("one mask for all heads", heads, every_third_hidden(1), 1e-14);
  same("a mask for each head", heads, every_third_hidden(4), 1e-14);
  options.causal = false;
  same("not causal", heads, {}, 1e-14);
  same("not causal", ring, {}, 1e-14);
  options.causal = true;
  options.dropout = 0.4;
  same("dropped probabilities", heads, {}, 1e-14);
  same("dropped probabilities", "{}", {}, 1e-14);
}

TEST_CASE("rows are read as the plan splits them", "[context]") {
  on_ranks(6, [](int rank) {
    nn::DecoderLM model(shape_of(kKinds[0], DType::f64));
    const DeviceMesh mesh = DeviceMesh::make({"data", "context"}, {2, 3});
    const parallel::ParallelPlan plan(
        model, mesh, {{.style = "Replicate", .axis = "data", .on = {"."}}, context(ring)},
        shipped_styles());
    check(plan.batch_axes() == std::vector{0} && plan.sequence_axes() == std::vector{1}, "axes");
    check(plan.batch_parts() == 2 && plan.sequence_parts() == 3, "parts");
    const Tensor whole = rows_of(11, -1);
    const Tensor mine = ops::narrow(whole, 0, rank / 3 * (batch / 2), batch / 2);
    const Tensor rows = plan.batch_of(plan.sequence_part(mine));
    check(rows.local().shape() == Dims{batch / 2, tokens / 3}, "a part");
    check(to_doubles(full_tensor(rows)) == to_doubles(whole), "the whole batch");
    check(plan.row_layout().placement(1).is_replicate(), "a value for each row");
  });
}

namespace {

/// How many blocks of attention are computed between the issue of each call around the ring, or
/// across it, and its wait.
class BlocksBesideHops final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    const std::string name = call.op.name;
    if (name.starts_with("attention_block")) {
      ++computed_;
    }
    blocking += name == "shift" || name == "mirror" ? 1 : 0;
    if (name == "wait" && issued_.contains(&call.in[0].storage())) {
      const Issued issued = issued_.extract(&call.in[0].storage()).mapped();
      beside[issued.name].push_back(computed_ - issued.computed);
    }
    Tensors out = next(call);
    if (call.op.issues) {
      issued_[&out[0].storage()] = {name, computed_};
    }
    return out;
  }

  std::map<std::string, std::vector<int>> beside;  // in the order of the waits
  int blocking = 0;

 private:
  struct Issued {
    std::string name;
    int computed;
  };
  int computed_ = 0;
  std::map<const Storage*, Issued> issued_;
};

bool all_above_0(const std::vector<int>& numbers) {
  return std::ranges::all_of(numbers, [](int number) { return number > 0; });
}

}  // namespace

TEST_CASE("what a ring moves has a block of attention beside it", "[context]") {
  for (const char* const options : {ring, unbalanced}) {
    for (const int ranks : {2, 4}) {
      INFO(options << " on " << ranks);
      on_ranks(ranks, [&](int rank) {
        BlocksBesideHops hops;
        {
          const ModeScope scope(ModeLevel::below_distribution, hops);
          computed(DeviceMesh::make({"context"}, {ranks}), {context(options)}, kKinds[0]);
        }
        // Of two layers: keys in forward and in backward, and gradients.
        const std::vector<int>& around = hops.beside["shift_async"];
        check(std::ssize(around) == 2 * 3 * (ranks - 1), "hops");
        check(hops.blocking == 0, "hops that block");
        // Unbalanced, the first rank sees no keys of others.
        const bool idle = options == unbalanced && rank + 1 < ranks;
        check(idle || all_above_0(around), "a hop that nothing hides");
        // Of each layer, in the order of the waits. Keys and queries come while the own first half
        // is computed; results go back in two halves of heads, the second of which only the ranks
        // of the sequence's end can hide. Then gradients of results and their products with the
        // results, of keys (those of the ring's last rank, and of the one across), and of queries.
        std::vector<int> across = hops.beside["mirror_async"];
        if (options == unbalanced) {
          check(across.empty(), "halves that are exchanged");
          return;
        }
        check(across.size() == 2 * (4 + 2 + 3), "exchanges of halves");
        for (const std::size_t second_half_of_results : {7, 3}) {
          const auto at = across.begin() + static_cast<std::ptrdiff_t>(second_half_of_results);
          check(*at == (rank < ranks / 2 ? 0 : 1), "the second half of the results");
          across.erase(at);
        }
        check(all_above_0(across), "an exchange of halves that nothing hides");
      });
    }
  }
}

TEST_CASE("the form is chosen by what is not hidden, and the plan says why", "[context]") {
  const auto decided = [](const Kind& kind, std::int64_t ranks, const std::string& options,
                          const Link& link) {
    std::string text;
    on_ranks(1, [&](int) {
      nn::DecoderLM model(shape_of(kind, DType::f64));
      const DeviceMesh mesh = DeviceMesh::make({"context"}, {ranks});
      set_link(mesh, 0, link);
      const parallel::ParallelPlan plan(model, mesh, {context(options)}, shipped_styles());
      const Tensor rows =
          plan.batch_of(plan.sequence_part(empty({batch, tokens}, DType::i64, meta)));
      model.loss_sum(rows, rows);
      text = plan.summary()[0].decided;
      set_link(mesh, 0, Link());
    });
    return text;
  };
  // Two layers of one size decide once. 8 latencies of 1 ms, both ways, and 9 of a balanced ring
  // besides its hops: one in forward, and two in backward.
  const Link latency{.latency = 1e-3, .bandwidth = 1e15};
  CHECK(decided(kKinds[0], 2, "{}", latency) ==
        "all_to_all: of a layer's communication for 4 rows, a ring would not hide 12 ms, and "
        "all_to_all 8 ms");
  // A short window: keys move one rank further, while a slow rank computes.
  CHECK(decided(kKinds[1], 4, R"({"gflops": 1e-9})", latency) ==
        "ring: of a layer's communication for 4 rows, a ring would not hide 0 ms, and all_to_all "
        "8 ms");
  CHECK(decided(kKinds[5], 2, "{}", latency) ==
        "ring, as its 4 heads (1 of keys and values) cannot be split over 2 ranks");
  CHECK(decided(kKinds[0], 2, heads, latency).empty());
  CHECK(contains(error_of([&] { decided(kKinds[0], 2, R"({"gflops": 0})", latency); }),
                 "option 'gflops' must be a number more than 0 (got 0)"));
}

TEST_CASE("stages have the links of the whole mesh", "[context]") {
  on_ranks(1, [](int) {
    nn::DecoderLM model(shape_of(kKinds[0], DType::f64));
    const DeviceMesh mesh = DeviceMesh::make({"pipe", "context"}, {2, 2});
    const Link slow{.latency = 1e-3, .bandwidth = 1e6};
    set_link(mesh, 1, slow);
    const parallel::ParallelPlan plan(
        model, mesh, {{.style = "Pipeline", .axis = "pipe", .on = {"."}}, context(ring)},
        shipped_styles());
    check(link_of(plan.mesh(), plan.mesh().axis_index("context")) == slow, "a link");
  });
}

TEST_CASE("what a split sequence cannot have is refused", "[context]") {
  const auto refused = [](const Kind& kind, const std::vector<std::string>& axes, const Dims& shape,
                          const Entries& entries) {
    return error_of([&] {
      nn::DecoderLM model(shape_of(kind, DType::f64));
      const parallel::ParallelPlan plan(model, DeviceMesh::make(axes, shape), entries,
                                        shipped_styles());
      const Tensor rows = plan.sequence_part(empty({batch, tokens}, DType::i64, meta));
      model.loss_sum(plan.batch_of(rows), plan.batch_of(rows));
    });
  };
  const auto says = [](const std::string& error, const std::string& part) {
    INFO(error);
    CHECK(contains(error, part));
  };
  says(refused(kKinds[0], {"context"}, {5}, {context(ring)}),
       "sequence: its 24 tokens cannot be split equally over the 5 ranks of axis 'context'; set "
       "data.seq_len to a multiple of 5, such as 25");
  says(refused(kKinds[3], {"context"}, {4}, {context(heads)}),
       "module 'model.layers.0.self_attn.inner_attention': attention: its 4 heads (2 of keys and "
       "values) cannot be split over 4 ranks; set the style's option form = \"ring\"");
  // Tensor parallelism has split them already.
  says(refused(kKinds[3], {"context", "tensor"}, {2, 2}, joined({context(heads)}, tensor)),
       "its 4 heads (2 of keys and values) cannot be split over 4 ranks");
  says(refused(kKinds[0], {"context"}, {2},
               {context(ring), {.style = "FSDP", .axis = "context", .on = {"."}}}),
       "splits the sequence along axis 'context', which FSDP uses too; give one of them another "
       "axis");
  says(refused(kKinds[0], {"context"}, {2},
               {{.style = "Replicate", .axis = "context", .on = {"."}}, context(heads)}),
       "splits the sequence along axis 'context', which Replicate uses too");
  says(refused(kKinds[0], {"context"}, {2},
               {{.style = "ContextParallel", .axis = "context", .on = {"model.layers.*"}}}),
       "module 'model.layers.0': its sequences cannot be split (expected an InnerAttention, got "
       "DecoderBlock); match what computes attention: on = [\"**.inner_attention\"]");
  says(refused(kKinds[0], {"a", "b"}, {2, 2}, {context(ring, "a"), context(ring, "b")}),
       "its sequences cannot be split (expected an InnerAttention, got ContextAttention)");
  nn::Attention drops({.dim = 8, .heads = 4, .dropout = 0.5});
  drops.set_names();
  says(error_of([&] {
         const parallel::ParallelPlan plan(drops, DeviceMesh::make({"context"}, {2}),
                                           {{.style = "ContextParallel",
                                             .axis = "context",
                                             .on = {"inner_attention"},
                                             .options = ring}},
                                           shipped_styles());
       }),
       "a ring cannot drop probabilities of attention; set the style's option form = "
       "\"all_to_all\"");
  says(error_of([&] {
         on_ranks(2, [&](int) {
           attended({.dim = 8, .heads = 4, .dtype = DType::f64}, DeviceMesh::make({"context"}, {2}),
                    {{.style = "ContextParallel",
                      .axis = "context",
                      .on = {"inner_attention"},
                      .options = ring}},
                    every_third_hidden(1), true);
         });
       }),
       "a ring takes no mask");
}
