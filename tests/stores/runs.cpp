// Runs and commands of the program whose model, data and checkpoints are in stores.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "hub_server.hpp"
#include "s3_server.hpp"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Catch::Contains;
using tessera::testing::Folder;
using tessera::testing::HubServer;
using tessera::testing::read_file;
using tessera::testing::S3Server;

struct Answer {
  int code = -1;
  std::string out;
  std::string error;
};

/// A folder that is also the home folder, a hub and a bucket.
class Place : public Folder {
 public:
  Place() {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "line " + std::to_string(i * i % 97) + " of a text\n";
    }
    write("text.txt", text);
    write("run.toml",
          "[data]\nseq_len = 16\nvalidation = 0\n"
          "[train]\nsteps = 6\nbatch = 4\n[checkpoint]\nfolder = \"saved\"\nevery = 2\nkeep = 0\n");
    write("model.toml",
          "[model]\ndim = 16\nlayers = 2\nheads = 2\nkv_heads = 2\nffn_dim = 32\n[data]\ntext = "
          "[\"text.txt\"]\nseq_len = 16\n[train]\nsteps = 1\n[checkpoint]\nfolder = \"begun\"\n");
    tell("train model.toml");
    tell("checkpoint export begun/step-00000001 --to model");
    for (const std::string& name : names_below("model")) {
      hub.state.files["model/" + name] = {read_file(path() / "model" / name)};
    }
    hub.state.files["text/a.txt"] = {text};
  }
  Answer ask(const std::string& arguments) const {
    const std::string variables =
        " HF_HOME=" + *this / "hf" + " HF_ENDPOINT=" + hub.url() +
        " TESSERA_STORE_CACHE=" + *this / "copies" + " AWS_ENDPOINT_URL_S3=" + bucket.url() +
        " AWS_ACCESS_KEY_ID=" + bucket.state.key + " AWS_SECRET_ACCESS_KEY=" + bucket.state.secret;
    const std::string command = "cd " + path().string() +
                                " && env -u HF_TOKEN HOME=" + path().string() + variables +
                                " " TESSERA_PROGRAM " " + arguments + " > out.txt 2> error.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path() / "out.txt"),
            read_file(path() / "error.txt")};
  }
  /// What a command prints that succeeds.
  std::string tell(const std::string& arguments) const {
    const Answer answer = ask(arguments);
    INFO(arguments << "\n" << answer.out << answer.error);
    REQUIRE(answer.code == 0);
    return answer.out;
  }
  std::string refusal(const std::string& arguments) const {
    const Answer answer = ask(arguments);
    INFO(arguments << "\n" << answer.out << answer.error);
    CHECK(answer.code == 2);
    return answer.error;
  }
  /// The losses of the steps in a metrics file.
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    std::string text = read_file(path() / name);
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      all.push_back(Json::parse(text.substr(at, text.find('\n', at) - at))["loss"]);
    }
    return all;
  }
  HubServer hub;
  S3Server bucket;
};

const std::string text_here = "'data.text=[\"text.txt\"]'";
const std::string local =
    "train run.toml model.from=model 'data.text=[\"text.txt\"]' log.metrics=a.jsonl ";
const std::string stored =
    "train run.toml model.from=hf:owner/name/model 'data.text=[\"hf:owner/name/text\"]' ";

}  // namespace

TEST_CASE("a run whose model and data are in a store is that of the same files here") {
  const Place place;
  place.tell(local + "checkpoint.folder=here");
  place.tell(stored + "log.metrics=b.jsonl train.steps=4");
  const std::string info = place.tell("checkpoint info saved/step-00000004 --json");
  CHECK_THAT(info, Contains("hf:owner/name/model") && Contains("hf:owner/name/text") &&
                       !Contains((place / "copies")));
  place.tell(stored + "log.metrics=b.jsonl");
  CHECK(place.losses("b.jsonl") == place.losses("a.jsonl"));
  // Questions to it, a repetition, and what takes a model.
  CHECK_THAT(place.tell("replay saved --step 5 --rows"), Contains("a.txt"));
  place.tell("verify saved --steps 3:6");
  const std::string text = place.tell("generate model --prompt line --tokens 8 --temperature 0");
  CHECK(place.tell("generate hf:owner/name/model --prompt line --tokens 8 --temperature 0") ==
        text);
}

