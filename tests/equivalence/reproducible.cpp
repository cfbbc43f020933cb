// train.reproducible = "layout": the same bits of losses, gradient norms, parameters and states of
// the optimizer in every layout, and in a run that goes on in another one.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Folder;
using equivalence::Layout;
using equivalence::reference;
using equivalence::Step;
using tessera::testing::small_model;

namespace {

/// Dropout, uneven shards, clipping in every step, weight decay. The others are patterns of
/// modules: the layers, and those that are split by columns and by rows.
struct Family {
  std::string model;
  std::string data;
  std::string layers;
  std::string columns;
  std::string rows;
  std::string updates = {};  // an entry of low-rank updates
};

const std::string kTokens = "[data]\ntokens = [\"" + reference("curves/tokens_short.npy") +
                            "\"]\nseq_len = 24\nvalidation = 0.2\nvalidation_windows = 8\n";
const Family kLlama = {
    small_model({.vocab = 101, .kv_heads = 4, .head_dim = 8, .ffn_dim = 40, .dropout = 0.25}),
    kTokens, "\"model.layers.*\"",
    "\"model.layers.*.self_attn.{q,k,v}_proj\", \"model.layers.*.mlp.{gate,up}_proj\"",
    "\"model.layers.*.self_attn.o_proj\", \"model.layers.*.mlp.down_proj\""};
const Family kGpt2 = {small_model({.family = "gpt2", .vocab = 101, .dropout = 0.25}), kTokens,
                      "\"transformer.h.*\"", "", ""};
/// A Llama whose rows hold several conversations.
const Family kPacked = {"[model]\nfrom = \"" + reference("sft/initial") + "\"\ndropout = 0.1\n",
                        "[data]\njsonl = [\"" + reference("sft/chats.jsonl") +
                            "\"]\npacking = \"documents\"\nseq_len = 176\nvalidation = 0.0\n",
                        kLlama.layers, kLlama.columns, kLlama.rows};

/// Of which only low-rank updates of the attention are trained.
Family with_updates(Family family, const std::string& style) {
  family.updates = "[[parallel]]\nstyle = \"" + style +
                   "\"\non = [\"model.layers.*.self_attn.{q,v,o}_proj\"]\noptions = {rank = 4, "
                   "dropout = 0.1}\n";
  return family;
}

std::string config(const Family& family, std::int64_t steps, std::int64_t every) {
  return family.model + family.data + "[train]\nsteps = " + std::to_string(steps) +
         "\nbatch = 8\nseed = 7\nclip_grad_norm = 0.5\nreproducible = \"layout\"\n"
         "[optimizer]\nlr = 3e-3\n[checkpoint]\nevery = " +
         std::to_string(every) + "\n";
}

std::string entry(const std::string& style, const std::string& axis, const std::string& on) {
  return "[[parallel]]\nstyle = \"" + style + "\"\naxis = \"" + axis + "\"\non = [" + on + "]\n";
}

/// A mesh of these axes: "replicate", "shard" and "tensor". `options`: of FSDP.
Layout on_mesh(const Family& family, const std::vector<std::pair<std::string, int>>& axes,
               const std::string& options = "{}") {
  Layout made{"one rank", family.updates, 1};
  if (axes.empty()) {
    return made;
  }
  made.name.clear();
  std::string names;
  std::string shape;
  std::string styles;
  std::string sharding;  // comes after what places parameters
  for (const auto& [axis, ranks] : axes) {
    const std::string comma = names.empty() ? "" : ", ";
    names += comma + '"' + axis + '"';
    shape += comma + std::to_string(ranks);
    made.name += axis + " " + std::to_string(ranks) + " ";
    if (axis == "shard") {
      sharding = entry("FSDP", axis, family.layers + ", \".\"") + "options = " + options + "\n";
    } else if (axis == "replicate") {
      styles += entry("Replicate", axis, "\".\"");
    } else {
      styles += entry("ColwiseParallel", axis, family.columns) +
                entry("RowwiseParallel", axis, family.rows);
    }
  }
  made.name += options;
  made.config = "[mesh]\naxes = [" + names + "]\nshape = [" + shape + "]\n" + family.updates +
                styles + sharding;
  return made;
}

/// Requires that two checkpoints have the same bits in every tensor.
void same_checkpoint(const std::string& a, const std::string& b) {
  const equivalence::Result result = equivalence::run("checkpoint diff '" + a + "' '" + b + "'");
  INFO(result.out << result.error);
  CHECK(result.code == 0);
}

/// One rank's run, and comparisons with it.
class OneRank {
 public:
  OneRank(const Family& family, std::int64_t steps, const std::string& overrides)
      : text_(config(family, steps, steps)),
        steps_(steps),
        overrides_(overrides),
        wanted_(equivalence::train(folder_, "wanted", text_, on_mesh(family, {}), overrides)) {}

