module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/content_hash.hpp"
#include "tessera/json.hpp"
module tessera.runs;

import tessera.base;
import tessera.ggml;
import tessera.tensor;
import tessera.checkpoint;
import tessera.data;
import tessera.models;
import tessera.exported;
import tessera.hub;

namespace tessera::runs {
namespace {

/// The weights that a run starts from: of each file the header and 4 KiB of every MiB, so that a
/// large model does not have to be read twice. Weights that were trained differ nearly everywhere.
/// `any_format`: they need not be in *.safetensors.
std::string weights_hash(const std::string& folder, bool any_format) {
  std::error_code ignored;
  std::set<std::string> files;
  if (is_gguf(folder) || (any_format && exported::is_program(folder))) {
    files = {folder};
  } else if (!std::filesystem::is_directory(folder, ignored)) {
    fail_input({.thing = folder,
                .wrong = "there is no such folder",
                .expected = "one with *.safetensors"});
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") {
        files.insert(entry.path().string());
      }
    }
  }
  if (files.empty() && any_format) {
    const OpenedTensors opened = open_tensors(folder);
    for (const std::string& name : opened.source->files()) {
      files.insert((std::filesystem::path(folder) / name).string());
    }
  }
  ContentHash hash;
  for (const std::string& file : files) {
    const data::DataFile data(file);
    const data::DataFile::Handle handle(data);
    constexpr std::size_t step = std::size_t{1} << 20;
    constexpr std::size_t sample = 4096;
    std::vector<std::byte> bytes;
    for (std::size_t at = 0; at < data.size(); at += step) {
      bytes.resize(std::min(sample, data.size() - at));
      handle.read(data, at, bytes);
      hash.add(bytes);
    }
    if (exported::is_program(file)) {
      // The directory at an archive's end has the checksum of each tensor.
      bytes.resize(std::min(4 * step, data.size()));
      handle.read(data, data.size() - bytes.size(), bytes);
      hash.add(bytes);
    }
    const std::string size = fmt::format("{};", data.size());
    hash.add(std::as_bytes(std::span(size)));
  }
  return hash.hex();
}

/// Keys that every fingerprint has. All others are in it where they differ from their defaults, so
/// that a new key leaves the checkpoints of earlier versions what they are.
constexpr std::string_view first_keys[] = {"data.order",
                                           "data.seq_len",
                                           "data.special_tokens",
                                           "data.validation",
                                           "model.from",
                                           "model.dropout",
                                           "optimizer.cooldown",
                                           "optimizer.decay",
                                           "optimizer.groups",
                                           "optimizer.lr",
                                           "optimizer.name",
                                           "optimizer.options",
                                           "optimizer.min_lr_ratio",
                                           "optimizer.schedule",
                                           "optimizer.schedule_end",
                                           "optimizer.schedule_unit",
                                           "optimizer.warmup",
                                           "optimizer.weight_decay",
                                           "train.batch",
                                           "train.freeze",
                                           "train.clip_grad_norm",
                                           "train.clip_grad_value",
                                           "train.loss_scaling",
                                           "train.clip_norm_type",
                                           "train.nonfinite_gradients",
                                           "train.parameters",
                                           "train.seed"};
constexpr const char* special_tokens = "data.special_tokens";
/// The mark of a program's own task.
constexpr const char* own_task = "own_task";
/// Rows that are left out: what a checkpoint has is a part of what its continuation leaves out.
constexpr const char* excluded_rows = "data.exclude";
/// What earlier versions wrote for token ids too.
constexpr const char* no_tokenizer = "bytes";

/// The values of the keys that determine a loss curve, without those of the model's family.
Fingerprint influences(const RunSpec& config) {
  Fingerprint values;
  const RunSpec initial;
  const bool compares = config.train.objective == ObjectiveKind::dpo;
  for (const Key& key : config_keys(config.model.family)) {
    const bool always = std::ranges::find(first_keys, key.path) != std::end(first_keys) ||
                        (compares && key.section() == "dpo") ||
                        (config.train.is_layout_free() && key.of_layout_free);
    if (has_influence(key) && !key.of_family &&
        (always || json_of(key, config) != json_of(key, initial))) {
      values[key.path] = json_of(key, config);
    }
  }
  return values;
}

