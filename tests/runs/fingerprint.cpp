// What is compared when a run continues a checkpoint.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.app.config;
import tessera.runs;
import tessera.hub;

namespace hub = tessera::hub;
namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::Folder;
using trainer_test::input_error;
using Words = std::vector<std::string>;

namespace {

/// A folder with two texts of one length.
class Texts : public Folder {
 public:
  Texts() {
    write("a.txt", std::string(4000, 'a') + std::string(4000, 'b'));
    write("b.txt", std::string(4000, 'a') + std::string(3999, 'b') + "c");
    write("start.txt", std::string(4000, 'a'));
    write("end.txt", std::string(4000, 'b'));
  }

  runs::RunSpec config(Words overrides) const {
    overrides.insert(overrides.begin(), {"data.seq_len=16", "train.batch=4", "model.dim=64",
                                         "model.heads=4", "model.layers=2"});
    return parse_config("[data]\ntext = [\"a.txt\"]\n", path() / "run.toml", overrides);
  }

  static hub::ModelShape shape(const runs::RunSpec& config) {
    return runs::model_shape(config, runs::open_run_tokenizer(config));
  }

  runs::Fingerprint fingerprint(const Words& overrides) const {
    const runs::RunSpec c = config(overrides);
    return runs::fingerprint_of(c, shape(c), runs::Dataset(c, 256));
  }

  /// The allowed differences of continuing a run of `stored` with `own`.
  Words compared(const runs::Fingerprint& stored, const Words& own) const {
    const runs::RunSpec c = config(own);
    const runs::Fingerprint values = fingerprint(own);
    return compare(stored, values, runs::earlier_values(shape(c), values), c, "C");
  }

