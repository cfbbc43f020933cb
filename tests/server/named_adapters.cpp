// Adapters that requests choose by their names, loaded and dropped while the server runs.
#include <sys/stat.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "safetensors.hpp"
#include "served.hpp"
#include "support.hpp"
#include "trained.hpp"

namespace fs = std::filesystem;

using generation_test::Trained;
using generation_test::trained;
using nlohmann::json;
using server_test::ask;
using server_test::error_in;
using server_test::get;
using server_test::post;
using server_test::Response;
using server_test::Served;
using trainer_test::Folder;
using trainer_test::has;

namespace {

constexpr std::size_t dim = 48;

StoredTensor values(std::vector<std::int64_t> shape, double scale) {
  std::vector<float> all(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    all[i] = static_cast<float>(scale * std::sin(static_cast<double>(i) + scale));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
  return StoredTensor{"F32", std::move(shape), {bytes, bytes + all.size() * sizeof(float)}};
}

/// An adapter of the trained model: a split by rows and one by columns of two layers.
void write_adapter(const Folder& folder, const std::string& name, double scale,
                   const std::string& layer = "o_proj") {
  fs::create_directory(folder.path() / name);
  folder.write(name + "/adapter_config.json", json{{"peft_type", "LORA"},
                                                   {"r", 1},
                                                   {"lora_alpha", 1},
                                                   {"base_model_name_or_path", "another/model"},
                                                   {"target_modules", {layer, "q_proj"}}}
                                                  .dump());
  const std::string root = "base_model.model.model.layers.0.self_attn.";
  write_safetensors((folder.path() / name / "adapter_model.safetensors").string(),
                    {{root + layer + ".lora_A.weight", values({1, dim}, 1)},
                     {root + layer + ".lora_B.weight", values({dim, 1}, scale)},
                     {root + "q_proj.lora_A.weight", values({1, dim}, 0.5)},
                     {root + "q_proj.lora_B.weight", values({dim, 1}, scale)}});
}

json completed(const Served& server, const std::string& model, const std::string& prompt,
               std::int64_t tokens = 6) {
  const json body = {{"model", model}, {"prompt", prompt}, {"max_tokens", tokens}, {"logprobs", 2}};
  const Response response = ask(server.port, post(body.dump(), "", "/v1/completions"));
  INFO(response.body);
  REQUIRE(response.status == 200);
  json answer = json::parse(response.body);
  CHECK(answer["model"] == model);
  return answer["choices"][0];
}

Response change(const Served& server, const char* what, const json& body) {
  return ask(server.port, post(body.dump(), "", std::string("/v1/") + what + "_lora_adapter"));
}

std::string loaded(const Served& server, const std::string& name, const std::string& path) {
  const Response response = change(server, "load", {{"lora_name", name}, {"lora_path", path}});
  return response.status == 200 ? "" : error_in(response);
}

std::vector<std::string> names(const Served& server) {
  std::vector<std::string> all;
  const json models = json::parse(ask(server.port, get("/v1/models")).body);
  for (const json& model : models["data"]) {
    all.push_back(model["id"]);
  }
  return all;
}

std::string base_name() { return fs::path(trained().model).filename().string(); }

}  // namespace

TEST_CASE("requests choose the model or one of its adapters, also on two ranks") {
  const Folder folder;
  write_adapter(folder, "a", 2);
  write_adapter(folder, "b", -3);
  const std::string prompt = "Question: The colour of";
  const auto merged = [&](const std::string& adapter) {
    return Trained::succeed("generate " + trained().model + " --prompt \"" + prompt +
                            "\" --temperature 0 --tokens 6" + adapter);
  };
  std::map<std::string, std::string> expected = {
      {base_name(), merged("")},
      {"a", merged(" --adapter " + (folder.path() / "a").string())},
      {"the b", merged(" --adapter " + (folder.path() / "b").string())}};
  REQUIRE(expected["a"] != expected["the b"]);
  REQUIRE(expected["a"] != expected[base_name()]);
  const std::vector<std::string> both = {"--adapter", "a=" + (folder.path() / "a").string(),
                                         "--adapter", "the b=" + (folder.path() / "b").string()};
  for (const std::vector<std::string>& ranks :
       std::vector<std::vector<std::string>>{{}, {"--ranks", "2"}}) {
    INFO("ranks " << ranks.size());
    std::vector<std::string> words = both;
    words.insert(words.end(), ranks.begin(), ranks.end());
    const Served server(words);
    CHECK(names(server) == std::vector<std::string>{base_name(), "a", "the b"});
    const Response one = ask(server.port, get("/v1/models/the%20b"));
    CHECK(one.status == 200);
    CHECK(json::parse(one.body)["parent"] == base_name());
    std::map<std::string, json> alone;
    for (const auto& [model, text] : expected) {
      alone[model] = completed(server, model, prompt);
      has(text, prompt + alone[model]["text"].get<std::string>());
    }
    // Among others they are the same to the last bit.
    std::vector<std::thread> clients;
    std::vector<json> answers(9);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      clients.emplace_back([&, i] {
        const std::string model = i % 3 == 0 ? base_name() : i % 3 == 1 ? "a" : "the b";
        const json body = {
            {"model", model}, {"prompt", prompt}, {"max_tokens", 6}, {"logprobs", 2}};
        const Response response = ask(server.port, post(body.dump(), "", "/v1/completions"));
        answers[i] = json::parse(response.body);
      });
    }
    for (std::thread& client : clients) {
      client.join();
    }
    for (const json& answer : answers) {
      CHECK(answer["choices"][0] == alone[answer["model"].get<std::string>()]);
    }
    const Response unknown =
        ask(server.port, post(json{{"model", "c"}, {"prompt", "x"}}.dump(), "", "/v1/completions"));
    CHECK(unknown.status == 404);
    has(error_in(unknown), "there is no model 'c'");
    const Response refused = change(server, "load", {{"lora_name", "c"}, {"lora_path", "a"}});
    CHECK(refused.status == 403);
    has(error_in(refused), "--adapter-folder");
    CHECK(change(server, "unload", {{"lora_name", "a"}}).status == 403);
  }
}

