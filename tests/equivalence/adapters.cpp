// Low-rank updates (LoRA) in the formats of other programs: PEFT's folders, read and written, and
// folders with the updates merged. The style is a plugin of the test's own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "safetensors.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::layout;
using equivalence::read_file;
using equivalence::reference;
using tessera::testing::small_model;

namespace {

const std::string kPlugin = " --plugin " LOW_RANK;

nlohmann::json json_of(const std::string& file) { return nlohmann::json::parse(read_file(file)); }

std::string entry(const std::string& modules, const std::string& options) {
  return "[[parallel]]\nstyle = \"LowRank\"\non = [" + modules + "]\noptions = {" + options + "}\n";
}

/// The entries that make the updates of a folder under tests/reference/data/adapters.
std::string entries(const std::string& name) {
  const std::string attention = "\"**.{q_proj,k_proj,v_proj,o_proj}\"";
  if (name == "lora") {
    return entry(attention, "rank = 4, alpha = 8");
  }
  if (name == "rslora") {
    return entry(attention + ", \"**.{gate_proj,up_proj,down_proj}\"",
                 "rank = 8, alpha = 4, rslora = true");
  }
  if (name == "dora") {
    return entry("\"**.{q_proj,down_proj}\"", "rank = 4, alpha = 8, dora = true");
  }
  return entry("\"**.0.self_attn.q_proj\", \"**.{v_proj,o_proj}\"", "rank = 4, alpha = 8") +
         entry("\"**.1.self_attn.q_proj\"", "rank = 2, alpha = 8") +
         entry("\"**.k_proj\"", "rank = 2, alpha = 6");
}

/// One step that changes no bit of a weight, from the folder `model` and, if it is given, the
/// folder `adapter`.
std::string config(const std::string& model, const std::string& adapter, const std::string& tokens,
                   std::int64_t seq_len, std::int64_t batch) {
  return "[model]\nfrom = \"" + model + "\"\nadapter = \"" + adapter + "\"\n[data]\ntokens = [\"" +
         tokens + "\"]\nseq_len = " + std::to_string(seq_len) +
         "\nvalidation = 0.0\norder = \"sequential\"\n[train]\nsteps = 1\nbatch = " +
         std::to_string(batch) + "\n[optimizer]\nlr = 1e-30\nweight_decay = 0.0\n";
}

std::vector<std::int32_t> some_tokens() {
  std::vector<std::int32_t> ids(12 * 8 + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7 % 64);
  }
  return ids;
}

/// The mean loss over the rows of `expected`'s input_ids.
double loss_of(const nlohmann::json& expected, const std::string& model, const std::string& adapter,
               const std::string& styles, const std::string& where) {
  double sum = 0;
  for (const auto& row : expected["input_ids"]) {
    const Folder folder;
    const auto ids = row.get<std::vector<std::int32_t>>();
    const std::string tokens = equivalence::write_tokens(folder, "ids.npy", ids);
    const auto steps = equivalence::train(
        folder, "run",
        config(model, adapter, tokens, static_cast<std::int64_t>(ids.size()) - 1, 1) + styles,
        layout(where), kPlugin);
    REQUIRE(steps.size() == 1);
    sum += steps[0].loss;
  }
  return sum / static_cast<double>(expected["input_ids"].size());
}

/// A run of one step from a stored adapter; its checkpoint.
std::string trained(const Folder& folder, const std::string& name, const std::string& where) {
  const std::string tokens = equivalence::write_tokens(folder, "ids.npy", some_tokens());
  equivalence::train(
      folder, "run",
      config(reference("folders/plain"), reference("adapters/" + name), tokens, 8, 12) +
          entries(name),
      layout(where), kPlugin);
  return equivalence::checkpoint(folder, "run", 1);
}