  /// The error of continuing a run of `stored` with `own`.
  std::string error(const Words& stored, const Words& own) const {
    return input_error([&] { compared(fingerprint(stored), own); });
  }
};

/// The names that an error's lines list.
Words listed(const std::string& error) {
  Words names;
  std::size_t at = 0;
  while ((at = error.find("\n  ", at)) != std::string::npos) {
    at += 3;
    names.push_back(error.substr(at, error.find(':', at) - at));
  }
  return names;
}

/// A change of each key that gives another curve, and the names that differ then.
const std::map<std::string, std::pair<Words, Words>>& changes() {
  static const std::map<std::string, std::pair<Words, Words>> all = {
      {"model.from", {{}, {}}},     // folders: in the faults' tests
      {"model.adapter", {{}, {}}},  // the same
      {"model.new_tokens", {{}, {}}},
      {"model.vocab", {{}, {}}},  // the tokenizer's
      {"model.dim", {{"model.dim=128"}, {"model.dim", "model.ffn_dim", "model.head_dim"}}},
      {"model.layers", {{"model.layers=3"}, {"model.layers"}}},
      {"model.heads",
       {{"model.heads=2", "model.head_dim=16", "model.kv_heads=2"},
        {"model.heads", "model.kv_heads"}}},
      {"model.kv_heads", {{"model.kv_heads=2"}, {"model.kv_heads"}}},
      {"model.head_dim", {{"model.head_dim=8"}, {"model.head_dim"}}},
      {"model.ffn_dim", {{"model.ffn_dim=32"}, {"model.ffn_dim"}}},
      {"model.rope_theta", {{"model.rope_theta=10001"}, {"model.rope_theta"}}},
      {"model.rope_scaling",
       {{"model.rope_scaling=linear", "model.rope_factor=2"},
        {"model.rope_factor", "model.rope_scaling"}}},
      {"model.rope_factor", {{"model.rope_factor=2"}, {"model.rope_factor"}}},
      {"model.rope_original_positions",
       {{"model.rope_original_positions=64"}, {"model.rope_original_positions"}}},
      {"model.rope_low", {{"model.rope_low=2"}, {"model.rope_low"}}},
      {"model.rope_high", {{"model.rope_high=8"}, {"model.rope_high"}}},
      {"model.rope_amplitude", {{"model.rope_amplitude=1.1"}, {"model.rope_amplitude"}}},
      {"model.rope_whole_dims", {{"model.rope_whole_dims=false"}, {"model.rope_whole_dims"}}},
      {"model.rope_short_factors",
       {{"model.rope_short_factors=[1.5]"}, {"model.rope_short_factors"}}},
      {"model.rope_long_factors", {{"model.rope_long_factors=[1.5]"}, {"model.rope_long_factors"}}},
      {"model.attention_bias", {{"model.attention_bias=true"}, {"model.attention_bias"}}},
      {"model.ffn_bias", {{"model.ffn_bias=true"}, {"model.ffn_bias"}}},
      {"model.norm_eps", {{"model.norm_eps=1e-6"}, {"model.norm_eps"}}},
      {"model.tie_embeddings", {{"model.tie_embeddings=true"}, {"model.tie_embeddings"}}},
      {"model.dropout", {{"model.dropout=0.1"}, {"model.dropout"}}},
      {"data.tokenizer", {{}, {}}},          // of files: run_data.cpp
      {"data.tokenizer_options", {{}, {}}},  // bytes have none
      {"data.chat_template", {{}, {}}},      // a file
      {"data.template_options", {{"data.template_options.a=1"}, {"data.template_options"}}},
      {"data.template_members", {{"data.template_members=[style]"}, {"data.template_members"}}},
      {"data.end_tokens", {{}, {}}},      // bytes have no other tokens: run_data.cpp
      {"data.special_tokens", {{}, {}}},  // the same
      {"data.allow_dropped", {{"data.allow_dropped=[system]"}, {"data.allow_dropped"}}},
      {"data.bad_records", {{"data.bad_records=skip"}, {"data.bad_records"}}},
      {"data.train_on", {{"data.train_on=all"}, {"data.train_on"}}},
      {"data.too_long", {{"data.too_long=cut"}, {"data.too_long"}}},
      {"data.packing", {{}, {}}},     // of documents: run_data.cpp
      {"data.labels", {{}, {}}},      // of labelled texts: equivalence/classification.cpp
      {"train.objective", {{}, {}}},  // of pairs of answers: below
      {"dpo.beta", {{}, {}}},
      {"dpo.label_smoothing", {{}, {}}},
      {"dpo.reference", {{}, {}}},
      {"experts.balance_loss", {{"experts.balance_loss=0.01"}, {"experts.balance_loss"}}},
      {"experts.z_loss", {{"experts.z_loss=0.01"}, {"experts.z_loss"}}},
      {"experts.bias_rate", {{"experts.bias_rate=0.01"}, {"experts.bias_rate"}}},
      {"experts.capacity", {{"experts.capacity=2"}, {"experts.capacity"}}},
      {"data.seq_len", {{"data.seq_len=17"}, {"data.seq_len"}}},
      {"data.order", {{"data.order=sequential"}, {"data.order"}}},
      {"data.validation", {{"data.validation=0.1"}, {"data.validation"}}},
      {"train.batch", {{"train.batch=5"}, {"train.batch"}}},
      {"train.further_weight", {{"train.further_weight=0.5"}, {"train.further_weight"}}},
      {"train.seed", {{"train.seed=2"}, {"train.seed"}}},
      {"train.freeze", {{"train.freeze=[lm_head.*]"}, {"train.freeze"}}},
      {"train.clip_grad_norm", {{"train.clip_grad_norm=0"}, {"train.clip_grad_norm"}}},
      {"train.clip_norm_type", {{"train.clip_norm_type='1'"}, {"train.clip_norm_type"}}},
      {"train.clip_grad_value",
       {{"train.clip_grad_norm=0", "train.clip_grad_value=1"},
        {"train.clip_grad_norm", "train.clip_grad_value"}}},
      {"train.nonfinite_gradients",
       {{"train.nonfinite_gradients=skip"}, {"train.nonfinite_gradients"}}},
      {"train.loss_scaling", {{"train.loss_scaling=dynamic"}, {"train.loss_scaling"}}},
      {"train.parameters",
       {{"train.parameters=bf16", "train.precision=bf16"}, {"train.parameters"}}},
      {"train.reproducible",
       {{"train.reproducible=layout", "train.virtual_shards=4"},
        {"train.feature_shards", "train.reproducible", "train.virtual_shards"}}},
      {"train.virtual_shards",
       {{"train.reproducible=layout", "train.virtual_shards=2"},
        {"train.feature_shards", "train.reproducible", "train.virtual_shards"}}},
      {"train.feature_shards",
       {{"train.reproducible=layout", "train.virtual_shards=4", "train.feature_shards=2"},
        {"train.feature_shards", "train.reproducible", "train.virtual_shards"}}},
      {"optimizer.name", {{"optimizer.name=sgd"}, {"optimizer.name"}}},
      {"optimizer.lr", {{"optimizer.lr=0.0004"}, {"optimizer.lr"}}},
      {"optimizer.options", {{"optimizer.options.eps=1e-9"}, {"optimizer.options"}}},
      {"optimizer.groups", {{"optimizer.groups=[{on=[\"**.bias\"],lr=1}]"}, {"optimizer.groups"}}},
      {"optimizer.cooldown",
       {{"optimizer.schedule=wsd", "optimizer.cooldown=1"},
        {"optimizer.cooldown", "optimizer.schedule"}}},
      {"optimizer.schedule_unit",
       {{"optimizer.schedule_unit=tokens"}, {"optimizer.schedule_unit"}}},
      {"optimizer.schedule_end",
       {{"optimizer.schedule=linear", "optimizer.schedule_end=9"},
        {"optimizer.schedule", "optimizer.schedule_end"}}},
      {"optimizer.weight_decay", {{"optimizer.weight_decay=0"}, {"optimizer.weight_decay"}}},
      {"optimizer.decay", {{"optimizer.decay=all"}, {"optimizer.decay"}}},
      {"optimizer.schedule", {{"optimizer.schedule=cosine"}, {"optimizer.schedule"}}},
      {"optimizer.warmup", {{"optimizer.warmup=3"}, {"optimizer.warmup"}}},
      {"optimizer.min_lr_ratio", {{"optimizer.min_lr_ratio=0.5"}, {"optimizer.min_lr_ratio"}}}};
  return all;
}

/// A change of each other key of these sections: the curve stays.
const std::map<std::string, Words>& harmless() {
  static const std::map<std::string, Words> all = {
      {"model.family", {}},
      {"data.text", {"data.text=[start.txt, end.txt]"}},  // the same bytes from two files
      {"data.tokens", {}},
      {"data.jsonl", {}},
      {"data.sources", {}},
      {"data.columns", {"data.columns={text=\"body\"}"}},  // of records: their hash has it
      {"data.exclude", {}},  // what is left out from where on is compared: tests/questions
      {"data.validation_files", {}},
      {"data.validation_windows", {"data.validation_windows=8"}},
      {"data.validate_every", {"data.validate_every=7"}},
      {"train.steps", {"train.steps=1000"}},
      {"train.epochs", {}},  // it sets the steps
      {"model.base", {}},    // only a checkpoint in model.from has one
      {"train.micro_batch", {"train.micro_batch=2"}},
      {"train.head_rows", {"train.head_rows=16"}},
      {"train.precision", {"train.precision=bf16"}},
      {"train.activation_checkpointing", {"train.activation_checkpointing=true"}},
      {"train.threads", {"train.threads=3"}},
      {"train.heal", {"train.heal=true"}},
      {"train.heal_every", {"train.heal_every=4"}},
      {"train.heal_after", {"train.heal_after=5"}},
      {"train.heal_limit", {"train.heal_limit=3"}},
      {"train.heal_copies", {"train.heal_copies=1"}},
      {"train.heal_wait", {"train.heal_wait=5"}},
      {"train.checksums", {"train.checksums=2"}},
      {"train.on_spike", {"train.on_spike={over=4,action=warn}"}},  // a run may begin to look
      {"train.device", {"train.device=cpu:0"}}};
  return all;
}

}  // namespace