  void is_same(const Layout& where, const std::string& more = "") {
    INFO(where.name << " " << overrides_ << " " << more);
    const std::vector<Step> found =
        equivalence::train(folder_, "found", text_, where, overrides_ + " " + more);
    CHECK(equivalence::same_bits(found, wanted_));
    same_checkpoint(equivalence::checkpoint(folder_, "wanted", steps_),
                    equivalence::checkpoint(folder_, "found", steps_));
  }

 private:
  Folder folder_;
  std::string text_;
  std::int64_t steps_;
  std::string overrides_;
  std::vector<Step> wanted_;
};

}  // namespace

TEST_CASE("a few layouts give one rank's bits", "[reproducible]") {
  OneRank f32(kLlama, 3, "");
  f32.is_same(on_mesh(kLlama, {{"replicate", 4}}));
  f32.is_same(on_mesh(kLlama, {{"shard", 2}}), "train.activation_checkpointing=true");
  f32.is_same(on_mesh(kLlama, {{"replicate", 2}, {"shard", 2}}), "graph.capture=true");
  f32.is_same(on_mesh(kLlama, {}), "graph.capture=true");
  OneRank bf16(kGpt2, 2, "train.precision=bf16");
  bf16.is_same(on_mesh(kGpt2, {{"shard", 4}}));
  OneRank packed(kPacked, 2, "");
  packed.is_same(on_mesh(kPacked, {{"shard", 2}}));
}

TEST_CASE("ranks that do not divide the virtual shards give one rank's bits", "[reproducible]") {
  OneRank llama(kLlama, 3, "");
  llama.is_same(on_mesh(kLlama, {{"replicate", 3}}), "graph.capture=true");
  llama.is_same(on_mesh(kLlama, {{"shard", 3}}));
  llama.is_same(on_mesh(kLlama, {{"shard", 5}}), "graph.capture=true");
  llama.is_same(on_mesh(kLlama, {{"replicate", 3}, {"shard", 2}}));
  OneRank six(kGpt2, 2, "train.virtual_shards=6 train.batch=6 train.precision=bf16");
  six.is_same(on_mesh(kGpt2, {{"shard", 4}}, "{replicate_below = 2000}"));
  six.is_same(on_mesh(kGpt2, {{"replicate", 3}, {"shard", 2}}), "graph.capture=true");
}

TEST_CASE("low-rank updates have one rank's bits", "[reproducible]") {
  const Family packed = with_updates(kPacked, "LoRA");
  OneRank lora(packed, 2, "");
  lora.is_same(on_mesh(packed, {{"shard", 2}}));
  lora.is_same(on_mesh(packed, {{"replicate", 3}}), "graph.capture=true");
  const Family wide = with_updates(kLlama, "QLoRA");  // 4 bits are stored in blocks of 64 inputs
  OneRank qlora(wide, 2, "model.dim=64 model.head_dim=16");
  qlora.is_same(on_mesh(wide, {{"shard", 2}}), "graph.capture=true");
}

TEST_CASE("tensor parallel layouts give one rank's bits", "[reproducible]") {
  OneRank llama(kLlama, 3, "train.feature_shards=4");
  llama.is_same(on_mesh(kLlama, {{"tensor", 2}}));
  llama.is_same(on_mesh(kLlama, {{"shard", 2}, {"tensor", 2}}), "graph.capture=true");
  llama.is_same(on_mesh(kLlama, {{"tensor", 4}}));
  llama.is_same(on_mesh(kLlama, {{"shard", 3}, {"tensor", 2}}));
}

TEST_CASE("without it, layouts differ in their last bits", "[reproducible]") {
  const Folder folder;
  const auto losses = [&](const Layout& where) {
    return equivalence::train(folder, "run", config(kLlama, 3, 3), where,
                              "train.reproducible=run train.micro_batch=1");
  };
  const std::vector<Step> one = losses(on_mesh(kLlama, {}));
  const std::vector<Step> four = losses(on_mesh(kLlama, {{"replicate", 4}}));
  CHECK(!equivalence::same_bits(one, four));
  CHECK(equivalence::loss_difference(one, four) <= 1e-5);
}

TEST_CASE("a run of virtual shards goes on in other worlds with the same bits", "[reproducible]") {
  const Folder folder;
  const std::string text = config(kLlama, 6, 1);
  const std::vector<Step> wanted = equivalence::train(folder, "wanted", text, on_mesh(kLlama, {}));
  std::string resume;
  int done = 0;
  for (const Layout& where :
       {on_mesh(kLlama, {{"shard", 2}}), on_mesh(kLlama, {}), on_mesh(kLlama, {{"shard", 3}}),
        on_mesh(kLlama, {{"replicate", 3}, {"shard", 2}}), on_mesh(kLlama, {{"shard", 8}}),
        on_mesh(kLlama, {{"replicate", 4}})}) {
    INFO(where.name);
    const std::string name = "part" + std::to_string(done);
    const std::vector<Step> found = equivalence::train(
        folder, name, text, where, "train.steps=" + std::to_string(done + 1) + resume);
    REQUIRE(found.size() == 1);
    CHECK(equivalence::same_bits(found, {wanted[static_cast<std::size_t>(done)]}));
    ++done;
    resume = " checkpoint.resume='" + equivalence::checkpoint(folder, name, done) + "'";
  }
  same_checkpoint(equivalence::checkpoint(folder, "wanted", 6),
                  equivalence::checkpoint(folder, "part5", 6));
}

