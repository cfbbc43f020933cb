// Every key of every section, one by one: names, types, ranges and words. The bounds are written
// down here once more, as a reader of docs/config.md would: a key that is absent fails the test.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.options;
import tessera.runs;
import tessera.app.config;

namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::input_error;

namespace {

/// An entry of each list, so that its keys can be set as all others are.
const std::string base = R"(data.text = ["a.txt"]
[mesh]
axes = ["a"]
shape = [2]
[[parallel]]
style = "S"
axis = "a"
on = ["."]
[[sinks]]
sink = "S"
)";

/// The key as an override names it.
std::string name_of(const runs::Key& key) {
  return key.in_list() ? key.section() + "[0]." + key.leaf() : key.path;
}

std::string override_error(const std::string& override_text) {
  std::vector<std::string> overrides = {override_text};
  if (override_text.starts_with("dpo.")) {
    overrides.emplace_back("train.objective=dpo");  // others have no such keys
  }
  return input_error([&] { parse_config(base, "run.toml", overrides); });
}

/// Refused as a value of this key; a check that compares keys with each other is not what is meant.
bool refused(const runs::Key& key, const std::string& value) {
  const std::string error = override_error(name_of(key) + "=" + value);
  INFO(name_of(key) << " = " << value << ": " << error);
  const bool named = error.find(name_of(key)) != std::string::npos;
  return named && error.find(": expected ") != std::string::npos;
}

bool is_number(const runs::Key& key) {
  runs::RunSpec config = runs::with_entries();
  const runs::Slot slot = key.slot(config, 0);
  return std::holds_alternative<std::int64_t*>(slot) || std::holds_alternative<double*>(slot) ||
         std::holds_alternative<std::vector<std::int64_t>*>(slot) ||
         std::holds_alternative<std::vector<double>*>(slot);
}

struct Numbers {
  std::vector<std::string> wrong;
  std::vector<std::string> right;
};

const std::map<std::string, Numbers>& numbers() {
  static const std::map<std::string, Numbers> all = {
      {"model.dim", {{"0", "-1", "16777217"}, {"1", "16777216"}}},
      {"model.layers", {{"0", "-1", "10001"}, {"1", "10000"}}},
      {"model.heads", {{"0", "-1", "100001"}, {"1", "100000"}}},
      {"model.kv_heads", {{"-1", "100001"}, {"0", "100000"}}},
      {"model.head_dim", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"model.ffn_dim", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"model.vocab", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"model.rope_theta", {{"0", "-0.5"}, {"1e-300", "1e300"}}},
      {"model.rope_factor", {{"0", "-2"}, {"0.5", "32"}}},
      {"model.rope_original_positions", {{"-1"}, {"0", "131072"}}},
      {"model.rope_low", {{"0", "-1"}, {"0.5", "1"}}},
      {"model.rope_high", {{"0", "-1"}, {"4", "32"}}},
      {"model.rope_amplitude", {{"0", "-1"}, {"1", "1.4"}}},
      {"model.rope_short_factors", {{"[0]", "[1, -1]"}, {"[1e-300]", "[0.5, 1e300]"}}},
      {"model.rope_long_factors", {{"[0]", "[1, -1]"}, {"[1e-300]", "[0.5, 1e300]"}}},
      {"model.norm_eps", {{"0", "-1e-5"}, {"1e-300", "1"}}},
      {"model.dropout", {{"-0.001", "1", "1.5"}, {"0", "0.999"}}},
      {"data.seq_len", {{"0", "-1", "16777217"}, {"1", "16777216"}}},
      {"data.validation", {{"-0.001", "1"}, {"0", "0.999"}}},
      {"data.validation_windows", {{"-1"}, {"0", "1000000"}}},
      {"data.validate_every", {{"-1"}, {"0", "1000000"}}},
      {"train.steps", {{"0", "-1", "1000000000000001"}, {"1", "1000000000000000"}}},
      {"train.epochs", {{"-0.001", "1000001"}, {"0", "0.5"}}},
      {"train.batch", {{"0", "-1", "16777217"}, {"1", "16777216"}}},
      {"train.micro_batch", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"train.head_rows", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"train.further_weight", {{"-0.001", "1000001"}, {"0", "1e6"}}},
      {"train.seed", {{"-1", "9100000000000000000"}, {"0", "8999999999999999999"}}},
      {"train.clip_grad_norm", {{"-0.001"}, {"0", "1e300"}}},
      {"train.clip_grad_value", {{"-0.001"}, {"0"}}},
      {"train.heal_every", {{"0", "-1"}, {"1"}}},
      {"train.heal_after", {{"0", "0.09", "1000001"}, {"0.1", "1e6"}}},
      {"train.heal_limit", {{"0", "-1", "1000001"}, {"1", "1000000"}}},
      {"train.heal_copies", {{"0", "3"}, {"1", "2"}}},
      {"train.heal_wait", {{"-1", "1000001"}, {"0", "1e6"}}},
      {"train.checksums", {{"-1"}, {"0", "1"}}},
      {"graph.verify", {{"-1"}, {"0"}}},
      {"train.virtual_shards", {{"0", "-1", "16777217"}, {"1", "16777216"}}},
      {"train.feature_shards", {{"0", "-1", "16777217"}, {"1", "16777216"}}},
      {"train.threads", {{"-1", "65537"}, {"0", "65536"}}},
      {"dpo.beta", {{"0", "-0.1"}, {"1e-300", "1e300"}}},
      {"dpo.label_smoothing", {{"-0.001", "0.5"}, {"0", "0.499"}}},
      {"experts.balance_loss", {{"-0.001"}, {"0", "1e300"}}},
      {"experts.z_loss", {{"-0.001"}, {"0", "1e300"}}},
      {"experts.bias_rate", {{"-0.001"}, {"0", "1e300"}}},
      {"experts.capacity", {{"-0.001"}, {"0", "1e300"}}},
      {"optimizer.lr", {{"0", "-0.001"}, {"1e-300", "1e300"}}},
      {"optimizer.weight_decay", {{"-0.001", "-1"}, {"0", "1e300"}}},
      {"optimizer.warmup", {{"-1"}, {"0", "300"}}},
      {"optimizer.cooldown", {{"-1"}, {"0"}}},
      {"optimizer.schedule_end", {{"-1"}, {"0"}}},
      {"optimizer.min_lr_ratio", {{"-0.001", "1.001"}, {"0", "1"}}},
      {"mesh.shape", {{"[0]", "[-1]", "[65537]"}, {"[1]", "[65536]"}}},
      {"mesh.latency_us", {{"[-0.001]"}, {"[0]", "[1e300]"}}},
      {"mesh.bandwidth_gb", {{"[0]", "[-1]"}, {"[1e-300]", "[1e300]"}}},
      {"log.every", {{"0", "-1"}, {"1"}}},
      {"log.stragglers", {{"-0.001"}, {"0", "0.5"}}},
      {"log.sample", {{"-1", "16777217"}, {"0", "16777216"}}},
      {"trace.steps", {{"[0,1]", "[-1,1]"}, {"[1,1]"}}},
      {"checkpoint.every", {{"-1"}, {"0", "1000000"}}},
      {"checkpoint.keep", {{"-1", "1000000001"}, {"0", "1000000000"}}}};
  return all;
}

}  // namespace