std::vector<float> values_of(const StoredTensor& tensor) {
  REQUIRE(tensor.dtype == "F32");
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// W + scale B A by the formulas of the papers, in double, from the files that other programs
/// wrote.
std::map<std::string, std::vector<double>> merged(const std::string& name) {
  const auto base = read_safetensors(reference("folders/plain/model.safetensors"));
  const auto adapter =
      read_safetensors(reference("adapters/" + name + "/adapter_model.safetensors"));
  std::map<std::string, std::vector<double>> all;
  for (const auto& [key, tensor] : base) {
    const std::vector<float> weight = values_of(tensor);
    std::vector<double> values(weight.begin(), weight.end());
    const std::string module = key.substr(0, key.rfind('.'));
    const std::string begin = "base_model.model." + module;
    if (adapter.count(begin + ".lora_A.weight") > 0) {
      const std::vector<float> a = values_of(adapter.at(begin + ".lora_A.weight"));
      const std::vector<float> b = values_of(adapter.at(begin + ".lora_B.weight"));
      const auto out = static_cast<std::size_t>(tensor.shape[0]);
      const auto in = static_cast<std::size_t>(tensor.shape[1]);
      const std::size_t rank = a.size() / in;
      const bool keys = key.find("k_proj") != std::string::npos && name == "patterns";
      const double alpha = keys ? 6 : name == "rslora" ? 4 : 8;
      const auto r = static_cast<double>(rank);
      const double scale = alpha / (name == "rslora" ? std::sqrt(r) : r);
      for (std::size_t i = 0; i < out; ++i) {
        double squares = 0;
        for (std::size_t j = 0; j < in; ++j) {
          for (std::size_t k = 0; k < rank; ++k) {
            values[i * in + j] += scale * double{b[i * rank + k]} * double{a[k * in + j]};
          }
          squares += values[i * in + j] * values[i * in + j];
        }
        if (name == "dora") {
          const double m = values_of(adapter.at(begin + ".lora_magnitude_vector"))[i];
          for (std::size_t j = 0; j < in; ++j) {
            values[i * in + j] *= m / std::sqrt(squares);
          }
        }
      }
    }
    all[key] = std::move(values);
  }
  return all;
}

/// What the program says of a run of one step from this adapter with these styles.
equivalence::Result start(const Folder& folder, const std::string& adapter,
                          const std::string& styles, const std::string& more = "",
                          const std::string& model = reference("folders/plain")) {
  const std::string tokens =
      equivalence::write_tokens(folder, "ids.npy", std::vector<std::int32_t>(20, 1));
  const std::string file = folder.write("run.toml", config(model, adapter, tokens, 4, 2) + styles);
  return equivalence::run("train " + file + " log.metrics= checkpoint.folder= " + more + kPlugin);
}

/// The program refuses it as wrong input, before its ranks start, with all these words.
void refused(const equivalence::Result& result, const std::vector<std::string>& words) {
  INFO(result.error);
  CHECK(result.code == 2);
  CHECK(result.error.find("rank 0") == std::string::npos);
  for (const std::string& word : words) {
    INFO(word);
    CHECK(result.error.find(word) != std::string::npos);
  }
}

/// A copy of the folder "lora" whose adapter_config.json has these values.
std::string changed(const Folder& folder, const std::string& to, const nlohmann::json& changes) {
  std::filesystem::copy(reference("adapters/lora"), folder / to);
  auto json = json_of(folder / (to + "/adapter_config.json"));
  json.update(changes);
  folder.write(to + "/adapter_config.json", json.dump());
  return folder / to;
}

}  // namespace

TEST_CASE("folders that PEFT wrote give its losses", "[adapters]") {
  for (const std::string name : {"lora", "rslora", "dora", "patterns"}) {
    const auto expected = json_of(reference("adapters/" + name + "/expected.json"));
    for (const std::string where : {"one rank", "TP 2"}) {
      if (name == "dora" && where == "TP 2") {
        continue;  // the test's layer with dora has no split
      }
      INFO(name << " on " << where);
      CHECK(difference(loss_of(expected, reference("folders/plain"), reference("adapters/" + name),
                               entries(name), where),
                       expected["loss"]) <= 2e-6);
    }
  }
}

TEST_CASE("an adapter is the same one in every layout", "[adapters]") {
  for (const std::string name : {"rslora", "dora"}) {
    const Folder folder;
    const std::string tokens = equivalence::write_tokens(folder, "ids.npy", some_tokens());
    const auto train = [&](const std::string& where) {
      return equivalence::train(
          folder, "run",
          config(reference("folders/plain"), reference("adapters/" + name), tokens, 8, 12) +
              entries(name),
          layout(where), kPlugin + " train.steps=3 optimizer.lr=1e-3");
    };
    const auto one = train("one rank");
    for (const std::string where : {"FSDP 2", "FSDP 3", "Replicate 2 x FSDP 2", "FSDP 2 x TP 2"}) {
      if (name == "dora" && where == "FSDP 2 x TP 2") {
        continue;
      }
      INFO(name << " on " << where);
      CHECK(equivalence::loss_difference(train(where), one) <= 2e-5);
    }
  }
}

