// Checkpoints that leave out the weights of the model that their run started from.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"
#include "texts.hpp"

using equivalence::checkpoint;
using equivalence::Folder;
using equivalence::layout;
using equivalence::Layout;
using equivalence::loss_difference;
using equivalence::read_file;
using equivalence::Result;
using equivalence::same_bits;
using equivalence::Step;
using nlohmann::json;
using tessera::testing::has;
using tessera::testing::small_model;
namespace fs = std::filesystem;

namespace {

const std::string corpus = TESSERA_SOURCE_FOLDER "/docs/design/runs.md";
const std::string on_all = "on = [\"model.layers.*.{self_attn,mlp}.*_proj\"]\n";
const std::string lora = "[[parallel]]\nstyle = \"LoRA\"\n" + on_all + "options = { rank = 4 }\n";
const std::string dora =
    "[[parallel]]\nstyle = \"LoRA\"\n" + on_all + "options = { rank = 4, dora = true }\n";
const std::string qlora = "[[parallel]]\nstyle = \"QLoRA\"\n" + on_all + "options = { rank = 4 }\n";

/// A model folder of one rank's random weights: widths of which two ranks get whole blocks of 64.
std::string make_base(const Folder& folder, const std::string& name, int seed = 1) {
  equivalence::train(folder, name + "-run",
                     small_model({.dim = 128, .kv_heads = 2, .ffn_dim = 256}) +
                         "[data]\ntext = [\"" + corpus +
                         "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 12\n"
                         "seed = " +
                         std::to_string(seed) + "\n",
                     layout("one rank"));
  return equivalence::export_checkpoint(folder, checkpoint(folder, name + "-run", 1), name);
}

std::string config(const std::string& from, const std::string& more = "") {
  return "[model]\nfrom = \"" + from + "\"\n" + more + "[data]\ntext = [\"" + corpus +
         "\"]\nseq_len = 24\nvalidation = 0.0\norder = \"shuffled\"\n[train]\nsteps = 6\n"
         "batch = 12\nseed = 7\n[optimizer]\nlr = 1e-2\nschedule = \"cosine\"\nwarmup = 2\n"
         "[checkpoint]\nevery = 3\n";
}

Layout with(Layout where, const std::string& style) {
  where.config += style;
  return where;
}

json index_of(const std::string& path) { return json::parse(read_file(path + "/checkpoint.json")); }

/// The names of the tensors that a checkpoint stores.
std::vector<std::string> stored_in(const std::string& path) {
  std::vector<std::string> names;
  const json index = index_of(path);
  for (const auto& [layout, tensors] : index["tensors"].items()) {
    for (const auto& [name, type] : tensors.items()) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::uintmax_t bytes_of(const std::string& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    bytes += fs::file_size(entry.path());
  }
  return bytes;
}

std::string text_of(const std::string& path, const std::string& options = "") {
  return equivalence::succeed("generate '" + path +
                              "' --prompt 'The ' --temperature 0 --tokens 24 " + options);
}

void refuses(const std::string& arguments, const std::vector<std::string>& parts) {
  const Result result = equivalence::run(arguments);
  INFO(arguments << "\n" << result.error);
  CHECK(result.code == 2);
  for (const std::string& part : parts) {
    has(result.error, part);
  }
}

std::string weights(const Folder& folder, const std::string& of, const std::string& to) {
  return read_file(equivalence::export_checkpoint(folder, of, to) + "/model.safetensors");
}

}  // namespace

TEST_CASE("a checkpoint of low-rank updates has what is trained, and names the base", "[base]") {
  const Folder folder;
  const std::string base = make_base(folder, "start");
  for (const auto& [name, style] :
       {std::pair<std::string, std::string>{"lora", lora}, {"dora", dora}, {"qlora", qlora}}) {
    INFO(name);
    const Layout where = with(layout("one rank"), style);
    const auto all =
        equivalence::train(folder, name + "-all", config(base), where, "checkpoint.weights=all");
    const auto own = equivalence::train(folder, name, config(base), where);
    CHECK(same_bits(own, all));
    const std::string whole = checkpoint(folder, name + "-all", 6);
    const std::string small = checkpoint(folder, name, 6);

    const json index = index_of(small);
    CHECK(index["version"] == 5);
    CHECK(index["base"]["path"] == base);
    CHECK(index["base"]["relative"] == "../../start");
    CHECK(index_of(whole)["version"] == 4);
    CHECK_FALSE(index_of(whole).contains("base"));
    std::vector<std::string> both = stored_in(small);
    for (const std::string& stored : both) {
      const bool is_weight = stored.rfind("model.", 0) == 0;
      const bool is_update = stored.find(".lora_") != std::string::npos ||
                             stored.find(".magnitude") != std::string::npos;
      CHECK((!is_weight || is_update));
    }
    for (const auto& [left_out, type] : index["base"]["tensors"].items()) {
      both.push_back(left_out);
    }
    std::sort(both.begin(), both.end());
    CHECK(both == stored_in(whole));
    CHECK(2 * bytes_of(small) < bytes_of(whole));

    CHECK(text_of(small) == text_of(whole));
    CHECK(text_of(small, "--ranks 2") == text_of(whole, "--ranks 2"));
    CHECK(weights(folder, small, name + "-x") == weights(folder, whole, name + "-y"));
    has(equivalence::succeed("checkpoint diff '" + small + "' '" + whole + "'"),
        "no tensor differs");
    has(equivalence::succeed("checkpoint diff '" + small + "' '" + small + "'"),
        "no tensor differs");
    has(equivalence::succeed("checkpoint info '" + small + "'"), base);
    has(equivalence::succeed("checkpoint verify '" + small + "'"), "whole");
    for (const std::string& of : {whole, small}) {
      equivalence::succeed("checkpoint export '" + of + "' --adapter --to '" + of + "-adapter'");
    }
    for (const char* file : {"adapter_model.safetensors", "adapter_config.json"}) {
      CHECK(read_file(small + "-adapter/" + file) == read_file(whole + "-adapter/" + file));
    }
  }
}

TEST_CASE("a run continues from a checkpoint that names its base, on any mesh", "[base]") {
  const Folder folder;
  const std::string base = make_base(folder, "start");
  for (const std::string& style : {lora, qlora}) {
    for (const char* first : {"one rank", "FSDP 2 x TP 2"}) {
      const Layout where = with(layout(first), style);
      const auto whole = equivalence::train(folder, "whole", config(base), where);
      const std::string from = "checkpoint.resume='" + checkpoint(folder, "whole", 3) + "'";
      const std::vector<Step> last(whole.begin() + 3, whole.end());
      const auto rest = equivalence::train(folder, "rest", config(base), where, from);
      CHECK(same_bits(rest, last));
      CHECK(weights(folder, checkpoint(folder, "rest", 6), "a") ==
            weights(folder, checkpoint(folder, "whole", 6), "b"));
      fs::remove_all(folder / "a");
      fs::remove_all(folder / "b");
      equivalence::train(folder, "all", config(base), where, "checkpoint.weights=all");
      for (const char* other : {"one rank", "FSDP 3", "TP 2"}) {
        INFO(first << " to " << other);
        // Another layout sums in another order, so what is equal in bits is a whole checkpoint.
        const Layout there = with(layout(other), style);
        const auto moved = equivalence::train(folder, "moved", config(base), there, from);
        CHECK(loss_difference(moved, last) <= 2e-5);
        CHECK(stored_in(checkpoint(folder, "moved", 6)) ==
              stored_in(checkpoint(folder, "whole", 6)));
        const auto same =
            equivalence::train(folder, "same", config(base), there,
                               "checkpoint.resume='" + checkpoint(folder, "all", 3) + "'");
        CHECK(same_bits(same, moved));
        // The frozen weights are still the base's, so they are left out again.
        CHECK(stored_in(checkpoint(folder, "same", 6)) ==
              stored_in(checkpoint(folder, "whole", 6)));
      }
    }
  }
}

TEST_CASE("the base is found where the checkpoint, or the caller, says that it is", "[base]") {
  const Folder folder;
  const std::string base = make_base(folder, "start");
  const std::string other = make_base(folder, "other", 2);
  const Layout where = with(layout("one rank"), lora);
  equivalence::train(folder, "run", config(base), where);
  const std::string trained = checkpoint(folder, "run", 6);
  const std::string written = text_of(trained);

  fs::create_directories(folder / "moved");
  fs::rename(folder / "run", folder / "moved/run");
  fs::rename(base, folder / "moved/start");
  const std::string here = checkpoint(folder, "moved/run", 6);
  CHECK(text_of(here) == written);  // both have moved together

  fs::rename(folder / "moved/start", folder / "elsewhere");
  const std::string elsewhere = folder / "elsewhere";
  const std::string to = " --to '" + folder / "to" + "'";
  refuses("generate '" + here + "' --prompt x", {here, base, "--base"});
  refuses("checkpoint export '" + here + "' --no-tokenizer" + to, {base, "--base"});
  CHECK(text_of(here, "--base '" + elsewhere + "'") == written);
  equivalence::succeed("checkpoint export '" + here + "' --no-tokenizer --base '" + elsewhere +
                       "'" + to);
  equivalence::succeed("checkpoint info '" + here + "'");  // it needs no base

  // Another run starts from it, with its updates merged.
  const std::string from_here = config(here);
  refuses("train " + folder.write("next.toml", from_here) + " checkpoint.folder='" +
              (folder / "next") + "'",
          {base, "model.base"});
  const std::string named = config(here, "base = \"" + elsewhere + "\"\n");
  const auto next = equivalence::train(folder, "next", named, where);
  const auto merged = equivalence::train(folder, "merged", config(folder / "to"), where);
  CHECK(same_bits(next, merged));
  // It leaves out weights itself, so that no checkpoint names it.
  CHECK_FALSE(index_of(checkpoint(folder, "next", 6)).contains("base"));

  refuses("generate '" + here + "' --prompt x --base '" + other + "'",
          {other, base, index_of(here)["base"]["hash"].get<std::string>()});
  refuses("generate '" + here + "' --prompt x --base '" + here + "'",
          {"leaves out weights itself"});
  refuses("generate '" + checkpoint(folder, "next", 6) + "' --prompt x --base '" + other + "'",
          {"it has all its weights"});

  // A base of which one byte of one tensor has changed.
  const std::string file = elsewhere + "/model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  refuses("generate '" + here + "' --prompt x --base '" + elsewhere + "'",
          {elsewhere, base, "expected the hash"});
  refuses("train " + folder.write("again.toml", config(elsewhere) + lora) + " checkpoint.folder='" +
              folder / "again" + "' checkpoint.resume='" + here +
              "' 'checkpoint.allow=[\"model\"]'",
          {"expected the hash", base, elsewhere});
}

