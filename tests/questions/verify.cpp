// Runs of the program that are repeated from their records, and what is done to them before.
#include <sys/wait.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "index_hash.hpp"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using tessera::testing::Folder;
using tessera::testing::read_file;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Answer {
  int code = -1;
  std::string out;
  std::string error;
};

/// `tessera arguments` in the folder, which is also the home folder.
Answer ask(const Folder& folder, const std::string& arguments) {
  const std::string command = "cd " + folder.path().string() +
                              " && HOME=" + folder.path().string() + " " TESSERA_PROGRAM " " +
                              arguments + " > out.txt 2> error.txt";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out.txt"),
          read_file(folder / "error.txt")};
}

std::string train(const Folder& folder, const std::string& more = "") {
  const Answer answer = ask(folder, "train run.toml " + more);
  INFO(more << "\n" << answer.out << answer.error);
  REQUIRE(answer.code == 0);
  return answer.out + answer.error;
}

Json verify(const Folder& folder, const std::string& arguments, int code = 0) {
  const Answer answer = ask(folder, "verify " + arguments + " --json");
  INFO(arguments << "\n" << answer.out << answer.error);
  REQUIRE(answer.code == code);
  Json verdict = Json::parse(answer.out);
  CHECK(verdict["same"] == (code == 0));
  return verdict;
}

std::string refusal(const Folder& folder, const std::string& arguments) {
  const Answer answer = ask(folder, "verify " + arguments);
  INFO(arguments << "\n" << answer.out << answer.error);
  CHECK(answer.code == 2);
  CHECK(answer.out.empty());
  return answer.error;
}

/// Files and their bytes.
std::map<std::string, std::string> contents(const Folder& folder, const std::string& inner) {
  std::map<std::string, std::string> all;
  for (const std::string& name : folder.names_below(inner)) {
    const fs::path path = fs::path(folder / inner) / name;
    all[name] = fs::is_regular_file(path) ? read_file(path) : "";
  }
  return all;
}

const std::string model = R"([model]
dim = 16
layers = 2
heads = 2
kv_heads = 2
ffn_dim = 32
)";
const std::string data =
    "[data]\ntext = [\"text.txt\"]\nseq_len = 16\nvalidation = 0.1\n"
    "validate_every = 3\n";
const std::string saved = "[checkpoint]\nfolder = \"saved\"\nevery = 4\nkeep = 0\n";
const std::string sharded =
    "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\naxis = \"shard\"\n"
    "on = [\"model.layers.*\", \".\"]\n";

void write_text(const Folder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "line " + std::to_string(i * i % 97) + " of a text\n";
  }
  folder.write("text.txt", text);
}

void write_run(const Folder& folder, const std::string& train, const std::string& more = "") {
  write_text(folder);
  folder.write("run.toml", model + data + "[train]\nbatch = 4\n" + train + saved + more);
}

std::string index_path(const Folder& folder, const std::string& step) {
  return folder / ("saved/step-0000000" + step + "/checkpoint.json");
}
constexpr const char* record_scalar = "progress.text.record";

/// The record of a checkpoint as it is stored.
std::string stored(const Folder& folder, const std::string& step) {
  return Json::parse(read_file(index_path(folder, step)))["scalars"][record_scalar];
}
/// Replaces it, as somebody does who also writes the hash that the index needs.
void store(const Folder& folder, const std::string& step, const std::string& record) {
  Json index = Json::parse(read_file(index_path(folder, step)));
  index["scalars"][record_scalar] = record;
  folder.write("saved/step-0000000" + step + "/checkpoint.json", index_hash::rehashed(index));
}

const Json* difference(const Json& verdict, const std::string& what, std::int64_t step) {
  for (const Json& one : verdict["differences"]) {
    if (has(one["what"].get<std::string>(), what) && one["step"] == step) {
      return &one;
    }
  }
  return nullptr;
}

}  // namespace

