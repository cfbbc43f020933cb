// What a run continues: its own checkpoints and no others, whole ones, with values that are finite.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "index_hash.hpp"
#include "program.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// `tessera train` on one rank.
Words train(const Words& more) {
  return with({"train", "run.toml", "mesh.axes=[]", "mesh.shape=[]", "parallel=[]"}, more);
}

const char* const second_step = "checkpoints/step-00000002";

void trained(const RunFolder& folder) {
  const Result result = run(folder, train({"train.steps=2"}));
  INFO(result.error);
  REQUIRE(result.code == 0);
}

void continues(const RunFolder& folder, const Words& more, std::int64_t from,
               const std::string& note = "") {
  const Result result = run(folder, train(more));
  INFO(result.out << result.error);
  CHECK(result.code == 0);
  CHECK(step_after(result.out, "resumed after step ") == from);
  CHECK(result.out.find(note) != std::string::npos);
}

}  // namespace

TEST_CASE("a run does not continue the checkpoint of another run") {
  const RunFolder folder;
  trained(folder);
  folder.write("other.txt", "z" + small_text());
  const auto refused = [&](const Words& overrides, const Words& words) {
    is_refused(folder, train(with({"train.steps=4"}, overrides)),
               with({second_step, "a checkpoint of another run", "checkpoint.allow=["}, words));
  };
  refused({"optimizer.lr=0.01"}, {"optimizer.lr: 0.0003 in the checkpoint, 0.01 in the config"});
  refused({"train.seed=5"}, {"train.seed: 1 in the checkpoint, 5 in the config"});
  refused({"train.batch=8", "data.seq_len=16"}, {"train.batch: ", "data.seq_len: "});
  refused({"data.text=[other.txt]"}, {"data.content: "});
  refused({"model.ffn_dim=96"}, {"model.ffn_dim: 64 in the checkpoint, 96 in the config"});
  refused({"optimizer.lr=0.01", "checkpoint.resume=checkpoints/step-00000002"}, {"optimizer.lr: "});
  // A second config of the same folder is no other case.
  std::string text = small_run;
  text.replace(text.find("seq_len = 32"), 12, "seq_len = 24");
  folder.write("second.toml", text);
  is_refused(folder, {"train", "second.toml", "train.steps=4"}, {"data.seq_len: 32"});
  is_refused(folder, {"train", "second.toml", "--dry-run"}, {"data.seq_len: 32"});
}

TEST_CASE("a schedule by tokens is where it was when a run continues with another batch") {
  const RunFolder folder;
  const Words by_tokens = {"train.batch=4",
                           "data.seq_len=32",
                           "optimizer.lr=0.01",
                           "optimizer.schedule=inverse_sqrt",
                           "optimizer.schedule_unit=tokens",
                           "optimizer.warmup=256"};
  const Result first = run(folder, train(with(by_tokens, {"train.steps=4"})));
  INFO(first.error);
  REQUIRE(first.code == 0);
  const Words more = with(by_tokens, {"train.steps=6", "train.batch=8", "log.every=1",
                                      "checkpoint.allow=[train.batch]"});
  continues(folder, more, 4, "allowed difference: train.batch: 4 in the checkpoint, 8 in the");
  std::vector<std::string> rates;
  for (const std::string& line : lines_of(read_file(folder / "metrics.jsonl"))) {
    const std::size_t at = line.find("\"lr\":");
    REQUIRE(at != std::string::npos);
    rates.push_back(line.substr(at + 5, line.find(',', at) - at - 5));
  }
  REQUIRE(rates.size() == 6);
  // Tokens at the end of each step: 128, 256, 384, 512, then 768 and 1024.
  const std::vector<double> expected = {
      0.5, 1, std::sqrt(256.0 / 384), std::sqrt(0.5), std::sqrt(256.0 / 768), 0.5};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::stod(rates[i]) == Approx(0.01 * expected[i]));
  }
}

TEST_CASE("more steps, another layout, allowed differences: the run continues") {
  const RunFolder folder;
  trained(folder);
  continues(folder, {"train.steps=3", "train.threads=1", "log.every=1"}, 2);
  const Result four = run(folder, {"train", "run.toml", "train.steps=4"});  // 2 x 2 ranks
  CHECK(four.code == 0);
  CHECK(step_after(four.out, "resumed after step ") == 3);
  continues(folder, {"train.steps=5", "optimizer.lr=0.01", "checkpoint.allow=[optimizer.lr]"}, 4,
            "allowed difference: optimizer.lr: 0.0003 in the checkpoint, 0.01 in the config");
  // What is allowed is compared with the model all the same.
  is_refused(
      folder,
      train({"train.steps=6", "optimizer.lr=0.01", "model.ffn_dim=96", "checkpoint.allow=[model]"}),
      {"step-00000005", "mlp.up_proj.weight", "expected [96, 32], got [64, 32]"});
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(5));
}

