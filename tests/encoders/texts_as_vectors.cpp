// Lines of text as vectors: rows of tokens and `tessera embed` against transformers' tokenizer and
// model.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../trainer/support.hpp"
#include "catch.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.encoders;
import tessera.hub;
import tessera.tensor;
import tessera.tokenize;

using namespace tessera;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

const std::string model = TESSERA_REFERENCE_DATA "/families/bert_base";

nlohmann::json expected() { return nlohmann::json::parse(std::ifstream(model + ".json")); }

std::string lines_of(const Folder& folder, const nlohmann::json& stored) {
  std::string lines;
  for (const std::string text : stored["texts"]) {
    lines += text + "\n";
  }
  return folder.write("texts.txt", lines);
}

double largest_difference(const std::vector<double>& a, const nlohmann::json& rows) {
  double largest = 0;
  std::size_t i = 0;
  for (const auto& row : rows) {
    for (const double value : row) {
      largest = std::max(largest, std::abs(a.at(i++) - value));
    }
  }
  CHECK(i == a.size());
  return largest;
}

}  // namespace

TEST_CASE("texts become the rows of tokens that transformers makes of them") {
  const nlohmann::json stored = expected();
  const std::vector<std::string> texts = stored["texts"];
  const hub::ModelTokenizer tokenizer = hub::folder_tokenizer(model, "{}", model);
  const encoders::TokenRows rows = encoders::token_rows(*tokenizer.opened.tokenizer, texts, 64, 96);
  CHECK(largest_difference(to_doubles(rows.ids), stored["ids"]) == 0);
  CHECK(rows.cut == 1);
  const std::vector<double> mask = to_doubles(rows.mask);
  for (std::size_t row = 0; row < texts.size(); ++row) {
    const auto begin = mask.begin() + static_cast<std::ptrdiff_t>(row) * 64;
    CHECK(std::count(begin, begin + 64, 1.0) == stored["lengths"][row].get<int>());
  }
  const auto made = [&](std::int64_t longest, std::int64_t vocab) {
    return testing::input_error(
        [&] { encoders::token_rows(*tokenizer.opened.tokenizer, texts, longest, vocab); });
  };
  has(made(1, 96), "too short");
  has(made(64, 50), "the model has 50 tokens");
}

TEST_CASE("tessera embed prints and writes the vectors of lines") {
  const nlohmann::json stored = expected();
  const Folder folder;
  const std::string texts = lines_of(folder, stored);
  const std::string command = "embed " + model + " --batch 3 --texts " + texts;
  const Result printed = run_program(command);
  REQUIRE(printed.code == 0);
  has(printed.error, "1 text longer than 64 tokens: cut");
  std::vector<double> values;
  std::size_t begin = 0;
  for (std::size_t end = printed.out.find('\n'); end != std::string::npos;
       begin = end + 1, end = printed.out.find('\n', begin)) {
    const auto row = nlohmann::json::parse(printed.out.substr(begin, end - begin));
    values.insert(values.end(), row.begin(), row.end());
  }
  CHECK(largest_difference(values, stored["mean"]) <= 1e-5);
  const std::string file = folder / "vectors.safetensors";
  const Result written = run_program(command + " --pooling first --to " + file);
  REQUIRE(written.code == 0);
  has(written.out, "4 vectors of 32 numbers");
  const SafetensorsFile vectors(file);
  CHECK(largest_difference(to_doubles(vectors.read("embeddings")), stored["first"]) <= 1e-5);
  const Result short_ones = run_program(command + " --normalize <" + texts);
  REQUIRE(short_ones.code == 0);
  const auto first = nlohmann::json::parse(short_ones.out.substr(0, short_ones.out.find('\n')));
  double squares = 0;
  for (const double value : first) {
    squares += value * value;
  }
  CHECK(std::abs(squares - 1) <= 1e-5);
}

TEST_CASE("tessera embed refuses what it cannot compute") {
  const Folder folder;
  const std::string texts = folder.write("texts.txt", "one\n");
  const auto why = [&](const std::string& name, const std::string& options) {
    const Result result =
        run_program("embed " TESSERA_REFERENCE_DATA "/families/" + name + " " + options);
    CHECK(result.code == 2);
    return result.error;
  };
  has(why("vit", "--texts " + texts), "takes images");
  has(why("gemma", "--texts " + texts), "no family of encoders");
  has(why("bert_base", "--texts " + folder / "none"), "cannot be read");
  has(why("bert_base", "</dev/null"), "there are no texts");
  // A folder without a tokenizer has bytes as tokens, and the model too few.
  has(why("bert", "--texts " + texts), "tokens");
}
