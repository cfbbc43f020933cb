// Vectors of texts, of models of the next token and of encoders.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.text;
import tessera.app.server;

using generation_test::reference;
using generation_test::trained;
using nlohmann::json;
using server_test::ask;
using server_test::error_in;
using server_test::get;
using server_test::post;
using server_test::Response;
using server_test::Served;
using tessera::app::EmbeddingPooling;
using tessera::app::stored_pooling;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;

namespace {

using Vectors = std::vector<std::vector<double>>;

Response embed(const Served& server, const json& body) {
  return ask(server.port, post(body.dump(), "", "/v1/embeddings"));
}

json embedded(const Served& server, const json& body) {
  const Response response = embed(server, body);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

Vectors vectors_in(const json& answer) {
  Vectors all;
  for (std::size_t i = 0; i < answer["data"].size(); ++i) {
    CHECK(answer["data"][i]["index"] == i);
    all.push_back(answer["data"][i]["embedding"].get<std::vector<double>>());
  }
  return all;
}

double length(const std::vector<double>& vector) {
  double squares = 0;
  for (const double value : vector) {
    squares += value * value;
  }
  return std::sqrt(squares);
}

void refused(const json& more, const std::string& part) {
  json body = {{"input", "a"}};
  body.update(more);
  INFO(body.dump());
  has(input_error(
          [&] { static_cast<void>(tessera::app::parse_embedding_request(body.dump(), 100, 16)); }),
      part);
}

}  // namespace

TEST_CASE("a request for embeddings has texts or tokens") {
  const auto request =
      tessera::app::parse_embedding_request(json{{"input", {"a", json::array({1, 2})}},
                                                 {"dimensions", 4},
                                                 {"encoding_format", "base64"},
                                                 {"model", "m"},
                                                 {"user", "u"}}
                                                .dump(),
                                            100, 16);
  CHECK(request.inputs.size() == 2);
  CHECK(request.inputs[1].tokens == std::vector<std::int64_t>{1, 2});
  CHECK(request.dimensions == 4);
  CHECK(request.base64);
  CHECK(request.model == "m");
  refused({{"input", ""}}, "input: has a wrong value");
  refused({{"input", json::array()}}, "input: has a wrong value");
  refused({{"input", std::vector<std::string>(2049, "a")}}, "a list of at most 2048 of either");
  refused({{"input", {100}}}, "ids from 0 to 99");
  refused({{"dimensions", 17}}, "dimensions: has a wrong value");
  refused({{"dimensions", 0}}, "dimensions: has a wrong value");
  refused({{"encoding_format", "hex"}}, "expected float or base64");
  refused({{"truncate", true}}, "truncate: is not supported");
}

TEST_CASE("embeddings are those of transformers") {
  const json stored =
      json::parse(trainer_test::read_file(reference + "generation/embeddings.json"));
  for (const auto& [folder, poolings] : stored["vectors"].items()) {
    for (const auto& [pooling, expected] : poolings.items()) {
      INFO(folder << ", " << pooling);
      std::vector<std::string> words = {"--pooling", pooling};
      if (folder == "gpt2/tied") {
        words.insert(words.end(),
                     {"--ranks", "2", "--tokenizer", reference + "tokenizers/byte_level.json"});
      }
      const Served server(reference + folder, words);
      const json answer = embedded(server, {{"input", stored["ids"]}});
      const Vectors found = vectors_in(answer);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        REQUIRE(found[i].size() == expected[i].size());
        for (std::size_t j = 0; j < found[i].size(); ++j) {
          REQUIRE(found[i][j] == Approx(expected[i][j].get<double>()).margin(2e-6));
        }
        // Alone it is the same to the last bit.
        CHECK(vectors_in(embedded(server, {{"input", stored["ids"][i]}}))[0] == found[i]);
      }
      CHECK(answer["usage"]["prompt_tokens"] == 24);
      CHECK(answer["usage"]["total_tokens"] == 24);
    }
  }
}

