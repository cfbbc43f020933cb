// Families as files: what is read, what is refused and where, and a run that uses one.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.nn;
import tessera.models;

using namespace tessera;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

/// A Llama whose heads are normalized, with one key of its own.
const std::string mine = R"(family = "mine"
architecture = "MineForCausalLM"
like = "llama"
decoder = { query_key_norm = "shared" }

[[key]]
name = "logit_scale"
config = "logit_scale"
initial = 1.0
above = 0
doc = "Logits are multiplied by it."
)";

std::string refusal_of(const std::string& text) {
  return testing::input_error([&] { models::read_family_file("mine.family.toml", text); });
}

/// The first text with `to` in the place of `from`.
std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a family file begins with what the family that it is like has") {
  const models::FamilyFile file = models::read_family_file("mine.family.toml", mine);
  CHECK(file.family == "mine");
  CHECK(file.traits.architecture == "MineForCausalLM");
  CHECK(file.traits.shape.query_key_norm == nn::HeadNorm::shared);
  CHECK(file.traits.scaled_rope);
  const auto& keys = file.traits.properties;
  const std::vector<std::string> expected = {"attention_bias", "ffn_bias", "logit_scale"};
  std::vector<std::string> names;
  std::ranges::transform(keys, std::back_inserter(names), &models::DecoderProperty::key);
  CHECK(names == expected);
  const models::FamilyFile without = models::read_family_file(
      "mine.family.toml", changed(mine, "\n[[key]]", "without = [\"ffn_bias\"]\n[[key]]"));
  CHECK(without.traits.properties.size() == 2);
}

TEST_CASE("a family file's problems are named together, each with its line") {
  const std::string error = refusal_of(R"(family = "Mine!"
architecture = "MineForCausalLM"
like = "lama"
decodder = {}
decoder = { query_key_norms = "shared", norm_kind = "batch", window = "wide" }
[[key]]
name = "logit_scale"
initial = 1.0
[[fixed]]
config = "a"
)");
  for (const char* part :
       {"7 problems", "mine.family.toml:1: family: expected at most 64 of a to z",
        "mine.family.toml:3: like: there is no built-in family 'lama'; did you mean 'llama'?",
        "mine.family.toml:4: decodder: unknown key; did you mean 'decoder'?",
        "mine.family.toml:5: there is no property 'query_key_norms' of decoders; did you mean "
        "'query_key_norm'?",
        "mine.family.toml:5: decoder.norm_kind: there is no 'batch'",
        "mine.family.toml:5: decoder.window: expected an integer",
        "mine.family.toml:6: key: config is missing",
        "mine.family.toml:9: fixed: needs `config` and `reason`"}) {
    INFO(part);
    has(error, part == std::string("7 problems") ? "8 problems" : part);
  }
  const std::string forms = refusal_of(mine + R"(
[forms]
doc = "Which form."
absent = { multi_query = true }
[[form]]
name = "a"
flags = { multi_quary = true }
key_heads = "two"
[nested]
object = 1
[further_tokens]
patterns = []
)");
  for (const char* part :
       {"form.flags: forms.absent has no 'multi_quary'", "form.key_heads: there is no 'two'",
        "nested: expected a table", "further_tokens.patterns: unknown key"}) {
    has(forms, part);
  }
  const std::string gguf = refusal_of(mine + R"(last = true
[gguf]
name = "mine"
modules = { "mlp.gate_projj" = "ffn_gate" }
when = { a = nan }
keys = 1
[[gguf.fused]]
stored = "attn_qkv"
parts = ["self_attn.q_projj"]
)");
  for (const char* part :
       {"key: `last` goes with `marks`", "gguf.name: unknown key", "architecture is missing",
        "gguf.modules.mlp.gate_projj: unknown key; did you mean 'mlp.gate_proj'?",
        "gguf.when.a: expected true or false, a number, a text or a list of these",
        "gguf.keys: expected a table",
        "gguf.fused.parts: a layer has no module 'self_attn.q_projj'"}) {
    INFO(part);
    has(gguf, part);
  }
  const std::string layers = refusal_of(mine + R"(
[gguf]
architecture = "mine"
forms = { "recurrent.steps.D" = ["colum"], "recurrent.steps.A_log" = 1 }
lacking = { keys_as_values = ["attn_k.weight"] }
windowed = { "attention.head_count_kv" = "num_key_value_heads" }
[gguf.choices.a]
field = "b"
values = [[1, 2, 3]]
otherwise = true
[gguf.choices.c]
fields = "b"
[gguf.form_modules.grouped]
input_layernom = "attn_norm"
[gguf.layers]
key = "layer_types"
[[gguf.layers.kind]]
wrod = "a"
)");
  for (const char* part :
       {"gguf.forms.recurrent.steps.D: 'colum' is not a form of tensors (expected ",
        "gguf.forms.recurrent.steps.A_log", "gguf.lacking.keys_as_values: expected two texts",
        "gguf.windowed.attention.head_count_kv: expected two texts",
        "gguf.choices.a: expected a `field`, `values`", "gguf.choices.c.fields: unknown key",
        "gguf.form_modules.grouped.input_layernom: unknown key",
        "gguf.layers.kind.wrod: unknown key",
        "gguf.layers: expected a `key` and two or more kinds"}) {
    INFO(part);
    has(layers, part);
  }
  has(refusal_of(mine + "\n[gguf]\nsame_as = \"lama\"\n"),
      "gguf.same_as: there is no built-in family 'lama'");
  has(refusal_of(mine + "\n[gguf]\nsame_as = \"llama\"\narchitecture = \"llama\"\n"),
      "gguf: `architecture` does not go with `same_as`");
  has(refusal_of(mine + "[[form]]\nname = \"a\"\nflags = {}\n"),
      "[forms] goes with at least one [[form]]");
  has(refusal_of(mine + R"([[key]]
name = "unrotated_layers"
config = "no_rope_layers"
initial = []
zeros = true
replaces = "unrotated_evry"
doc = "Layers that are not rotated."
)"),
      "key.replaces: the family has no key 'unrotated_evry' that is a whole number");
  has(refusal_of("family = "), "mine.family.toml:1");
  has(refusal_of(""), "family is missing");
  has(refusal_of(std::string(1'000'001, '#')), "it is too large for a family file");
  has(refusal_of(changed(mine, "initial = 1.0", "initial = true")),
      "key.initial: expected a number");
  has(refusal_of(changed(mine, "initial = 1.0", "initial = nan")),
      "key.initial: expected a number");
}