TEST_CASE("what has no such bits is refused before a rank starts", "[reproducible]") {
  const Folder folder;
  const auto refused = [&](const Layout& where, const std::string& overrides,
                           const std::string& text) {
    const std::string file = folder.write("a.toml", config(kLlama, 3, 3) + where.config);
    const equivalence::Result result = equivalence::run("plan '" + file + "' checkpoint.folder='" +
                                                        folder / "a" + "' " + overrides);
    INFO(result.error);
    CHECK(result.code != 0);
    CHECK(result.error.find(text) != std::string::npos);
  };
  refused(on_mesh(kLlama, {}), "train.virtual_shards=6", "cannot be divided into 6 equal");
  refused(on_mesh(kLlama, {}), "train.feature_shards=6", "expected a power of two");
  refused(on_mesh(kLlama, {}), "train.batch=12", "12 sequences cannot be divided into 8 equal");
  refused(on_mesh(kLlama, {}), "train.micro_batch=2", "expected 1 or 0, got 2");
  refused(
      on_mesh(kLlama, {{"replicate", 2}, {"shard", 3}}), "",
      "3 ranks along the axes of the batch after 'replicate' cannot share the 8 virtual shards");
  refused(
      on_mesh(kLlama, {{"replicate", 2}, {"shard", 3}}),
      "train.virtual_shards=12 train.batch=12 data.validation=0",
      "3 ranks along the axes of the batch after 'replicate' cannot share the 12 virtual shards");
  refused(on_mesh(kLlama, {{"shard", 16}}), "train.batch=16 data.validation=0",
          "16 ranks cannot share");
  refused(on_mesh(kLlama, {{"shard", 2}, {"replicate", 2}}), "", "is summed in another order");
  refused(on_mesh(kLlama, {{"shard", 2}}, "{reduce_dtype = \"bf16\"}"), "train.precision=bf16",
          "FSDP does not give the same bits");
  refused(on_mesh(kLlama, {{"tensor", 2}}), "", "features that are cut into no parts");
  refused(equivalence::layout("TP 2 with sequence parallel"), "", "does not give the same bits");
  refused(on_mesh(kLlama, {}), "optimizer.options={state_bits=8}", "more than one element");
}

TEST_CASE("77 runs on 20 meshes give one rank's bits after 50 steps",
          "[.long][reproducible_long]") {
  using Axes = std::vector<std::pair<std::string, int>>;
  for (const Family& family : {kLlama, kGpt2}) {
    for (const char* precision : {"f32", "bf16"}) {
      OneRank one(family, 50, std::string("train.precision=") + precision);
      for (const Axes& axes : {Axes{{"replicate", 2}},
                               {{"replicate", 4}},
                               {{"replicate", 8}},
                               {{"shard", 2}},
                               {{"shard", 4}},
                               {{"shard", 8}},
                               {{"replicate", 2}, {"shard", 2}},
                               {{"replicate", 2}, {"shard", 4}},
                               {{"replicate", 4}, {"shard", 2}},
                               {{"replicate", 3}},
                               {{"shard", 6}},
                               {{"replicate", 3}, {"shard", 2}}}) {
        one.is_same(on_mesh(family, axes));
      }
      one.is_same(on_mesh(family, {{"shard", 2}}), "graph.capture=true");
      one.is_same(on_mesh(family, {{"shard", 4}}, "{accumulate = \"whole\"}"));
      one.is_same(on_mesh(family, {{"shard", 2}}, "{replicate_below = 2000}"));
      one.is_same(on_mesh(family, {{"shard", 2}}, "{reshard_after_forward = false}"),
                  "train.activation_checkpointing=true");
      one.is_same(on_mesh(family, {}), "train.threads=2");
    }
  }
  OneRank features(kLlama, 50, "train.feature_shards=4");
  for (const Axes& axes : {Axes{{"tensor", 2}},
                           {{"tensor", 4}},
                           {{"shard", 2}, {"tensor", 2}},
                           {{"shard", 4}, {"tensor", 2}},
                           {{"shard", 3}, {"tensor", 2}},
                           {{"replicate", 2}, {"tensor", 2}},
                           {{"replicate", 2}, {"shard", 2}, {"tensor", 2}}}) {
    features.is_same(on_mesh(kLlama, axes));
  }
  OneRank packed(kPacked, 50, "");
  packed.is_same(on_mesh(kPacked, {{"replicate", 2}}));
  packed.is_same(on_mesh(kPacked, {{"replicate", 2}, {"shard", 2}}), "graph.capture=true");
}
