// A folder's model with rows for tokens that only the run's tokenizer has.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;

using tessera::testing::small_model;
using namespace tessera;
using nlohmann::json;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;
namespace fs = std::filesystem;

namespace {

const std::string reference = TESSERA_SOURCE_FOLDER "/tests/reference/data/";
constexpr std::size_t stored = 64;  // tokens of the folders
constexpr std::size_t dim = 32;

/// A run that changes no weight by as much as f32 shows.
std::string config(const std::string& from, const std::string& mesh) {
  return "[model]\nfrom = \"" + from +
         "\"\nnew_tokens = \"mean\"\n[data]\ntext = [\"text.txt\"]\ntokenizer = "
         "\"tokenizer\"\nseq_len = 16\nvalidation = 0\n[train]\nsteps = 1\nbatch = 6\n"
         "[optimizer]\nlr = 1e-30\n[log]\nmetrics = \"\"\n" +
         mesh;
}

const std::string fsdp =
    "[mesh]\naxes = [\"shard\"]\nshape = [3]\n[[parallel]]\nstyle = \"FSDP\"\naxis = "
    "\"shard\"\non = [\"model.layers.*\", \".\"]\n";
const std::string split_vocabulary =
    "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n[[parallel]]\nstyle = \"RowwiseParallel\"\naxis = "
    "\"tensor\"\non = [\"model.embed_tokens\"]\noptions = { input = \"Replicate\" }\n[[parallel]]\n"
    "style = \"ColwiseParallel\"\naxis = \"tensor\"\non = [\"lm_head\"]\noptions = { output = "
    "\"Replicate\" }\n";
const std::string split_columns =
    "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n[[parallel]]\nstyle = \"ColwiseParallel\"\naxis = "
    "\"tensor\"\non = [\"model.embed_tokens\"]\noptions = { output = \"Replicate\" "
    "}\n[[parallel]]\n"
    "style = \"RowwiseParallel\"\naxis = \"tensor\"\non = [\"lm_head\"]\noptions = { output = "
    "\"Replicate\" }\n";

void write_files(const Folder& folder) {
  folder.write("tokenizer/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "Some words and the number " + std::to_string(i) + ".\n";
  }
  folder.write("text.txt", text);
}

Result train(const Folder& folder, const std::string& text, const std::string& more = "") {
  return run_program("train " + folder.write("run.toml", text) + " " + more);
}

void check_rows(const std::vector<double>& rows, const std::vector<double>& before) {
  REQUIRE(before.size() == stored * dim);
  REQUIRE(rows.size() > before.size());
  CHECK(std::vector<double>(rows.begin(), rows.begin() + stored * dim) == before);
  double largest = 0;
  for (std::size_t column = 0; column < dim; ++column) {
    double mean = 0;
    for (std::size_t row = 0; row < stored; ++row) {
      mean += before[row * dim + column] / stored;
    }
    for (std::size_t row = stored; row < rows.size() / dim; ++row) {
      largest = std::max(largest, std::abs(rows[row * dim + column] - mean));
    }
  }
  CHECK(largest < 1e-7);
}

}  // namespace

TEST_CASE("new tokens get the mean of the folder's rows, tied or not, in every layout") {
  for (const std::string name : {"plain", "tied"}) {
    const SafetensorsFile before(reference + "folders/" + name + "/model.safetensors");
    for (const std::string& mesh : {std::string(), fsdp, split_columns, split_vocabulary}) {
      INFO(name << "\n" << mesh);
      const Folder folder;
      write_files(folder);
      const Result run = train(folder, config(reference + "folders/" + name, mesh));
      INFO(run.error);
      REQUIRE(run.code == 0);
      has(run.out, "new tokens");
      has(run.out, "from 64 on; each row is the mean of the folder's");
      const std::string to = (folder.path() / "export").string();
      REQUIRE(run_program("checkpoint export " +
                          (folder.path() / "checkpoints/step-00000001").string() + " --to " + to)
                  .code == 0);
      const SafetensorsFile after(to + "/model.safetensors");
      for (const char* tensor : {"model.embed_tokens.weight", "lm_head.weight"}) {
        REQUIRE(before.contains(tensor) == after.contains(tensor));
        if (before.contains(tensor)) {
          check_rows(to_doubles(after.read(tensor)), to_doubles(before.read(tensor)));
        }
      }
      CHECK(json::parse(read_file(to + "/config.json")).at("vocab_size") ==
            after.info("model.embed_tokens.weight").shape[0]);
    }
  }
}

TEST_CASE("updates of a model with new tokens are not exported without them") {
  const Folder folder;
  write_files(folder);
  const Result run =
      train(folder, config(reference + "folders/plain",
                           "[[parallel]]\nstyle = \"LoRA\"\non = [\"**.q_proj\"]\n"));
  INFO(run.error);
  REQUIRE(run.code == 0);
  const std::string step = (folder.path() / "checkpoints/step-00000001").string();
  const std::string to = (folder.path() / "export").string();
  const Result adapter = run_program("checkpoint export " + step + " --adapter --to " + to);
  CHECK(adapter.code == 2);
  has(adapter.error, "which the adapter is for, has 64");
  CHECK(run_program("checkpoint export " + step + " --to " + to).code == 0);
}

TEST_CASE("a tokenizer with more tokens than the folder's own must extend it") {
  const Folder folder;
  write_files(folder);
  folder.write("own/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder.write("start.toml",
               small_model({.dim = 16, .layers = 1, .heads = 2}) +
                   "[data]\ntext = [\"text.txt\"]\ntokenizer = \"own\"\nseq_len = 16\n"
                   "validation = 0\n[train]\nsteps = 1\nbatch = 4\n[log]\nmetrics = \"\"\n"
                   "[checkpoint]\nfolder = \"start\"\n");
  REQUIRE(run_program("train " + (folder.path() / "start.toml").string()).code == 0);
  const std::string from = (folder.path() / "hf").string();
  REQUIRE(run_program("checkpoint export " + (folder.path() / "start/step-00000001").string() +
                      " --to " + from)
              .code == 0);
  json tokenizer = json::parse(read_file(folder.path() / "own/tokenizer.json"));
  const std::int64_t next = json::parse(read_file(from + "/config.json")).at("vocab_size");
  tokenizer["added_tokens"].push_back({{"id", next},
                                       {"content", "<|new|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  folder.write("tokenizer/tokenizer.json", tokenizer.dump());
  const Result extended = train(folder, config(from, ""));
  INFO(extended.error);
  CHECK(extended.code == 0);
  has(extended.out, "1, from " + std::to_string(next) + " on");
  has(train(folder, config(from, ""), "model.new_tokens=error").error,
      "model.new_tokens=mean adds tokens to the model");
  json& last = tokenizer["added_tokens"][tokenizer["added_tokens"].size() - 2];
  const std::string content = last["content"];
  last["content"] = "<other>";
  folder.write("tokenizer/tokenizer.json", tokenizer.dump());
  const Result other = train(folder, config(from, ""));
  CHECK(other.code == 2);
  has(other.error, "does not extend that of " + from);
  has(other.error, "(expected " + content + ", got <other>)");
}

TEST_CASE("only a folder's model gets new tokens") {
  const Folder folder;
  write_files(folder);
  const Result result =
      train(folder, "[model]\nnew_tokens = \"mean\"\n[data]\ntext = [\"text.txt\"]\n");
  CHECK(result.code == 2);
  has(result.error, "model.new_tokens: only the model of a folder gets new tokens");
}
