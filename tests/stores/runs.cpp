// Runs and commands of the program whose model, data and checkpoints are in stores.
#include <filesystem>
#include <string>

#include "catch.hpp"
#include "stored_place.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using tessera::testing::read_file;

using Place = tessera::testing::StoredPlace;
using Answer = tessera::testing::CommandAnswer;

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