TEST_CASE("frozen weights that are not the base's are saved", "[base]") {
  const Folder folder;
  const std::string base = make_base(folder, "start");
  const std::string other = make_base(folder, "other", 2);
  const Layout where = with(layout("FSDP 2"), lora);
  equivalence::train(folder, "all", config(base), where, "checkpoint.weights=all");
  const std::string from = " checkpoint.resume='" + checkpoint(folder, "all", 3) + "'";
  // Its weights come from the checkpoint, whatever model.from is now.
  equivalence::train(folder, "changed", config(other), where,
                     "'checkpoint.allow=[\"model\"]'" + from);
  const std::string changed = checkpoint(folder, "changed", 6);
  CHECK_FALSE(index_of(changed).contains("base"));
  CHECK(stored_in(changed) == stored_in(checkpoint(folder, "all", 6)));
  CHECK(weights(folder, changed, "a") == weights(folder, checkpoint(folder, "all", 6), "b"));
}

TEST_CASE("frozen weights without low-rank updates are left out too", "[base]") {
  const Folder folder;
  const std::string base = make_base(folder, "start");
  const Layout& where = layout("FSDP 2");
  const std::string freeze = "'train.freeze=[\"model.layers.0.**\",\"model.embed_tokens.**\"]'";
  equivalence::train(folder, "full", config(base), where);
  CHECK_FALSE(index_of(checkpoint(folder, "full", 6)).contains("base"));
  equivalence::train(folder, "frozen", config(base), where, freeze);
  equivalence::train(folder, "all", config(base), where, freeze + " checkpoint.weights=all");
  const std::string frozen = checkpoint(folder, "frozen", 6);
  CHECK(index_of(frozen)["base"]["tensors"].size() == 10);
  CHECK(weights(folder, frozen, "a") == weights(folder, checkpoint(folder, "all", 6), "b"));
}