/// Of the text that makes texts of conversations.
std::string template_hash(const Dataset& dataset) {
  const std::string& text = dataset.tokenizer()->opened.chat_template;
  return content_hash(std::as_bytes(std::span(text)));
}

/// Whether it says where a model's file is, and not what is in it.
bool is_place(std::string_view name) {
  constexpr std::string_view section = "model.";
  return name.starts_with(section) && name.substr(section.size()) == exported::program_file_size;
}

/// What the weights and the data are, and how texts become tokens.
void add_contents(Fingerprint& values, const RunSpec& config, const Dataset& data) {
  if (!config.model.from.empty()) {
    values["model.from"] =
        json_text(nlohmann::json("weights " + weights_hash(config.model.from, true)));
  }
  values["data.tokenizer"] =
      json_text(nlohmann::json(data.tokenizer() ? data.tokenizer()->identity() : no_tokenizer));
  if (!data.tokenizer() || data.tokenizer()->path.empty()) {
    values.erase(special_tokens);  // bytes have none
  }
  if (data.sources().size() > 1) {
    nlohmann::json weights = nlohmann::json::array();
    for (const OpenedSource& source : data.sources()) {
      weights.push_back(source.weight);
    }
    values["data.sources"] = json_text(weights);
  }
  if (!config.graph.transforms.empty()) {
    values["graph.transforms"] = json_text(nlohmann::json(config.graph.transforms));
  }
  if (const Exclusions& excluded = data.history().excluded(); !excluded.empty()) {
    values[excluded_rows] = to_json(excluded);
  }
  values["data.content"] =
      json_text(nlohmann::json(fmt::format("{} tokens {}", data.tokens(), data.content_hash())));
}

std::string text_of(const models::ModelValue& value) {
  return json_text(std::visit([](const auto& number) { return nlohmann::json(number); }, value));
}

/// A JSON text as people write it: without the quotes of a text.
std::string shown(const Fingerprint& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? "absent" : found->second;
}

/// Whether what is left out is what was left out before and, from a later step on, more.
bool continues(const Fingerprint& stored, const Fingerprint& own) {
  const auto of = [](const Fingerprint& values) {
    const auto found = values.find(excluded_rows);
    return found == values.end() ? Exclusions() : exclusions_of(found->second, excluded_rows);
  };
  const Exclusions before = of(stored);
  const Exclusions now = of(own);
  if (now.size() < before.size()) {
    return false;
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool last = i + 1 == before.size();
    if (before[i].from != now[i].from || (!last && before[i].rows != now[i].rows) ||
        !std::ranges::includes(
            std::set<std::string>(now[i].rows.begin(), now[i].rows.end()),
            std::set<std::string>(before[i].rows.begin(), before[i].rows.end()))) {
      return false;
    }
  }
  return true;
}

bool is_allowed(const std::string& name, const std::vector<std::string>& allow) {
  return std::ranges::any_of(allow, [&](const std::string& entry) {
    return name == entry || name.starts_with(entry + ".");
  });
}

}  // namespace

Fingerprint fingerprint_of(const RunSpec& config, const hub::ModelShape& shape,
                           const Dataset& data) {
  Fingerprint values = influences(config);
  values["model.vocab"] = json_text(nlohmann::json(shape.vocab));
  for (const auto& [name, value] : shape.values) {
    if (!is_place("model." + name)) {
      values["model." + name] = text_of(value);
    }
  }
  if (shape.family != ModelConfig().family) {
    values["model.family"] = json_text(nlohmann::json(shape.family));
  }
  add_contents(values, config, data);
  values.erase("model.adapter");  // its weights, below, tell what it is
  const bool has_documents = std::ranges::any_of(
      data.sources(), [](const OpenedSource& source) { return source.documents != nullptr; });
  if (has_documents) {
    values["data.chat_template"] = json_text(nlohmann::json(template_hash(data)));
  }
  if (!config.model.adapter.empty()) {
    values["model.adapter"] =
        json_text(nlohmann::json("weights " + weights_hash(config.model.adapter, false)));
  }
  return values;
}