TEST_CASE("every built-in family is a file that can be read, and builds a small model") {
  for (const std::string& name : models::built_in_families()) {
    INFO(name);
    const models::FamilyFile file = models::built_in_family(name);
    CHECK(file.family == name);
    const models::ModelFamily& family = models::model_family(name);
    models::ModelSizes sizes;
    sizes.vocab = 32;
    sizes.max_positions = 64;
    sizes.values = models::ModelValues(family.keys());
    sizes.values.set("dim", std::int64_t{32});
    sizes.values.set("layers", std::int64_t{2});
    sizes.values.set("heads", std::int64_t{2});
    if (sizes.values.all().contains("rotary_dim")) {
      sizes.values.set("rotary_dim", std::int64_t{8});
    }
    CHECK(family.complete(sizes).empty());
    const auto model = family.build(sizes, 0);
    CHECK(static_cast<double>(nn::parameter_count(*model)) == family.parameters(sizes));
    // config.json and back.
    models::HubConfigFile config(
        [&] {
          std::string json;
          for (const models::HubKey& key : family.write(sizes)) {
            json += (json.empty() ? "\"" : ", \"") + key.key + "\": " + key.json;
          }
          return "{" + json + "}";
        }(),
        name);
    config.check_common(family.architecture());
    const models::ModelSizes back = family.read(config);
    config.finish();
    for (const auto& [key, value] : sizes.values.all()) {
      INFO(key);
      // Without a window config.json does not say which layers would have none; a pattern that
      // repeats is written for each layer; a model without attention and feed-forward parts has
      // none of their sizes.
      const std::set<std::string> of_layers = {"global_every", "global_layers", "layer_pattern"};
      const std::set<std::string> absent = {"heads", "kv_heads", "head_dim", "ffn_dim"};
      CHECK((back.values.all().at(key) == value || key.starts_with("rope_") ||
             of_layers.contains(key) || (name == "mamba2" && absent.contains(key))));
    }
  }
}

TEST_CASE("a run uses a family file as it uses a plugin") {
  const Folder folder;
  folder.write("mine.family.toml", mine);
  folder.write("text.txt", std::string(4000, 'a'));
  const auto dry_run = [&](const std::string& model) {
    folder.write("run.toml", "[model]\n" + model +
                                 "\n[data]\ntext = [\"text.txt\"]\nseq_len = 16\n[train]\nbatch = "
                                 "2\n[plugins]\npaths = [\"mine.family.toml\"]\n");
    return run_program(
        "train '" + (folder.path() / "run.toml").string() + "' --dry-run checkpoint.folder= ",
        "XDG_DATA_HOME=/nowhere TESSERA_PLUGIN_PATH= ");
  };
  const Result good = dry_run("family = \"mine\"\ndim = 32\nheads = 2\nlogit_scale = 0.5");
  INFO(good.error);
  CHECK(good.code == 0);
  has(good.out, "mine: ");
  const Result bad = dry_run("family = \"mine\"\nlogit_scale = 0.0");
  CHECK(bad.code == 2);
  has(bad.error, "model.logit_scale: expected a finite number more than 0");
  // The name of a built-in family is taken, whatever the file says.
  folder.write("mine.family.toml", changed(mine, "family = \"mine\"", "family = \"qwen3\""));
  const Result taken = dry_run("family = \"mine\"");
  CHECK(taken.code == 2);
  has(taken.error, "the family 'qwen3' is built in");
}