TEST_CASE("an adapter goes out as it came in", "[adapters]") {
  for (const std::string name : {"lora", "rslora", "dora", "patterns"}) {
    INFO(name);
    const Folder folder;
    const std::string saved =
        trained(folder, name, name == "dora" || name == "patterns" ? "FSDP 3" : "FSDP 2 x TP 2");
    const std::string to = folder / "adapter";
    const std::string said =
        equivalence::succeed("checkpoint export " + saved + " --to " + to + " --adapter");
    CHECK(said.find("tensors of the updates of") != std::string::npos);
    const auto written = read_safetensors(to + "/adapter_model.safetensors");
    const auto read =
        read_safetensors(reference("adapters/" + name + "/adapter_model.safetensors"));
    CHECK(written.size() == read.size());
    for (const auto& [key, tensor] : read) {
      INFO(key);
      REQUIRE(written.count(key) == 1);
      CHECK(written.at(key).shape == tensor.shape);
      CHECK((written.at(key).bytes == tensor.bytes));
    }
    const auto words = json_of(to + "/adapter_config.json");
    auto source = json_of(reference("adapters/" + name + "/adapter_config.json"));
    if (name == "patterns") {
      // The same by the names of modules; the first layer's values are those of the others.
      source["r"] = 2;
      source["lora_alpha"] = 6;
      source["rank_pattern"] = nlohmann::json::object();
      source["alpha_pattern"] = nlohmann::json::object();
      for (const std::string layer : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
        for (const std::string kind : {"q_proj", "v_proj", "o_proj"}) {
          source["alpha_pattern"][layer + kind] = 8;
          source["rank_pattern"][layer + kind] = 4;
        }
      }
      source["rank_pattern"].erase("model.layers.1.self_attn.q_proj");
    }
    for (const char* key :
         {"peft_type", "task_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_dora",
          "use_rslora", "bias", "fan_in_fan_out", "modules_to_save", "target_modules"}) {
      INFO(key);
      CHECK(words.at(key) == source.at(key));
    }
    CHECK(words.at("base_model_name_or_path") == reference("folders/plain"));
    // And it is a folder to start from.
    const auto expected = json_of(reference("adapters/" + name + "/expected.json"));
    CHECK(difference(loss_of(expected, reference("folders/plain"), to, entries(name), "one rank"),
                     expected["loss"]) <= 2e-6);
  }
}

TEST_CASE("targets that are not all layers of a kind go out by name", "[adapters]") {
  const Folder folder;
  const std::string tokens = equivalence::write_tokens(folder, "ids.npy", some_tokens());
  equivalence::train(folder, "run",
                     config(reference("folders/plain"), "", tokens, 8, 12) +
                         entry("\"**.1.self_attn.q_proj\"", "rank = 2"),
                     layout("one rank"), kPlugin);
  const std::string saved = equivalence::checkpoint(folder, "run", 1);
  equivalence::succeed("checkpoint export " + saved + " --adapter --dtype bfloat16 --to " +
                       (folder / "adapter"));
  CHECK(json_of(folder / "adapter/adapter_config.json").at("target_modules") ==
        nlohmann::json::array({"model.layers.1.self_attn.q_proj"}));
  for (const auto& [name, tensor] :
       read_safetensors(folder / "adapter/adapter_model.safetensors")) {
    CHECK(tensor.dtype == "BF16");
  }
}