TEST_CASE("a misspelt key of any section is refused with the right name") {
  for (const runs::Key& key : runs::config_keys()) {
    const std::string shown = key.in_list() ? key.section() + "[0]" : key.section();
    for (const std::string& leaf : {key.leaf() + "x", "x" + key.leaf()}) {
      const std::string error = override_error(shown + "." + leaf + "=1");
      INFO(error);
      CHECK(error.find(shown + "." + leaf + ": unknown key; did you mean '" + name_of(key) +
                       "'?") != std::string::npos);
    }
  }
  for (const std::string& section : runs::config_sections()) {
    const std::string shown = runs::list_section(section) != nullptr ? section + "[0]" : section;
    const std::string unknown = override_error(shown + ".qqqqqqqqqqqq=1");
    INFO(unknown);
    CHECK(unknown.find(shown + ".qqqqqqqqqqqq: unknown key") != std::string::npos);
    const std::string other = override_error(section + "x.steps=1");
    INFO(other);
    CHECK(other.find("did you mean '" + section + "'?") != std::string::npos);
  }
}

TEST_CASE("a value of another type is refused for every key") {
  // What each type of key takes, among these.
  const std::vector<std::string> values = {
      "true", "1979-05-27", "{a=1}", "[[1]]", "[true]", "[{a=1}]", "nan",   "[nan]",   "inf",
      "-inf", "[inf]",      "2.5",   "3",     "[2.5]",  "[3]",     "\"w\"", "[\"w\"]", "[]"};
  struct Takes {
    std::vector<std::string> operator()(const bool*) const { return {"true"}; }
    std::vector<std::string> operator()(const std::int64_t*) const { return {"3"}; }
    std::vector<std::string> operator()(const double*) const { return {"2.5", "3"}; }
    std::vector<std::string> operator()(const std::string*) const { return {"\"w\""}; }
    std::vector<std::string> operator()(const std::vector<std::string>*) const {
      return {"[\"w\"]", "[]"};
    }
    std::vector<std::string> operator()(const std::vector<std::int64_t>*) const {
      return {"[3]", "[]"};
    }
    std::vector<std::string> operator()(const std::vector<double>*) const {
      return {"[2.5]", "[3]", "[]"};
    }
    std::vector<std::string> operator()(const tessera::WordField&) const { return {}; }
    std::vector<std::string> operator()(const runs::Names*) const { return {"\"w\"", "[\"w\"]"}; }
    std::vector<std::string> operator()(const runs::JsonText*) const { return {"{a=1}"}; }
    std::vector<std::string> operator()(const runs::JsonList*) const { return {"[{a=1}]", "[]"}; }
  };
  for (const runs::Key& key : runs::config_keys()) {
    runs::RunSpec config = runs::with_entries();
    const std::vector<std::string> taken = std::visit(Takes{}, key.slot(config, 0));
    for (const std::string& value : values) {
      if (std::ranges::find(taken, value) == taken.end()) {
        CHECK(refused(key, value));
      }
    }
  }
}