TEST_CASE("a longer run with a schedule says that the schedule's end has moved") {
  const RunFolder folder;
  REQUIRE(run(folder, train({"train.steps=2", "optimizer.schedule=cosine"})).code == 0);
  continues(folder, {"train.steps=4", "optimizer.schedule=cosine"}, 2,
            "train.steps was 2 and is 4: the cosine schedule now ends there");
}

TEST_CASE("fewer steps than are done are an error, as many are nothing to do") {
  const RunFolder folder;
  trained(folder);
  is_refused(folder, train({"train.steps=1"}),
             {"train.steps: the run to continue has done 2 steps", second_step, "more than 1"});
  continues(folder, {"train.steps=2"}, 2, std::string("checkpoint  ") + second_step);
}

TEST_CASE("a new run does not write among another run's checkpoints") {
  const RunFolder folder;
  trained(folder);
  is_refused(folder, train({"checkpoint.resume=never"}),
             {"checkpoint.folder", second_step, "it is a new run"});
  REQUIRE(run(folder, train({"train.steps=4"})).code == 0);
  // Going back: what is saved from here would lie among later steps.
  is_refused(folder, train({"train.steps=6", "checkpoint.resume=checkpoints/step-00000002"}),
             {"checkpoint.folder", "step-00000004", "it continues "});
  const Result back =
      run(folder, train({"train.steps=3", "checkpoint.folder=back", "log.metrics=back.jsonl",
                         "checkpoint.resume=checkpoints/step-00000002"}));
  INFO(back.error);
  CHECK(back.code == 0);
  CHECK(checkpoints(folder / "back") == Words{"step-00000003"});
}

TEST_CASE("progress that is absent, of a wrong type or negative is an error that names it") {
  const RunFolder folder;
  trained(folder);
  const std::string path = folder / "checkpoints/step-00000002/checkpoint.json";
  const auto good = nlohmann::json::parse(read_file(path));
  const std::vector<nlohmann::json> wrong = {-1, 2.5, "word"};
  for (const std::string& name :
       {std::string("progress.step"), std::string("optimizer.step.model.norm.weight"),
        std::string("progress.random.init.seed"), std::string("progress.random.init.offset")}) {
    INFO(name);
    REQUIRE(good["scalars"].contains(name));
    for (const nlohmann::json& value : wrong) {
      if (name.starts_with("progress.random") && value == -1) {
        continue;  // any 64 bits
      }
      auto index = good;
      index["scalars"][name] = value;
      folder.write("checkpoints/step-00000002/checkpoint.json", index_hash::rehashed(index));
      is_refused(folder, train({"train.steps=4"}), {second_step, "'" + name + "'"});
    }
    auto index = good;
    index["scalars"].erase(name);
    folder.write("checkpoints/step-00000002/checkpoint.json", index_hash::rehashed(index));
    const Result result = run(folder, train({"train.steps=4"}));
    INFO(result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(name) != std::string::npos);
  }
}

TEST_CASE("a checkpoint whose model is not of the stored sizes is refused by every command") {
  const RunFolder folder;
  trained(folder);
  const auto good = nlohmann::json::parse(read_file(folder / second_step + "/checkpoint.json"));
  struct Size {
    const char* key;
    std::int64_t value;
    const char* words;
  };
  for (const Size& size :
       {Size{"num_hidden_layers", 3, "num_hidden_layers is 3, but the weights have 2 layers"},
        Size{"num_key_value_heads", 4, "num_key_value_heads times head_dim is 32"},
        Size{"hidden_size", 64,
             "hidden_size 64, but model.embed_tokens.weight has shape [256, 32]"},
        Size{"intermediate_size", 1000000, "intermediate_size is 1000000"}}) {
    auto index = good;
    REQUIRE(index["meta"]["model"].contains(size.key));
    index["meta"]["model"][size.key] = size.value;
    folder.write(std::string(second_step) + "/checkpoint.json", index_hash::rehashed(index));
    for (const Words& command :
         {Words{"generate", second_step, "--prompt", "a"}, Words{"checkpoint", "info", second_step},
          Words{"checkpoint", "export", second_step, "--to", "out"}}) {
      INFO(size.key << ", " << command[0] << " " << command[1]);
      is_refused(folder, command,
                 {second_step, "does not describe the stored weights", size.words});
    }
  }
}

TEST_CASE("a checkpoint under the name of another step is refused") {
  const RunFolder folder;
  trained(folder);
  fs::copy(folder / second_step, folder / "checkpoints/step-00000003", fs::copy_options::recursive);
  is_refused(folder, train({"train.steps=6"}), {"step-00000003", "the checkpoint of step 2"});
}