TEST_CASE("embeddings are those of texts, as numbers or bytes, whole or cut") {
  const Served server({});
  const tessera::text::TextModel model(trained().model);
  const std::string text = "Question: The colour of grass";
  const auto ids = tessera::text::prompt_tokens(model, text);
  const json answer = embedded(server, {{"input", {text, "Question:"}}});
  CHECK(answer["object"] == "list");
  CHECK(answer["model"] == std::filesystem::path(trained().model).filename().string());
  const Vectors both = vectors_in(answer);
  CHECK(both[0] != both[1]);
  CHECK(length(both[0]) == Approx(1).margin(1e-6));
  CHECK(vectors_in(embedded(server, {{"input", ids}}))[0] == both[0]);
  CHECK(vectors_in(embedded(server, {{"input", text}}))[0] == both[0]);
  // A part of it is scaled again.
  const auto part = vectors_in(embedded(server, {{"input", text}, {"dimensions", 5}}))[0];
  REQUIRE(part.size() == 5);
  CHECK(length(part) == Approx(1).margin(1e-6));
  CHECK(part[1] / part[0] == Approx(both[0][1] / both[0][0]).margin(1e-4));
  const json bytes = embedded(server, {{"input", text}, {"encoding_format", "base64"}});
  const std::string digits = bytes["data"][0]["embedding"];
  CHECK(digits.size() == (both[0].size() * 4 + 2) / 3 * 4);
  const auto value_of = [](char c) {
    const std::string all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return static_cast<std::uint32_t>(all.find(c));
  };
  // The first three numbers: 12 bytes, 16 digits.
  std::string read;
  for (std::size_t at = 0; at < 16; at += 4) {
    const std::uint32_t bits = value_of(digits[at]) << 18 | value_of(digits[at + 1]) << 12 |
                               value_of(digits[at + 2]) << 6 | value_of(digits[at + 3]);
    for (const unsigned shift : {16U, 8U, 0U}) {
      read += static_cast<char>(bits >> shift & 255U);
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    float value = 0;
    std::memcpy(&value, read.data() + 4 * i, sizeof(value));
    CHECK(value == static_cast<float>(both[0][i]));
  }
  const Response longer = embed(server, {{"input", std::vector<int>(3000, 1)}});
  CHECK(longer.status == 400);
  has(error_in(longer), "input: it is longer than the model is meant for");
}

TEST_CASE("an encoder answers requests for embeddings only") {
  const std::string folder = reference + "families/bert_base";
  const Served server(folder, {});
  const Folder written;
  const std::string text = "the cat sat on the mat";
  written.write("lines.txt", text + "\n");
  const std::string line = generation_test::Trained::succeed(
      "embed " + folder + " --normalize --texts " + (written.path() / "lines.txt").string());
  const auto expected = json::parse(line).get<std::vector<double>>();
  const auto found = vectors_in(embedded(server, {{"input", text}}))[0];
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i] == Approx(expected[i]).margin(1e-6));
  }
  CHECK(ask(server.port, get("/health")).status == 200);
  CHECK(json::parse(ask(server.port, get("/v1/models")).body)["data"][0]["id"] == "bert_base");
  CHECK(ask(server.port, post("{}", "", "/v1/completions")).status == 404);
  const Response longer = embed(server, {{"input", std::vector<int>(5000, 1)}});
  CHECK(longer.status == 400);
  has(error_in(longer), "input: it is longer than the model is meant for");
  const auto wrong = trainer_test::run_program("serve " + folder + " --ranks 2 --port 0");
  CHECK(wrong.code == 2);
  has(wrong.error, "an encoder is served as its folder is, on one rank");
}

TEST_CASE("a folder says which hidden states its embeddings are made of") {
  const Folder folder;
  CHECK(!stored_pooling(folder.path().string()));
  std::filesystem::create_directory(folder.path() / "1_Pooling");
  const auto stored = [&](const json& config) {
    folder.write("1_Pooling/config.json", config.dump());
    return stored_pooling(folder.path().string());
  };
  CHECK(stored({{"word_embedding_dimension", 8},
                {"pooling_mode_cls_token", true},
                {"pooling_mode_mean_tokens", false}}) == EmbeddingPooling::first);
  CHECK(stored({{"pooling_mode_mean_tokens", true}}) == EmbeddingPooling::mean);
  CHECK(stored({{"pooling_mode", "lasttoken"}}) == EmbeddingPooling::last);
  for (const json& config :
       {json{{"pooling_mode_max_tokens", true}}, json{{"pooling_mode", "max"}}, json::object(),
        json{{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", true}}}) {
    has(input_error([&] { static_cast<void>(stored(config)); }), "choose one with --pooling");
  }
  has(trainer_test::run_program("serve " + trained().model + " --pooling first --port 0").error,
      "knows no other one");
}