TEST_CASE("an export has the updates in the weights", "[adapters]") {
  for (const std::string name : {"lora", "rslora", "dora", "patterns"}) {
    INFO(name);
    const Folder folder;
    const std::string saved =
        trained(folder, name, name == "dora" || name == "patterns" ? "FSDP 2" : "TP 2");
    const std::string said = equivalence::succeed("checkpoint export " + saved +
                                                  " --no-tokenizer --to " + (folder / "whole"));
    CHECK(said.find("updates of ") != std::string::npos);
    CHECK(said.find("are merged") != std::string::npos);
    const auto written = read_safetensors(folder / "whole/model.safetensors");
    const auto expected = merged(name);
    CHECK(written.size() == expected.size());
    for (const auto& [key, values] : expected) {
      INFO(key);
      REQUIRE(written.count(key) == 1);
      const std::vector<float> got = values_of(written.at(key));
      REQUIRE(got.size() == values.size());
      double largest = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::fabs(got[i] - values[i]));
      }
      CHECK(largest <= 2e-6);
    }
    const auto losses = json_of(reference("adapters/" + name + "/expected.json"));
    CHECK(difference(loss_of(losses, folder / "whole", "", "", "one rank"), losses["loss"]) <=
          5e-6);
  }
}

TEST_CASE("a folder of weights starts updates that change nothing yet", "[adapters]") {
  const auto expected = json_of(reference("folders/plain/expected.json"));
  for (const char* where : {"one rank", "TP 2"}) {
    INFO(where);
    CHECK(difference(loss_of(expected, reference("folders/plain"), "", entries("lora"), where),
                     expected["loss_f64"]) <= 2e-6);
  }
  const Folder folder;
  const std::string tokens = equivalence::write_tokens(folder, "ids.npy", some_tokens());
  equivalence::train(folder, "run",
                     config(reference("folders/plain"), "", tokens, 8, 12) + entries("lora"),
                     layout("one rank"), kPlugin);
  equivalence::succeed("checkpoint export " + equivalence::checkpoint(folder, "run", 1) +
                       " --adapter --to " + (folder / "adapter"));
  for (const auto& [name, tensor] :
       read_safetensors(folder / "adapter/adapter_model.safetensors")) {
    const std::vector<float> values = values_of(tensor);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    INFO(name);
    if (name.find("lora_A") != std::string::npos) {
      CHECK(*low < -0.01F);
      CHECK(*high > 0.01F);
    } else {
      CHECK(std::fabs(*low) < 1e-20F);
    }
  }
}

TEST_CASE("a run with updates continues as if it had not stopped", "[adapters]") {
  const Folder folder;
  const std::string tokens = equivalence::write_tokens(folder, "ids.npy", some_tokens());
  const std::string text =
      config(reference("folders/plain"), reference("adapters/lora"), tokens, 8, 6) +
      entries("lora");
  const std::string more = kPlugin + " optimizer.lr=1e-3 train.steps=";
  for (const char* where : {"one rank", "FSDP 2"}) {
    INFO(where);
    const auto whole = equivalence::train(folder, "whole", text, layout(where), more + "4");
    equivalence::train(folder, "part", text, layout(where), more + "2");
    const std::string saved = equivalence::checkpoint(folder, "part", 2);
    std::filesystem::rename(saved, folder / "step-00000002");
    const auto rest =
        equivalence::train(folder, "rest", text, layout(where),
                           more + "4 checkpoint.resume=" + (folder / "step-00000002"));
    REQUIRE(whole.size() == 4);
    CHECK(equivalence::same_bits(rest, {whole.begin() + 2, whole.end()}));
    // With another scale it would be another model.
    const std::string file = folder.write(
        "other.toml", config(reference("folders/plain"), reference("adapters/lora"), tokens, 8, 6) +
                          entry("\"**.{q_proj,k_proj,v_proj,o_proj}\"", "rank = 4, alpha = 4"));
    refused(equivalence::run("train " + file + " model.adapter= log.metrics= checkpoint.folder= " +
                             "checkpoint.allow=[model] checkpoint.resume=" +
                             (folder / "step-00000002") + more + "4"),
            {"other low-rank updates", "8 layers differ",
             "self_attn.q_proj: rank 4, alpha 8 in the checkpoint, rank 4, alpha 4 in the config"});
    std::filesystem::remove_all(folder / "step-00000002");
  }
}