Fingerprint class_fingerprint(const RunSpec& config, const std::string& model,
                              const Dataset& data) {
  Fingerprint values = influences(config);
  const nlohmann::json json = parse_json(model);
  for (const auto& [key, value] : json.items()) {
    values["model." + key] = json_text(value);
  }
  std::erase_if(values, [](const auto& value) { return is_place(value.first); });
  values["data.labels"] = json_text(nlohmann::json(data.labels()));
  add_contents(values, config, data);
  return values;
}

Fingerprint own_fingerprint(const RunSpec& config, bool own_optimizer) {
  Fingerprint values = influences(config);
  std::erase_if(values,
                [&](const auto& value) { return is_of_own_task(value.first, own_optimizer); });
  values[own_task] = "true";
  return values;
}

Fingerprint earlier_values(const hub::ModelShape& shape, const Fingerprint& own) {
  Fingerprint values;
  if (own.contains(special_tokens)) {
    values[special_tokens] = json_text(nlohmann::json("letters"));
  }
  for (const models::ModelKey& key : hub::family_of(shape).keys()) {
    values["model." + key.name] = text_of(key.initial);
  }
  return values;
}

std::string to_json(const Fingerprint& fingerprint) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : fingerprint) {
    json[name] = parse_ordered_json(value);
  }
  return json_text(json);
}

Fingerprint stored_fingerprint(const std::string& meta, const std::string& checkpoint) {
  const ParsedJson parsed = parse_json_object(meta);
  if (!parsed.problem.empty() || !parsed.value.contains("fingerprint") ||
      !parsed.value["fingerprint"].is_object()) {
    fail_input(
        {.thing = checkpoint,
         .wrong = "it has no fingerprint of its run, so it is not a checkpoint of 'tessera train'",
         .advice = "use another one"});
  }
  Fingerprint values;
  for (const auto& [name, value] : parsed.value["fingerprint"].items()) {
    values[name] = json_text(value);
  }
  return values;
}

std::vector<std::string> compare(const Fingerprint& written, const Fingerprint& own,
                                 const Fingerprint& earlier, const RunSpec& config,
                                 const std::string& checkpoint) {
  if (written.contains(own_task) != own.contains(own_task)) {
    const auto text = [](const Fingerprint& values) {
      return values.contains(own_task) ? "a program's own task" : "a language model on texts";
    };
    fail_input({.thing = checkpoint,
                .wrong = fmt::format("it is a checkpoint of {}", text(written)),
                .expected = fmt::format("one of {}", text(own)),
                .advice = "name another checkpoint.folder"});
  }
  Fingerprint stored = written;
  stored.insert(earlier.begin(), earlier.end());
  std::set<std::string> names;
  for (const Fingerprint* values : {&std::as_const(stored), &own}) {
    for (const auto& [name, value] : *values) {
      names.insert(name);
    }
  }
  std::vector<std::string> allowed;
  std::vector<std::string> lines;
  std::vector<std::string> refused;
  for (const std::string& name : names) {
    if (shown(stored, name) == shown(own, name) || is_place(name)) {
      continue;
    }
    if (name == excluded_rows && continues(stored, own)) {
      continue;  // Dataset::newly_excluded is told
    }
    const std::string line =
        fmt::format("{}: {} in the checkpoint, {} in the config", name,
                    tessera::shown(shown(stored, name)), tessera::shown(shown(own, name)));
    if (is_allowed(name, config.checkpoint.allow)) {
      allowed.push_back(line);
    } else {
      lines.push_back("\n  " + line);
      refused.push_back(fmt::format("\"{}\"", name));
    }
  }
  if (!refused.empty()) {
    for (const std::string& name : config.checkpoint.allow) {  // the override replaces the list
      refused.push_back(fmt::format("\"{}\"", name));
    }
    fail_input(fmt::format(
        "{}: it is a checkpoint of another run; what differs:{}\nto start a new run, name another "
        "checkpoint.folder; to continue in spite of it: 'checkpoint.allow=[{}]'",
        checkpoint, fmt::join(lines, ""), fmt::join(refused, ",")));
  }
  return allowed;
}

}  // namespace tessera::runs
