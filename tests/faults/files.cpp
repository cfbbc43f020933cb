// Wrong files behind the command line: weights, plugins, checkpoints. Each is one clear error
// before any rank starts.
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> one_rank = {"mesh.axes=[]", "mesh.shape=[]", "parallel=[]"};

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Trains two steps on one rank into `folder`/checkpoints and returns the checkpoint.
std::string trained(const RunFolder& folder) {
  const Result result = run(folder, with({"train", "run.toml", "train.steps=2"}, one_rank));
  INFO(result.error);
  REQUIRE(result.code == 0);
  return folder / "checkpoints/step-00000002";
}

/// A copy of a folder with one of its files changed.
class Changed {
 public:
  Changed(const std::string& from, const std::string& to, const std::string& file)
      : file_(fs::path(to) / file) {
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive);
    bytes = read_file(file_);
  }
  void write() const { std::ofstream(file_, std::ios::binary) << bytes; }
  void replace(const std::string& piece, const std::string& other) {
    const std::size_t at = bytes.find(piece);
    REQUIRE(at != std::string::npos);
    bytes.replace(at, piece.size(), other);
  }
  std::string bytes;

 private:
  fs::path file_;
};

}  // namespace

TEST_CASE("weights that are not whole, or another model's, are refused") {
  const RunFolder folder;
  const std::string hf = folder / "hf";
  const Result exported = run(folder, {"checkpoint", "export", trained(folder), "--to", hf});
  REQUIRE(exported.code == 0);
  std::string config = small_run;
  config.replace(0, config.find("[data]"), "[model]\nfrom = \"bad\"\n");
  folder.write("from.toml", config);
  const auto refused = [&](const std::vector<std::string>& words) {
    is_refused(folder, {"train", "from.toml"}, words);
    is_refused(folder, {"train", "from.toml", "--dry-run"}, words);
  };
  const std::string bad = folder / "bad";
  const auto change = [&] { return Changed(hf, bad, "model.safetensors"); };

  is_refused(folder, {"train", "from.toml", "model.from=nowhere"}, {"nowhere", "config.json"});
  change();
  fs::remove(bad + "/model.safetensors");
  refused({"bad", "model.safetensors"});
  {
    Changed cut = change();
    cut.bytes.resize(cut.bytes.size() - 100);
    cut.write();
    refused({"bad/model.safetensors", "are not within"});
    cut.bytes.resize(5);
    cut.write();
    refused({"bad/model.safetensors"});
  }
  {
    Changed lying = change();
    lying.bytes.replace(0, 8, 8, '\x7f');
    lying.write();
    refused({"bad/model.safetensors", "header"});
  }
  {
    Changed text = change();
    text.replace("{\"", "{'");
    text.write();
    refused({"bad/model.safetensors", "JSON"});
  }
  {
    Changed renamed = change();
    renamed.replace("model.norm.weight", "model.nrom.weight");
    renamed.write();
    refused({"bad", "missing: model.norm.weight", "unexpected: model.nrom.weight"});
  }
  {
    Changed turned = change();
    turned.replace("[64,32]", "[32,64]");
    turned.write();
    refused({"bad/config.json", "intermediate_size is 64", "has shape [32, 64]"});
  }
  {
    Changed other(hf, bad, "config.json");
    other.replace("\"hidden_size\": 32", "\"hidden_size\": 64");
    other.write();
    refused({"bad/config.json", "hidden_size 64", "model.embed_tokens.weight has shape [256, 32]"});
  }
}

TEST_CASE("plugin files that are named and cannot be loaded are refused") {
  const RunFolder folder;
  const std::string good = read_file(TESSERA_SHIPPED_PLUGINS "/Replicate.so");
  REQUIRE(good.size() > 4096);
  const auto refused = [&](const std::string& file, const std::vector<std::string>& words) {
    is_refused(folder, {"train", "run.toml", "--plugin", file}, words);
    is_refused(folder, {"train", "run.toml", "plugins.paths=[" + file + "]", "--dry-run"}, words);
  };
  const auto file = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.write(name, bytes);
    ::chmod(path.c_str(), 0600);
    return name;
  };
  refused("nowhere.so", {"nowhere.so", "no such file"});
  refused(file("empty.so", ""), {"empty.so", "refused"});
  refused(file("text.so", "no library at all"), {"text.so", "refused", "ELF"});
  refused(file("cut.so", good.substr(0, good.size() / 2)), {"cut.so", "refused"});
  std::string flipped = good;
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
  refused(file("flipped.so", flipped), {"flipped.so", "refused", "differs from what was linked"});
  file("open.so", good);
  ::chmod((folder / "open.so").c_str(), 0666);
  refused("open.so", {"open.so", "refused", "writ"});
  // A folder of plugins may hold others' files; one that is whole is taken.
  file("whole.so", good);
  CHECK(run(folder, {"train", "run.toml", "--plugin", "whole.so", "--dry-run"}).code == 0);
}

TEST_CASE("checkpoints that are cut or another model's are refused before the ranks start") {
  const RunFolder folder;
  const std::string whole = trained(folder);
  const std::string bad = folder / "checkpoints/step-00000003";
  const auto refused = [&](const std::vector<std::string>& arguments,
                           const std::vector<std::string>& words) {
    is_refused(folder, with(with({"train", "run.toml", "train.steps=9"}, one_rank), arguments),
               words);
  };
  std::string data;
  for (const auto& entry : fs::directory_iterator(whole)) {
    if (entry.path().extension() == ".safetensors") {
      data = entry.path().filename().string();
    }
  }
  REQUIRE(!data.empty());
  {
    Changed cut(whole, bad, data);
    cut.bytes.resize(cut.bytes.size() / 2);
    cut.write();
    refused({"checkpoint.resume=checkpoints/step-00000003"}, {"step-00000003"});
    refused({}, {"step-00000003"});  // auto: it is the newest
    is_refused(folder, {"checkpoint", "info", bad}, {"step-00000003"});
    is_refused(folder, {"checkpoint", "export", bad, "--to", "out"}, {"step-00000003"});
    is_refused(folder, {"generate", bad, "--prompt", "a"}, {"step-00000003"});
  }
  {
    Changed index(whole, bad, "checkpoint.json");
    index.bytes.resize(index.bytes.size() / 2);
    index.write();
    refused({"checkpoint.resume=checkpoints/step-00000003"}, {"checkpoint.json"});
  }
  fs::remove_all(bad);
  refused({"model.ffn_dim=96"},
          {"step-00000002", "model.ffn_dim: 64 in the checkpoint, 96 in the config"});
  refused({"model.layers=3", "checkpoint.allow=[model.layers]"},
          {"step-00000002", "missing: ", "model.layers.2.mlp.up_proj.weight"});
}

TEST_CASE("an export to a place that cannot be written is refused") {
  const RunFolder folder;
  const std::string checkpoint = trained(folder);
  for (const char* place : {"text.txt", "text.txt/inner", "/proc/nowhere"}) {
    is_refused(folder, {"checkpoint", "export", checkpoint, "--to", place}, {place});
  }
}