TEST_CASE("generated text is that of the merged weights", "[adapters]") {
  const Folder folder;
  const std::string text = folder.write("a.txt", [] {
    std::string words;
    for (int i = 0; i < 60; ++i) {
      words += "the cat sat on the mat. ";
    }
    return words;
  }());
  const std::string data = "[data]\ntext = [\"" + text +
                           "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 20\nbatch = 4\n"
                           "[optimizer]\nlr = 3e-2\nweight_decay = 0.0\n";
  equivalence::train(folder, "run",
                     small_model({.dim = 16, .layers = 1, .heads = 2}) + data +
                         entry("\"**.{q_proj,v_proj,down_proj}\", \"lm_head\"", "rank = 4"),
                     layout("one rank"),
                     // The updates must do nearly all of the work.
                     kPlugin + " 'train.freeze=[model.embed_tokens.weight,\"model.layers.**\"]'");
  const std::string saved = equivalence::checkpoint(folder, "run", 20);
  const std::string whole = equivalence::export_checkpoint(folder, saved, "whole");
  equivalence::train(folder, "merged", "[model]\nfrom = \"" + whole + "\"\n" + data,
                     layout("one rank"), "train.steps=1 optimizer.lr=1e-30");
  const std::string how = " --prompt 'the c' --tokens 30 --temperature 0";
  CHECK(equivalence::succeed("generate " + saved + how) ==
        equivalence::succeed("generate " + equivalence::checkpoint(folder, "merged", 1) + how));
}

TEST_CASE("an adapter that does not fit is refused with all differences", "[adapters]") {
  const Folder folder;
  const std::string lora = reference("adapters/lora");
  const std::string four = "\"**.{q_proj,k_proj,v_proj,o_proj}\"";
  for (const char* more : {"", "--dry-run"}) {
    refused(start(folder, lora,
                  entry("\"**.{q_proj,k_proj,v_proj,up_proj}\"",
                        "rank = 2, alpha = 3, rslora = true, dora = true"),
                  more),
            {"adapters/lora", "rank is 4 in the folder and 2 in the config", "alpha is 8",
             "dora is false in the folder and true", "rslora is false in the folder and true",
             "in the config only: model.layers.0.mlp.up_proj",
             "in the folder only: model.layers.0.self_attn.o_proj", "and 3 more"});
  }
  refused(start(folder, lora, ""), {"in the folder only", "and 5 more"});
  refused(
      start(folder, lora, entry(four, "rank = 4, alpha = 8"), "", reference("folders/head_dim")),
      {"lora_B has shape [32, 4] in the folder and [24, 4] in the model"});
}

TEST_CASE("the first pattern of the file decides, as in PEFT, and the error says which values",
          "[adapters]") {
  const Folder folder;
  changed(folder, "order", nlohmann::json::object());
  auto json = nlohmann::ordered_json::parse(read_file(folder / "order/adapter_config.json"));
  json["alpha_pattern"] = {{"layers.0.self_attn.q_proj", 16}, {"q_proj", 400}};
  folder.write("order/adapter_config.json", json.dump());
  refused(start(folder, folder / "order", entries("lora")),
          {"alpha is 16 in the folder and 8 in the config: model.layers.0.self_attn.q_proj",
           "alpha is 400 in the folder and 8 in the config: model.layers.1.self_attn.q_proj"});
  // With what the error says, the run starts.
  const std::string right = entry("\"**.0.self_attn.q_proj\"", "rank = 4, alpha = 16") +
                            entry("\"**.1.self_attn.q_proj\"", "rank = 4, alpha = 400") +
                            entry("\"**.{k_proj,v_proj,o_proj}\"", "rank = 4, alpha = 8");
  CHECK(start(folder, folder / "order", right).code == 0);

  changed(folder, "left", {{"target_modules", {"q_proj", "k_proj", "v_proj"}}});
  refused(start(folder, folder / "left", entries("lora")),
          {"layers whose tensors PEFT ignores", "model.layers.0.self_attn.o_proj"});
}