TEST_CASE("adapters are loaded and dropped while the server runs") {
  const Folder folder;
  write_adapter(folder, "a", 5);
  write_adapter(folder, "b", -4);
  const Served server(
      {"--adapter-folder", folder.path().string(), "--adapters", "2", "--ranks", "2"});
  const std::string prompt = "Question: The colour of";
  CHECK(names(server) == std::vector<std::string>{base_name()});
  CHECK(loaded(server, "one", "a").empty());
  CHECK(loaded(server, "two", (folder.path() / "b").string()).empty());
  CHECK(names(server) == std::vector<std::string>{base_name(), "one", "two"});
  const json one = completed(server, "one", prompt);
  const json two = completed(server, "two", prompt);
  CHECK(one != two);
  has(loaded(server, "three", "a"), "adapters: there are too many (expected at most 2");
  has(loaded(server, "one", "b"), "there is a model 'one' already");
  has(loaded(server, base_name(), "b"), "already");
  // A text that runs with an adapter that is dropped ends with it.
  json body = {{"model", "one"},
               {"prompt", prompt},
               {"max_tokens", 600},
               {"stream", true},
               {"ignore_eos", true}};
  server_test::Wire wire(server.port);
  REQUIRE(wire.send(post(body.dump(), "", "/v1/completions")));
  REQUIRE(wire.readable(server_test::patience));
  CHECK(change(server, "unload", {{"lora_name", "one"}}).status == 200);
  CHECK(names(server) == std::vector<std::string>{base_name(), "two"});
  CHECK(change(server, "unload", {{"lora_name", "one"}}).status == 404);
  const Response stream = wire.read();
  CHECK(stream.status == 200);
  has(stream.body, "\"model\":\"one\"");
  has(stream.body, "\"finish_reason\":\"length\"");
  // Its place and its name are free; what was kept with it is not another one's.
  for (int tries = 0; tries < 100 && !loaded(server, "one", "b").empty(); ++tries) {
    std::this_thread::sleep_for(server_test::Milliseconds(20));
  }
  CHECK(completed(server, "one", prompt) == two);
  CHECK(completed(server, "two", prompt) == two);
}