TEST_CASE("ranks that were started with different configs do not train together") {
  const RunFolder folder;
  const auto rank = [&](const char* number, const std::string& lr) {
    return Program(folder,
                   {"train", "run.toml", "mesh.axes=[shard]", "mesh.shape=[2]",
                    "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]", "optimizer.lr=" + lr},
                   {.environment = {{"RANK", number},
                                    {"WORLD_SIZE", "2"},
                                    {"TESSERA_TIMEOUT", "20"},
                                    {"TESSERA_JOB", folder.path().filename().string()}}});
  };
  Program first = rank("0", "0.001");
  Program second = rank("1", "0.002");
  const Result zero = first.wait(40);
  const Result one = second.wait(40);
  INFO(zero.error << one.error);
  CHECK(zero.code == 2);
  CHECK(one.code == 2);
  CHECK(
      (zero.error + one.error).find("rank 1 has another config, text or checkpoint than rank 0") !=
      std::string::npos);
}

TEST_CASE("damaged bytes end a resume before a step, and verify finds them") {
  const RunFolder folder;
  trained(folder);
  const std::string name = "checkpoints/step-00000002/rank-0.safetensors";
  const std::string good = read_file(folder / name);
  std::string bad = good;
  for (std::size_t at = good.size() / 2; at < good.size() / 2 + 1000; ++at) {
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
  }
  folder.write(name, bad);
  const std::string metrics = read_file(folder / "metrics.jsonl");
  const Result result = run(folder, train({"train.steps=4"}));
  INFO(result.error);
  CHECK(result.code == 2);
  CHECK(count(result.error, "error:") == 1);
  CHECK(result.error.find("rank-0.safetensors are not those that were saved") != std::string::npos);
  CHECK(read_file(folder / "metrics.jsonl") == metrics);
  is_refused(folder, {"checkpoint", "verify", "checkpoints"}, {"damaged", "rank-0.safetensors"});
  is_refused(folder, {"checkpoint", "verify", second_step}, {"damaged", "rank-0.safetensors"});
  is_refused(folder, {"checkpoint", "verify", "nowhere"}, {"nowhere", "not a checkpoint"});
  folder.write(name, good);
  const Result whole = run(folder, {"checkpoint", "verify", "checkpoints"});
  CHECK(whole.code == 0);
  CHECK(whole.out.find(std::string(second_step) + ": whole") != std::string::npos);
}

TEST_CASE("a run whose weights are no longer finite fails, and keeps the last checkpoint") {
  const RunFolder folder;
  const Words too_fast = {"optimizer.lr=1e39", "train.clip_grad_norm=0"};
  // Its only step is its last one: the loss was finite, the weights are not.
  const auto fails = [&](const Words& more, const std::string& words) {
    const Result result = run(folder, train(with(too_fast, more)));
    INFO(result.out << result.error);
    CHECK(result.code == 1);
    CHECK(count(result.error, "error:") == 1);
    CHECK(result.error.find("NaN or infinite") != std::string::npos);
    CHECK(result.error.find(words) != std::string::npos);
  };
  fails({"train.steps=1"}, "no checkpoint was saved before");
  fails({"train.steps=1", "checkpoint.folder=", "log.metrics="}, "no checkpoint was saved before");
  CHECK((!fs::exists(folder / "checkpoints") || checkpoints(folder / "checkpoints").empty()));
  const RunFolder measured;
  const Result validated =
      run(measured,
          train(with(too_fast, {"train.steps=1", "checkpoint.folder=", "data.validation=0.1"})));
  INFO(validated.error);
  CHECK(validated.code == 1);
  CHECK(validated.error.find("the validation loss is ") != std::string::npos);
  CHECK(steps_in(measured / "metrics.jsonl") == steps_to(1));  // the step itself was taken

  // Saved in the background, and perhaps not complete when the next step fails.
  const RunFolder saved;
  const Result late = run(saved, train({"train.steps=9", "checkpoint.every=1", "optimizer.lr=1e18",
                                        "train.clip_grad_norm=0"}));
  INFO(late.out << late.error);
  CHECK(late.code == 1);
  const Words found = checkpoints(saved / "checkpoints");
  REQUIRE(found.size() == 1);
  CHECK(late.error.find("the last good checkpoint is checkpoints/" + found[0]) !=
        std::string::npos);
  CHECK(count(late.out, "checkpoint saved: checkpoints/" + found[0]) == 1);
  CHECK(run(saved, {"checkpoint", "verify", "checkpoints/" + found[0]}).code == 0);

  trained(folder);
  fails({"train.steps=3", "checkpoint.allow=[optimizer, train]"},
        "the last good checkpoint is checkpoints/step-00000002");
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000002"});
  continues(folder, {"train.steps=4"}, 2);
}