TEST_CASE("each key that changes the loss curve is compared, and only those") {
  const Texts texts;
  CHECK(texts.error({}, {}).empty());
  for (const runs::Key& key : runs::config_keys()) {
    INFO(key.path);
    const bool curve = changes().contains(key.path);
    if (curve) {
      const auto& [overrides, names] = changes().at(key.path);
      CHECK(listed(texts.error({}, overrides)) == names);
      CHECK(listed(texts.error(overrides, {})) == names);
    } else if (harmless().contains(key.path)) {
      CHECK(texts.error({}, harmless().at(key.path)).empty());
    } else {
      // Sections that say where and how a run works, not what it computes.
      const Words others = {"mesh",  "plugins", "parallel", "log",
                            "sinks", "trace",   "graph",    "checkpoint"};
      CHECK(std::ranges::find(others, key.section()) != others.end());
    }
  }
}

TEST_CASE("the keys of preferences are compared, where preferences are learned") {
  const Texts texts;
  std::string pairs;
  for (int i = 0; i < 8; ++i) {
    pairs += R"({"prompt": "a", "chosen": " b", "rejected": " c"})"
             "\n";
  }
  texts.write("pairs.jsonl", pairs);
  const Words run = {"data.text=[]", "data.jsonl=[pairs.jsonl]", "data.validation=0",
                     "train.objective=dpo"};
  const runs::Fingerprint stored = texts.fingerprint(run);
  CHECK(texts.compared(stored, run).empty());
  for (const char* const change :
       {"dpo.beta=0.2", "dpo.label_smoothing=0.1", "dpo.reference=copy"}) {
    Words own = run;
    own.emplace_back(change);
    const std::string key = std::string(change).substr(0, std::string(change).find('='));
    CHECK(listed(input_error([&] { texts.compared(stored, own); })) == Words{key});
  }
  CHECK_FALSE(texts.fingerprint({}).contains("dpo.beta"));
  CHECK(stored.contains("train.objective"));
}