TEST_CASE("a run that is repeated from its record is the same in all bits") {
  struct Kind {
    std::string name;
    std::string train = "";
    std::string more = "";
  };
  const std::vector<Kind> kinds = {
      {"one rank"},
      {"captured, accumulated", "micro_batch = 2\n", "[graph]\ncapture = true\n"},
      {"fully sharded", "", sharded},
      {"any layout", "reproducible = \"layout\"\nvirtual_shards = 2\n", sharded}};
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const Folder folder;
    write_run(folder, "steps = 9\n" + kind.train, kind.more);
    train(folder);
    const auto before = contents(folder, "saved");
    const std::string metrics = read_file(folder / "metrics.jsonl");
    const Json whole = verify(folder, "saved");
    CHECK(whole["first"] == 1);
    CHECK(whole["last"] == 9);
    // 9 steps of 3 numbers and 3 validations: in the metrics file and in the last record; steps 1
    // to 4 and 1 to 8 in the records before.
    CHECK(whole["numbers"] == 2 * (9 * 3 + 3) + (4 * 3 + 1) + (8 * 3 + 2));
    CHECK(whole["checkpoints"].size() == 3);
    // The folder of the run, and one checkpoint, are it too.
    CHECK(verify(folder, ".")["checkpoints"] == whole["checkpoints"]);
    CHECK(verify(folder, "saved/step-00000004")["checkpoints"][0] == whole["checkpoints"][0]);
    const Json part = verify(folder, "saved --steps 6:8");
    CHECK(part["checkpoints"].size() == 1);
    CHECK(part["checkpoints"][0] == whole["checkpoints"][1]);
    CHECK(part["numbers"] == 2 * (3 * 3 + 1) + (3 * 3 + 1));
    if (kind.name == "any layout") {
      folder.write("one.toml", model + data + "[train]\nbatch = 4\nsteps = 9\n" + kind.train);
      CHECK(verify(folder, "saved --layout one.toml")["checkpoints"] == whole["checkpoints"]);
    }
    if (kind.name == "fully sharded") {
      folder.write("one.toml", model + data + "[train]\nbatch = 4\nsteps = 9\n");
      CHECK(has(refusal(folder, "saved --layout one.toml"),
                "promised on its own mesh only, mesh(shard=2)"));
    }
    // Nothing of the run was written.
    CHECK(contents(folder, "saved") == before);
    CHECK(read_file(folder / "metrics.jsonl") == metrics);
  }
}

TEST_CASE("the record of a run goes on when it is continued, on another mesh and by other keys") {
  const Folder folder;
  write_run(folder, "steps = 4\n");
  train(folder);
  train(folder, "train.steps=6 checkpoint.keep=1");
  folder.write("run.toml", read_file(folder / "run.toml") + sharded);
  train(folder,
        "train.steps=9 checkpoint.keep=1 optimizer.weight_decay=0.2 "
        "'checkpoint.allow=[\"optimizer.weight_decay\"]'");
  REQUIRE(folder.names_below("saved").front() == "step-00000009");
  const Json record = Json::parse(stored(folder, "9"));
  REQUIRE(record["sessions"].size() == 3);
  const std::vector<std::pair<int, int>> steps = {{0, 4}, {4, 6}, {6, 9}};
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& session = record["sessions"][i];
    CHECK(session["from"] == steps[i].first);
    CHECK(session["to"] == steps[i].second);
    CHECK(session["mesh"] == (i < 2 ? "one rank" : "mesh(shard=2)"));
    CHECK(session["plugins"].size() == (i < 2 ? 0 : 1));
    CHECK(session["ledger"]["compute"].get<double>() > 0);
  }
  CHECK(record["sessions"][1]["command"][3] == "train.steps=6");
  CHECK(record["curve"].size() == 9);
  // No checkpoint between is left: all of it is computed from the beginning, by three descriptions.
  CHECK(verify(folder, "saved")["checkpoints"].size() == 1);
  const std::string info = ask(folder, "checkpoint info saved/step-00000009").out;
  CHECK(has(info, "3 starts"));
  CHECK(has(info, "the last one after step 6, on mesh(shard=2)"));
}

TEST_CASE("a run that heals has one session, and is repeated as if nothing had happened") {
  const Folder folder;
  write_run(folder, "steps = 60\nheal = true\n", sharded);
  const std::string script =
      "cd " + folder.path().string() +
      " && { " TESSERA_PROGRAM
      " train run.toml checkpoint.every=20 > log.txt 2>&1 & R=$!; "
      "until [ \"$(wc -l < metrics.jsonl)\" -ge 5 ]; do sleep 0.02; done 2> /dev/null; "
      "kill -9 $(pgrep -n -P $R); wait $R; }";
  REQUIRE(std::system(script.c_str()) == 0);
  REQUIRE(has(read_file(folder / "log.txt"), "the run heals (1)"));
  const Json record = Json::parse(
      read_file(folder / "saved/step-00000060/checkpoint.json"))["scalars"][record_scalar];
  const Json own = Json::parse(record.get<std::string>());
  REQUIRE(own["sessions"].size() == 1);
  CHECK(own["sessions"][0]["from"] == 0);
  CHECK(own["sessions"][0]["ledger"]["heal"].get<double>() > 0);
  CHECK(own["curve"].size() == 60);
  CHECK(verify(folder, "saved")["checkpoints"].size() == 3);
}

