// Against what transformers, NumPy and PyTorch wrote (tests/reference).
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.mesh;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.app.config;
import tessera.runs;
import tessera.hub;

namespace hub = tessera::hub;
namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::input_error;
using trainer_test::read_file;
using Json = nlohmann::json;

namespace {

const std::filesystem::path reference =
    std::string(TESSERA_SOURCE_FOLDER) + "/tests/reference/data";

/// The shape [rows, columns] of a tensor of a safetensors file; columns 0 for one dim.
std::vector<std::int64_t> shape_of(const std::filesystem::path& file, const std::string& name) {
  const std::string bytes = read_file(file);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(bytes.at(static_cast<std::size_t>(i)));
  }
  return Json::parse(bytes.substr(8, length)).at(name).at("shape");
}

/// A value of a reference folder's model.
template <class T>
T value_of(const char* folder, const char* key) {
  return std::get<T>(hub::read_model_folder(reference / "folders" / folder).values.at(key));
}

}  // namespace

TEST_CASE("the sizes read from transformers' folders are those of their weights") {
  for (const char* name : {"plain", "old_config", "first_config", "head_dim", "bf16", "tied"}) {
    INFO(name);
    const std::filesystem::path folder = reference / "folders" / name;
    const hub::ModelShape shape = hub::read_model_folder(folder);
    const auto size = [&](const char* key) { return std::get<std::int64_t>(shape.values.at(key)); };
    const auto weights = folder / "model.safetensors";
    const std::string layer = "model.layers.1.";
    using Shape = std::vector<std::int64_t>;
    CHECK(shape_of(weights, "model.embed_tokens.weight") == Shape{shape.vocab, size("dim")});
    CHECK(shape_of(weights, layer + "self_attn.q_proj.weight") ==
          Shape{size("heads") * size("head_dim"), size("dim")});
    CHECK(shape_of(weights, layer + "self_attn.k_proj.weight") ==
          Shape{size("kv_heads") * size("head_dim"), size("dim")});
    CHECK(shape_of(weights, layer + "mlp.up_proj.weight") == Shape{size("ffn_dim"), size("dim")});
    CHECK(size("layers") == 2);
    CHECK(std::get<double>(shape.values.at("norm_eps")) == 1e-5);
    CHECK(std::get<bool>(shape.values.at("tie_embeddings")) == (std::string(name) == "tied"));
  }
  CHECK(value_of<double>("plain", "rope_theta") == 20000.0);
  CHECK(value_of<double>("old_config", "rope_theta") == 500.0);
  CHECK(value_of<double>("first_config", "rope_theta") == 10000.0);
  CHECK(value_of<std::int64_t>("head_dim", "head_dim") == 6);
  CHECK(value_of<std::int64_t>("sharded_files", "kv_heads") == 1);
}

TEST_CASE("transformers' configs of other models are refused with key and value") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(reference / "folders/refused")) {
    const std::string error = input_error([&] { hub::read_model_folder(entry.path()); });
    std::istringstream why(read_file(entry.path() / "why.txt"));
    std::string key;
    std::string value;
    std::getline(why, key);
    std::getline(why, value);
    INFO(entry.path() << ": " << error);
    CHECK(error.find(key) != std::string::npos);
    CHECK(error.find(value) != std::string::npos);
    ++count;
  }
  CHECK(count == 4);
}

TEST_CASE("NumPy's files give the windows that the stored curves were trained on") {
  for (const char* name : {"untied_all", "two_epochs"}) {
    const Json curve = Json::parse(read_file(reference / "curves" / (std::string(name) + ".json")));
    const auto config_of = [&](const char* key) {
      return parse_config(
          "data.tokens = [\"" + curve.at(key).get<std::string>() +
              "\"]\ndata.order = \"sequential\"\ndata.validation = 0\nmodel.vocab = 101\n",
          reference / "curves/run.toml",
          std::vector<std::string>{"data.seq_len=" + curve.at("data").at("seq_len").dump(),
                                   "train.batch=" + curve.at("data").at("batch").dump()});
    };
    const runs::Dataset i32(config_of("tokens"), 101);
    const runs::Dataset u16(config_of("tokens_u16"), 101);
    i32.check_all();
    CHECK(i32.windows() == curve.at("data").at("windows").get<std::int64_t>());
    for (int step = 0; step < 20; ++step) {
      CHECK(i32.rows(step, 0, 12).inputs == u16.rows(step, 0, 12).inputs);
      CHECK(i32.window_of(step, 5) == (step * 12 + 5) % i32.windows());
    }
  }
}

TEST_CASE("learning rates are those of the stored curve") {
  const Json curve = Json::parse(read_file(reference / "curves/warmup_cosine.json"));
  runs::RunSpec config;
  config.train.steps = 20;
  runs::OptimizerConfig& o = config.optimizer;
  o.lr = curve.at("optimizer").at("lr");
  o.schedule = tessera::optim::ScheduleKind::cosine;
  o.warmup = curve.at("schedule").at("warmup_steps");
  o.min_lr_ratio = curve.at("schedule").at("min_ratio");
  for (int step = 0; step < 20; ++step) {
    CHECK(runs::make_schedule(config).at(step) ==
          Approx(curve.at("lr").at(static_cast<std::size_t>(step)).get<double>()).epsilon(1e-15));
  }
}