TEST_CASE("a copy of a weight in an adapter must be equal to the weight", "[adapters]") {
  // As PEFT writes it for a head that has an update: save_embedding_layers.
  const Folder folder;
  const auto base = read_safetensors(reference("folders/plain/model.safetensors"));
  auto tensors = read_safetensors(reference("adapters/lora/adapter_model.safetensors"));
  const auto with = [&](const std::string& name, const StoredTensor& tensor) {
    changed(folder, "copy", nlohmann::json::object());
    auto all = tensors;
    all[name] = tensor;
    write_safetensors(folder / "copy/adapter_model.safetensors", all);
    const auto result = start(folder, folder / "copy", entries("lora"));
    std::filesystem::remove_all(folder / "copy");
    return result;
  };
  const StoredTensor& head = base.at("lm_head.weight");
  const std::string name = "base_model.model.lm_head.base_layer.weight";
  CHECK(with(name, head).code == 0);
  CHECK(with("base_model.model.lm_head.weight", head).code == 0);
  StoredTensor other = head;
  other.bytes.back() = other.bytes.back() ^ std::byte{1};
  refused(with(name, other), {"weights of the model that PEFT would replace", name});
  refused(with(name, base.at("model.norm.weight")),
          {"weights of the model that PEFT would replace"});
  refused(with("base_model.model.lm_head.other.weight", head),
          {"tensors of the folder that no update has: base_model.model.lm_head.other.weight"});
  tensors.clear();
  tensors[name] = head;
  refused(with(name, head), {"with an adapter in the config only"});
}

TEST_CASE("an adapter that says what nothing computes, or is damaged, is refused", "[adapters]") {
  const Folder folder;
  int number = 0;
  const auto with = [&](const nlohmann::json& changes) {
    return start(folder, changed(folder, std::to_string(number++), changes), entries("lora"));
  };
  CHECK(with(nlohmann::json::object()).code == 0);
  refused(with({{"peft_type", "LOHA"}}), {"adapter_config.json", "LOHA"});
  refused(with({{"bias", "all"}, {"modules_to_save", {"lm_head"}}, {"fan_in_fan_out", true}}),
          {"bias \"all\"", "modules_to_save [\"lm_head\"]", "fan_in_fan_out true"});
  refused(with({{"init_lora_weights", "pissa"}}), {"init_lora_weights \"pissa\""});
  refused(with({{"rank_pattern", {{".*q_proj", 2}}}}), {"'.*q_proj' is a regular expression"});
  refused(with({{"r", -1}, {"lora_alpha", "8"}, {"use_dora", 1}}),
          {"r: expected", "lora_alpha: expected", "use_dora: expected"});

  refused(start(folder, folder / "nowhere", entries("lora")), {"nowhere", "no such folder"});
  const auto without = [&](const char* file) {
    const std::string to = changed(folder, std::to_string(number++), nlohmann::json::object());
    std::filesystem::remove(to + "/" + file);
    return start(folder, to, entries("lora"));
  };
  refused(without("adapter_config.json"), {"adapter_config.json"});
  refused(without("adapter_model.safetensors"), {"adapter_model.safetensors"});

  const std::string cut = changed(folder, "cut", nlohmann::json::object());
  const std::string bytes = read_file(cut + "/adapter_model.safetensors");
  folder.write("cut/adapter_model.safetensors", bytes.substr(0, bytes.size() - 4));
  refused(start(folder, cut, entries("lora")), {"adapter_model.safetensors"});
  folder.write("cut/adapter_config.json", "{\"r\": ");
  refused(start(folder, cut, entries("lora")), {"adapter_config.json"});

  std::string with_nan = bytes;
  const float nan = std::nanf("");
  std::memcpy(with_nan.data() + with_nan.size() - sizeof nan, &nan, sizeof nan);
  changed(folder, "nan", nlohmann::json::object());
  folder.write("nan/adapter_model.safetensors", with_nan);
  refused(start(folder, folder / "nan", entries("lora"), "--dry-run"), {"nan", "lora_B"});
  CHECK(start(folder, folder / "nan", entries("lora")).code == 2);  // by the rank that reads it

  // A checkpoint without updates has nothing to write.
  const std::string tokens = equivalence::write_tokens(folder, "more.npy", some_tokens());
  equivalence::train(folder, "run", config(reference("folders/plain"), "", tokens, 8, 12),
                     layout("one rank"));
  refused(equivalence::run("checkpoint export " + equivalence::checkpoint(folder, "run", 1) +
                           " --adapter --to " + (folder / "adapter")),
          {"no low-rank updates", "--adapter"});
  CHECK_FALSE(std::filesystem::exists(folder / "adapter"));
}