TEST_CASE("a run that was changed afterwards is not the same, and the verdict names what") {
  const Folder folder;
  write_run(folder, "steps = 8\n");
  train(folder);
  const std::string good = stored(folder, "8");
  const std::string metrics = read_file(folder / "metrics.jsonl");

  // An edited number in the record: the last bit of a loss.
  Json record = Json::parse(good);
  record["curve"][4][1] = std::nextafter(record["curve"][4][1].get<double>(), 100.0);
  store(folder, "8", record.dump());
  Json verdict = verify(folder, "saved", 1);
  REQUIRE(difference(verdict, "loss in the record of saved/step-00000008", 5) != nullptr);
  CHECK(verdict["differences"].size() == 1);
  // Steps that it does not concern are the same.
  CHECK(verify(folder, "saved --steps 6:8")["same"] == true);
  store(folder, "8", good);

  // One in the record of an earlier checkpoint.
  const std::string earlier = stored(folder, "4");
  record = Json::parse(earlier);
  record["curve"][2][4] = 1.25;  // a validation
  store(folder, "4", record.dump());
  CHECK(difference(verify(folder, "saved", 1),
                   "validation_loss in the record of saved/step-00000004", 3) != nullptr);
  store(folder, "4", earlier);

  // One in the metrics file.
  Json line = Json::parse(metrics.substr(0, metrics.find('\n')));
  line["grad_norm"] = line["grad_norm"].get<double>() * 2;
  folder.write("metrics.jsonl", line.dump() + metrics.substr(metrics.find('\n')));
  verdict = verify(folder, "saved", 1);
  CHECK(difference(verdict, "grad_norm in " + folder / "metrics.jsonl", 1) != nullptr);
  CHECK(verdict["differences"].size() == 1);
  folder.write("metrics.jsonl", metrics);

  // A checkpoint of another run in the place of one.
  REQUIRE(ask(folder,
              "train run.toml train.seed=7 train.steps=4 checkpoint.folder=other "
              "log.metrics=other.jsonl")
              .code == 0);
  fs::rename(folder / "saved/step-00000004", folder / "mine");
  fs::copy(folder / "other/step-00000004", folder / "saved/step-00000004",
           fs::copy_options::recursive);
  verdict = verify(folder, "saved", 1);
  const Json* const swapped = difference(verdict, "saved/step-00000004", 4);
  REQUIRE(swapped != nullptr);
  CHECK(difference(verdict, "the record in saved/step-00000004", 4) != nullptr);
  // A part that begins with it is another part.
  CHECK(verify(folder, "saved --steps 5:8", 1)["differences"].size() >= 4);
  fs::remove_all(folder / "saved/step-00000004");
  fs::rename(folder / "mine", folder / "saved/step-00000004");
  CHECK(verify(folder, "saved")["same"] == true);

  // A damaged byte of a tensor.
  std::string file;
  for (const std::string& name : folder.names_below("saved/step-00000004")) {
    file = name.ends_with(".safetensors") ? "saved/step-00000004/" + name : file;
  }
  std::string bytes = read_file(folder / file);
  const std::string whole = bytes;
  bytes[bytes.size() - 100] ^= 1;
  folder.write(file, bytes);
  CHECK(difference(verify(folder, "saved", 1), "saved/step-00000004", 4) != nullptr);
  folder.write(file, whole);

  // Another library of a plugin, another processor: notes, as the bits decide.
  record = Json::parse(good);
  record["sessions"][0]["processor"] = "a processor of another kind";
  store(folder, "8", record.dump());
  CHECK(has(verify(folder, "saved")["notes"].dump(), "a processor of another kind"));
}