TEST_CASE("what has changed in a store since a run began is found") {
  Place place;
  place.tell(stored + "train.steps=4 log.metrics=b.jsonl");
  place.hub.state.files["text/a.txt"].bytes[7] ^= 1;
  CHECK_THAT(place.refusal(stored + "log.metrics=b.jsonl"), Contains("data.content"));
  place.hub.state.files["text/a.txt"].bytes[7] ^= 1;
  place.tell(stored + "log.metrics=b.jsonl");
}

TEST_CASE("addresses that cannot be used are one error with their key") {
  const Place place;
  CHECK_THAT(place.refusal(local + "log.metrics=hf:owner/name"),
             Contains("log.metrics") && Contains("no place of a store"));
  CHECK_THAT(place.refusal("train run.toml model.from=gs:a/b " + text_here),
             Contains("model.from") && Contains("'gs'") && Contains("hf"));
  CHECK_THAT(place.refusal("train run.toml model.from=hf:owner/name/../x " + text_here),
             Contains("'..'"));
  CHECK_THAT(place.refusal("train run.toml model.from=hf:owner/name/nothing " + text_here),
             Contains("model.from") && Contains("nothing of this name"));
  CHECK_THAT(place.refusal("generate hf:owner/name@v9/model --prompt x"), Contains("v9"));
  CHECK(!fs::exists(place / "saved"));
  // A file with such a name.
  place.write("hf:x", read_file(place.path() / "text.txt"));
  place.tell(
      "train run.toml model.from=model 'data.text=[\"./hf:x\"]' train.steps=1 log.metrics=c.jsonl");
}

TEST_CASE("a run's checkpoints are in a bucket, and it continues from there") {
  Place place;
  place.tell(local);
  const std::string run = local + "checkpoint.folder=s3://bucket/run log.metrics=b.jsonl ";
  place.tell(run + "train.steps=4");
  CHECK(!fs::exists(place / "s3:"));
  place.tell(run);
  CHECK(place.losses("b.jsonl") == place.losses("a.jsonl"));
  CHECK_THAT(place.tell("checkpoint info s3://bucket/run/step-00000006"), Contains("6"));
  place.tell("checkpoint verify s3://bucket/run");
  place.tell("checkpoint export s3://bucket/run/step-00000006 --to out --format transformers");
  place.tell("checkpoint export saved/step-00000006 --to same --format transformers");
  CHECK(read_file(place.path() / "out/model.safetensors") ==
        read_file(place.path() / "same/model.safetensors"));
  CHECK_THAT(place.tell("replay s3://bucket/run --step 5 --rows"), Contains("text.txt"));
  place.tell("verify s3://bucket/run --steps 3:6");
  // A bucket that is not there.
  CHECK_THAT(place.refusal(local + "checkpoint.folder=s3://other/run"), Contains("s3://other"));
}

TEST_CASE("a full bucket stops no run: its state is saved here, and the run goes on") {
  Place place;
  place.bucket.state.room = 2000;
  const Answer answer = place.ask(local + "checkpoint.folder=s3://bucket/run");
  INFO(answer.out << answer.error);
  CHECK(answer.code == 1);
  CHECK_THAT(answer.out + answer.error, Contains("run.unsaved"));
  CHECK(place.losses("a.jsonl").size() == 6);
  place.bucket.state.room = std::size_t{1} << 40;
  place.tell(local +
             "checkpoint.folder=s3://bucket/run train.steps=8 "
             "checkpoint.resume=run.unsaved/step-00000006");
  CHECK(place.losses("a.jsonl").size() == 8);
}