TEST_CASE("what the error says to allow keeps what is allowed already") {
  const Texts texts;
  const std::string error =
      texts.error({}, {"train.seed=7", "optimizer.lr=0.5", "checkpoint.allow=[train.seed]"});
  INFO(error);
  CHECK(error.find("'checkpoint.allow=[\"optimizer.lr\",\"train.seed\"]'") != std::string::npos);
  CHECK(texts
            .error({}, {"train.seed=7", "optimizer.lr=0.5",
                        "checkpoint.allow=[\"optimizer.lr\",\"train.seed\"]"})
            .empty());
}

TEST_CASE("the text itself is compared, not its name") {
  const Texts texts;
  CHECK(listed(texts.error({}, {"data.text=[b.txt]"})) == Words{"data.content"});
  CHECK(listed(texts.error({}, {"data.text=[end.txt, start.txt]"})) == Words{"data.content"});
  texts.write("copy.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  CHECK(texts.error({}, {"data.text=[copy.txt]"}).empty());
}

TEST_CASE("all differences are listed with both values and the ways out") {
  const Texts texts;
  const std::string error = texts.error({"optimizer.lr=0.5"}, {"train.seed=9", "train.batch=2"});
  INFO(error);
  CHECK(listed(error) == Words{"optimizer.lr", "train.batch", "train.seed"});
  for (const char* part :
       {"C: it is a checkpoint of another run",
        "optimizer.lr: 0.5 in the checkpoint, 0.0003 in "
        "the config",
        "train.seed: 1 in the checkpoint, 9 in the config", "another checkpoint.folder",
        "'checkpoint.allow=[\"optimizer.lr\",\"train.batch\",\"train.seed\"]'"}) {
    CHECK(error.find(part) != std::string::npos);
  }
}

TEST_CASE("what is allowed may differ, by key or by section, and nothing else") {
  const Texts texts;
  const Words own = {"optimizer.lr=0.5", "train.seed=9"};
  const auto with = [&](const std::string& allow) {
    Words words = own;
    words.push_back("checkpoint.allow=" + allow);
    return words;
  };
  CHECK(texts.error({}, with("[optimizer.lr, train.seed]")).empty());
  CHECK(texts.error({}, with("[optimizer, train]")).empty());
  CHECK(listed(texts.error({}, with("[optimizer]"))) == Words{"train.seed"});
  CHECK(listed(texts.error({}, with("[train.seed]"))) == Words{"optimizer.lr"});
  const Words allowed = texts.compared(texts.fingerprint({}), with("[optimizer, train]"));
  CHECK(allowed == Words{"optimizer.lr: 0.0003 in the checkpoint, 0.5 in the config",
                         "train.seed: 1 in the checkpoint, 9 in the config"});
}

TEST_CASE("a fingerprint survives the checkpoint's meta data") {
  const Texts texts;
  const runs::Fingerprint own = texts.fingerprint({"optimizer.lr=0.1", "model.norm_eps=1e-7"});
  CHECK(runs::stored_fingerprint("{\"fingerprint\": " + runs::to_json(own) + "}", "C") == own);
  for (const char* meta : {"{}", "[]", "{\"fingerprint\": 3}", "{"}) {
    CHECK(input_error([&] {
            runs::stored_fingerprint(meta, "C");
          }).find("not a checkpoint of 'tessera") != std::string::npos);
  }
  // One that an older or newer program wrote: a name that only one of them knows is a difference.
  runs::Fingerprint fewer = own;
  fewer.erase("optimizer.options");
  const runs::RunSpec config = texts.config({});
  const runs::Fingerprint earlier = runs::earlier_values(Texts::shape(config), own);
  CHECK(listed(input_error([&] { compare(fewer, own, earlier, config, "C"); })) ==
        Words{"optimizer.options"});
  CHECK(listed(input_error([&] { compare(own, fewer, earlier, config, "C"); })) ==
        Words{"optimizer.options"});
  const runs::Fingerprint program = runs::own_fingerprint(config, false);
  CHECK(
      input_error([&] { compare(program, own, earlier, config, "C"); }) ==
      "C: it is a checkpoint of a program's own task (expected one of a language model on texts); "
      "name another checkpoint.folder");
  CHECK(input_error([&] {
          compare(own, program, {}, config, "C");
        }).starts_with("C: it is a checkpoint of a language model on texts"));
}

TEST_CASE("a key of the family that came after a checkpoint has its initial value there") {
  const Texts texts;
  runs::Fingerprint earlier = texts.fingerprint({});
  REQUIRE(earlier.erase("model.rope_scaling") == 1);
  REQUIRE(earlier.erase("model.rope_factor") == 1);
  CHECK(texts.compared(earlier, {}).empty());
  const std::string error = input_error(
      [&] { texts.compared(earlier, {"model.rope_scaling=linear", "model.rope_factor=2"}); });
  CHECK(listed(error) == Words{"model.rope_factor", "model.rope_scaling"});
  CHECK(error.find("model.rope_factor: 1.0 in the checkpoint, 2.0 in the config") !=
        std::string::npos);
}