TEST_CASE("records that are damaged or of another step stop no resume, and are told") {
  const Folder folder;
  write_run(folder, "steps = 8\n");
  train(folder);
  const std::string good = stored(folder, "8");
  int steps = 8;
  const auto resumed = [&](const std::string& record) {
    store(folder, "8", record);
    const std::string said = train(folder, "train.steps=9");
    CHECK(has(said, "resumed after step 8"));
    const Json now = Json::parse(stored(folder, "9"));
    fs::remove_all(folder / "saved/step-00000009");
    CHECK(now["sessions"].back()["from"] == 8);
    steps = static_cast<int>(now["sessions"].size());
    return said;
  };
  CHECK_FALSE(has(resumed(good), "record of its run"));
  CHECK(steps == 2);
  Json unknown = Json::parse(good);
  unknown["sessions"][0]["mood"] = "good";
  Json turned = Json::parse(good);
  std::swap(turned["curve"][1], turned["curve"][2]);
  Json huge = Json::parse(good);
  for (int i = 0; i < 2000; ++i) {
    huge["curve"].push_back(huge["curve"][0]);
  }
  Json later = Json::parse(good);
  later["version"] = 7;
  for (const auto& [record, why] : std::vector<std::pair<std::string, std::string>>{
           {good.substr(0, good.size() / 2), "is left out"},
           {stored(folder, "4"), "it is of step 4, and the checkpoint of step 8"},
           {"[]", "is left out"},
           {R"({"version": 1})", "no session"},
           {unknown.dump(), "unknown member 'mood'"},
           {turned.dump(), "'curve' has step"},
           {huge.dump(), "not a list of at most"},
           {later.dump(), "of version 7"},
           {std::string(100'000, '['), "is left out"}}) {
    INFO(why);
    CHECK(has(resumed(record), why));
    CHECK(steps == 1);
    CHECK(has(refusal(folder, "saved/step-00000008"), "its record of the run"));
  }
  CHECK(has(resumed(""), "has no record of its run"));
  // The record that began anew knows its own steps.
  store(folder, "8", "");
  train(folder, "train.steps=9");
  CHECK(verify(folder, "saved --steps 9:9")["same"] == true);
  CHECK(has(refusal(folder, "saved --steps 1:9"), "does not say how steps 1 to 8 were taken"));
}

TEST_CASE("an export is verified by computing it again, whatever its record says") {
  const Folder folder;
  write_run(folder, "steps = 5\n");
  train(folder);
  REQUIRE(ask(folder, "checkpoint export saved/step-00000005 --to shared").code == 0);
  const std::string card = read_file(folder / "shared/README.md");
  CHECK(has(card, "## How it was trained"));
  CHECK(has(card, "tessera train run.toml"));
  const std::string good = read_file(folder / "shared/record.json");
  const Json record = Json::parse(good);
  CHECK(has(card, record["weights"].get<std::string>()));
  CHECK(record["step"] == 5);
  CHECK(record["tokens"] == 5 * 4 * 16);
  // The run itself is not needed, only its data.
  fs::rename(folder / "saved", folder / "hidden");
  fs::remove(folder / "metrics.jsonl");
  const auto before = contents(folder, "shared");
  Json verdict = verify(folder, "shared");
  CHECK(verdict["files"] == record["files"].size());
  CHECK(verdict["checkpoints"][0]["weights"] == record["weights"]);
  CHECK(verify(folder, "shared --steps 2:3")["numbers"] == 2 * 3 + 1);
  // A long curve has every so many steps: where it has none, nothing is the same.
  Json thin = Json::parse(read_file(folder / "shared/record.json"));
  thin["record"]["curve"].erase(0);
  thin["record"]["curve"].erase(0);
  std::filesystem::create_directory(folder / "thin");
  folder.write("thin/record.json", thin.dump());
  const std::string nothing = refusal(folder, "thin --steps 1:2");
  CHECK(has(nothing, "no number of these steps is recorded"));
  CHECK(has(nothing, "steps up to 3 or more"));
  CHECK(verify(folder, "thin --steps 1:3")["same"] == true);
  CHECK(contents(folder, "shared") == before);
  CHECK(has(ask(folder, "checkpoint info shared").out, "1 start"));

  // Other weights, with the hash of their file in the record: only computing it again finds them.
  std::string weights = read_file(folder / "shared/model.safetensors");
  const std::string trained = weights;
  weights[weights.size() - 10] ^= 1;
  folder.write("shared/model.safetensors", weights);
  verdict = verify(folder, "shared", 1);
  CHECK(difference(verdict, "model.safetensors: its hash", 5) != nullptr);
  Json forged = record;
  for (Json& file : forged["files"]) {
    if (file["name"] == "model.safetensors") {
      file["hash"] = index_hash::xxh3(weights);
    }
  }
  folder.write("shared/record.json", forged.dump());
  verdict = verify(folder, "shared", 1);
  CHECK(verdict["differences"].size() == 1);
  CHECK(difference(verdict, "model.safetensors, exported again", 5) != nullptr);
  folder.write("shared/model.safetensors", trained);

  forged = record;
  forged["weights"] = "00000000000000000000000000000000";
  folder.write("shared/record.json", forged.dump());
  CHECK(difference(verify(folder, "shared", 1), "the hash of the weights", 5) != nullptr);
  forged = record;
  forged["record"]["curve"][0][3] = 0.5;
  folder.write("shared/record.json", forged.dump());
  CHECK(difference(verify(folder, "shared", 1), "lr in record.json", 1) != nullptr);

  // A description that is not what the run was.
  forged = record;
  forged["record"]["sessions"][0]["config"]["train"]["seed"] = 9;
  folder.write("shared/record.json", forged.dump());
  CHECK(has(refusal(folder, "shared"), "train.seed is not as it was when the run was trained"));

  folder.write("shared/record.json", good.substr(0, good.size() - 30));
  CHECK(has(refusal(folder, "shared"), "record.json: it is not the record of an export"));
  forged = record;
  forged["files"][0]["name"] = "../../etc/passwd";
  folder.write("shared/record.json", forged.dump());
  CHECK(difference(verify(folder, "shared", 1), "it is not in the folder", 5) != nullptr);
  folder.write("shared/record.json", good);

  // A record without the weights is enough, and says so.
  fs::create_directory(folder / "alone");
  fs::copy(folder / "shared/record.json", folder / "alone/record.json");
  verdict = verify(folder, "alone");
  CHECK(verdict["checkpoints"][0]["weights"] == record["weights"]);
  CHECK(verdict["files"] == 0);
  CHECK(has(verdict["notes"].dump(), "the record is alone"));

  // The data: one byte.
  std::string text = read_file(folder / "text.txt");
  text[700] = 'X';
  folder.write("text.txt", text);
  CHECK(has(refusal(folder, "shared"), "the run's data have changed since"));
  // Elsewhere they are as they were.
  fs::create_directory(folder / "elsewhere");
  write_text(folder);
  fs::rename(folder / "text.txt", folder / "elsewhere/text.txt");
  CHECK(has(refusal(folder, "shared"), "text.txt"));
  CHECK(verify(folder, "shared --in elsewhere")["same"] == true);
}

TEST_CASE("what cannot be verified is one error that says what is missing") {
  const Folder folder;
  write_run(folder, "steps = 4\n", sharded + "[plugins]\npaths = [\"own/FSDP.so\"]\n");
  fs::create_directory(folder / "own");
  for (const auto& entry : fs::directory_iterator(std::getenv("TESSERA_PLUGIN_PATH"))) {
    if (has(entry.path().filename(), "FSDP") && entry.path().extension() == ".so") {
      fs::copy_file(entry.path(), folder / "own/FSDP.so");
    }
  }
  CHECK(has(refusal(folder, "nowhere"), "there is no such folder"));
  CHECK(has(refusal(folder, "."), "neither a checkpoint nor record.json"));
  train(folder);
  for (const char* steps : {"0:2", "3:2", "2:5", "4", "a:b", "1:2:3", "99999999999999999999:1"}) {
    CHECK(has(refusal(folder, std::string("saved --steps ") + steps), "--steps"));
  }
  const std::string good = stored(folder, "4");
  Json record = Json::parse(good);
  record["sessions"][0]["plugins"][0]["hash"] = "0123";
  store(folder, "4", record.dump());
  CHECK(has(verify(folder, "saved")["notes"].dump(), "the plugin FSDP was 0.1.0 (0123)"));
  store(folder, "4", good);
  REQUIRE(ask(folder, "checkpoint export saved/step-00000004 --to shared").code == 0);
  fs::rename(folder / "own/FSDP.so", folder / "own/other.so");
  CHECK(has(refusal(folder, "saved"), "FSDP.so"));
  CHECK(has(refusal(folder, "shared"), "FSDP.so"));
  fs::rename(folder / "own/other.so", folder / "own/FSDP.so");
  std::string text = read_file(folder / "text.txt");
  text[100] ^= 1;
  folder.write("text.txt", text);
  const std::string changed = refusal(folder, "saved");
  CHECK(has(changed, "the run's data have changed since: " + folder / "text.txt"));
  CHECK(has(changed, "expected"));
}

TEST_CASE("two runs are verified at once, and a record says no secrets") {
  const Folder folder;
  write_run(folder, "steps = 4\n");
  train(folder, "log.tensorboard=" + folder / "secret-folder" + " data.text='[\"" +
                    folder / "text.txt" + "\"]'");
  const std::string record = stored(folder, "4");
  CHECK_FALSE(has(record, "secret-folder"));
  CHECK_FALSE(has(record, folder.path().string()));
  CHECK(has(record, "log.tensorboard=..."));
  const std::string one = "cd " + folder.path().string() + " && HOME=" + folder.path().string() +
                          " " TESSERA_PROGRAM " verify saved ";
  CHECK(std::system(("(" + one + "> a.txt) & (" + one + "> b.txt); wait").c_str()) == 0);
  for (const char* file : {"a.txt", "b.txt"}) {
    CHECK(has(read_file(folder / file), "the same in all bits: steps 1 to 4"));
  }
}