TEST_CASE("nothing but adapters of the folder can be loaded") {
  const Folder outside;
  write_adapter(outside, "hidden", 5);
  const Folder folder;
  write_adapter(folder, "a", 5);
  write_adapter(folder, "misfit", 5, "no_proj");
  fs::create_directory_symlink(outside.path() / "hidden", folder.path() / "link");
  fs::create_directory(folder.path() / "files");
  for (const char* const name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::create_symlink(outside.path() / "hidden" / name, folder.path() / "files" / name);
  }
  fs::create_directory(folder.path() / "pipe");
  folder.write("pipe/adapter_config.json", "{}");
  REQUIRE(mkfifo((folder.path() / "pipe" / "adapter_model.safetensors").c_str(), 0600) == 0);
  fs::create_directory(folder.path() / "damaged");
  fs::copy(folder.path() / "a" / "adapter_config.json", folder.path() / "damaged");
  folder.write("damaged/adapter_model.safetensors",
               std::string("\xff\xff\xff\xff\xff\xff\xff\x7f"));
  const Served server({"--adapter-folder", folder.path().string()});
  const std::string elsewhere =
      "lora_path: there is no such folder of an adapter below that of --adapter-folder";
  const std::string here = folder.path().string();
  for (const std::string& path :
       {std::string("../") + outside.path().filename().string() + "/hidden",
        (outside.path() / "hidden").string(), std::string("link"), std::string("files"),
        std::string("pipe"), std::string("."), std::string("a/.."), std::string("a/../.."),
        here + "/a/../../" + outside.path().filename().string() + "/hidden", std::string("none"),
        std::string("/etc"), std::string("/"), std::string("a/adapter_config.json"),
        std::string("a\n"), std::string("a\0/../../x", 10), std::string(5000, 'a'), here}) {
    INFO(path.substr(0, 200));
    CHECK(loaded(server, "x", path).substr(0, elsewhere.size()) == elsewhere);
  }
  has(loaded(server, "x", "misfit"), "layers that the model does not have");
  has(loaded(server, "x", "misfit"), "it was made for 'another/model'");
  CHECK(!loaded(server, "x", "damaged").empty());
  for (const std::string& name : {std::string(), std::string(200, 'n'), std::string("a\nb")}) {
    has(loaded(server, name, "a"), "lora_name: is not a name of an adapter");
  }
  for (const json& body : {json{{"lora_name", "x"}}, json{{"lora_name", 5}, {"lora_path", "a"}},
                           json{{"lora_name", "x"}, {"lora_path", {"a"}}},
                           json{{"lora_name", "x"}, {"lora_path", "a"}, {"load_inplace", true}},
                           json{{"lora_name", "x"}, {"lora_path", "a"}, {"further", 1}}}) {
    CHECK(change(server, "load", body).status == 400);
  }
  CHECK(ask(server.port, get("/v1/load_lora_adapter")).status == 405);
  // A page of another machine cannot load one either.
  const std::string body = json{{"lora_name", "x"}, {"lora_path", "a"}}.dump();
  CHECK(ask(server.port, post(body, "Origin: https://example.com\r\n", "/v1/load_lora_adapter"))
            .status == 403);
  CHECK(names(server) == std::vector<std::string>{base_name()});
  CHECK(loaded(server, "x", here + "/a").empty());
  CHECK(completed(server, "x", "Question:")["index"] == 0);
}