TEST_CASE("every number has its bounds, and they are those of the page") {
  for (const runs::Key& key : runs::config_keys()) {
    if (!is_number(key)) {
      continue;
    }
    INFO(key.path << " is not in this test's table");
    REQUIRE(numbers().contains(key.path));
    for (const std::string& value : numbers().at(key.path).wrong) {
      CHECK(refused(key, value));
    }
    for (const std::string& value : numbers().at(key.path).right) {
      CHECK_FALSE(refused(key, value));
    }
  }
}

TEST_CASE("a word that is not among a key's words is refused") {
  int checked = 0;
  for (const runs::Key& key : runs::config_keys()) {
    if (key.choices.empty() || key.is_path) {
      continue;
    }
    ++checked;
    for (const std::string& word : key.choices) {
      CHECK_FALSE(refused(key, word));
      CHECK(refused(key, word + "x"));
    }
    CHECK(refused(key, "\"\""));
  }
  // model.new_tokens and rope_scaling, data.special_tokens, train_on, bad_records, too_long,
  // packing and order, train.objective, two of train's clipping, train.precision, parameters and
  // reproducible, dpo.reference, optimizer.decay, schedule and its unit, two of checkpoint
  CHECK(checked == 23);
}

TEST_CASE("entries of lists, required texts and texts with zero bytes are refused when empty") {
  for (const runs::Key& key : runs::config_keys()) {
    runs::RunSpec config = runs::with_entries();
    const runs::Slot slot = key.slot(config, 0);
    const bool list = std::holds_alternative<std::vector<std::string>*>(slot);
    if (list) {
      CHECK(refused(key, "[\"\"]"));
      CHECK(refused(key, "[\"a\", \"b\\u0000c\"]"));
    } else if (std::holds_alternative<std::string*>(slot)) {
      if (key.path == "model.family") {
        continue;  // its words are those of the plugins: models.cpp
      }
      const bool is_number = key.path == "train.clip_norm_type";  // or "inf"
      CHECK(refused(key, "\"\"") ==
            (is_number || key.required || (!key.choices.empty() && !key.is_path)));
      // A path would silently end there.
      CHECK(refused(key, "\"b\\u0000c\""));
    }
  }
}

TEST_CASE("limits of gradients are one norm, or one magnitude") {
  for (const char* good : {"\"1\"", "\"2\"", "\"2.5\"", "\"inf\""}) {
    CHECK(override_error(std::string("train.clip_norm_type=") + good).empty());
  }
  for (const char* bad : {"\"0\"", "\"-1\"", "\"nan\"", "\"two\"", "\"2 \"", "\"infinity\""}) {
    CHECK(override_error(std::string("train.clip_norm_type=") + bad)
              .find("train.clip_norm_type: expected \"inf\" or a number more than 0 as a text") !=
          std::string::npos);
  }
  CHECK(override_error("train={clip_grad_value=0.5}")
            .find("train.clip_grad_value: train.clip_grad_norm limits the gradients too (1); set "
                  "one of them to 0") != std::string::npos);
  CHECK(override_error("train={clip_grad_value=0.5,clip_grad_norm=0}").empty());
}

TEST_CASE("sizes that cannot be held together are refused before anything is built") {
  const std::string error =
      override_error("model={dim=16777216,layers=10000,heads=2,ffn_dim=16777216}");
  INFO(error);
  CHECK(error.find("model.dim: the sizes of the model make up to 2.0e+19 parameters") !=
        std::string::npos);
}

TEST_CASE("checkpoint.allow takes the names that a checkpoint is compared by, and no others") {
  CHECK(override_error("checkpoint.allow=[data, optimizer.lr, data.content, train.batch]").empty());
  const std::string error = override_error("checkpoint.allow=[optimizer.lrr]");
  INFO(error);
  CHECK(error.find("did you mean 'optimizer.lr'?") != std::string::npos);
  for (const char* name : {"train.steps", "train.threads", "mesh", "mesh.shape", "log", "parallel",
                           "checkpoint", "x", "data.text"}) {
    INFO(name);
    CHECK_FALSE(override_error(std::string("checkpoint.allow=[") + name + "]").empty());
  }
}
