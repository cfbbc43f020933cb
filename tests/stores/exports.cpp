// Exports in stores, and what commands other than training read there.
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "stored_place.hpp"

namespace {

using Catch::Contains;
using tessera::testing::CommandAnswer;
using tessera::testing::read_file;
using tessera::testing::Reply;
using tessera::testing::Request;
using tessera::testing::StoredPlace;

const std::string export_words = "checkpoint export begun/step-00000001 --to ";

/// The names of the objects below a folder of the bucket.
std::vector<std::string> names_in(StoredPlace& place, const std::string& folder) {
  const std::lock_guard guard(place.bucket.state.mutex);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : place.bucket.state.objects) {
    if (name.starts_with(folder + "/")) {
      names.push_back(name.substr(folder.size() + 1));
    }
  }
  return names;
}

}  // namespace

TEST_CASE("an export in a bucket has the files and bytes of one in a folder") {
  StoredPlace place;
  CHECK_THAT(place.tell(export_words + "s3://bucket/out"), Contains("s3://bucket/out"));
  CHECK(!std::filesystem::exists(place / "s3:"));
  CHECK(names_in(place, "out") == place.names_below("model"));
  for (const std::string& name : names_in(place, "out")) {
    INFO(name);
    if (name != "README.md") {  // it names the folder
      CHECK(place.bucket.state.objects.at("out/" + name) ==
            read_file(place.path() / "model" / name));
    }
  }
  const std::string words = " --prompt line --tokens 8 --temperature 0";
  CHECK(place.tell("generate s3://bucket/out" + words) == place.tell("generate model" + words));
  place.tell(export_words + "s3://bucket/file --format gguf");
  CHECK(names_in(place, "file") == std::vector<std::string>{"model.gguf", "record.json"});
  CHECK_THAT(place.tell("checkpoint diff s3://bucket/out model"), Contains("no tensor differs"));
  place.tell("checkpoint convert s3://bucket/out --to s3://bucket/torch --format torch");
  CHECK_THAT(place.tell("checkpoint diff s3://bucket/torch model"), Contains("no tensor differs"));
  // Nothing is replaced.
  CHECK_THAT(place.refusal(export_words + "s3://bucket/out"), Contains("config.json already"));
  CHECK_THAT(place.refusal(export_words + "hf:owner/name/out"), Contains("hf:owner/name/out"));
}

TEST_CASE("an export that ends before its end is none, and the next one completes it") {
  // Whatever request is the first that the bucket refuses for good, from then on.
  for (int last = 1; last < 40; ++last) {
    INFO(last);
    StoredPlace place;
    int requests = 0;
    place.bucket.state.before = [&](const Request&) -> std::optional<Reply> {
      return ++requests > last ? std::optional(Reply{.code = 403, .body = "<Error/>"})
                               : std::nullopt;
    };
    const CommandAnswer answer = place.ask(export_words + "s3://bucket/out");
    INFO(answer.out << answer.error);
    const std::vector<std::string> names = names_in(place, "out");
    if (answer.code == 0) {
      CHECK(names == place.names_below("model"));
      CHECK(last > 4);
      return;
    }
    CHECK(std::ranges::find(names, "config.json") == names.end());
    place.bucket.state.before = [](const Request&) { return std::optional<Reply>(); };
    place.tell(export_words + "s3://bucket/out");
    CHECK(names_in(place, "out") == place.names_below("model"));
  }
  FAIL("it never succeeded");
}

TEST_CASE("a run with keys and a token leaves them nowhere") {
  StoredPlace place;
  place.hub.state.token = "hf_hunter2";
  const std::string secret = place.bucket.state.secret;
  const std::string run =
      "train run.toml model.from=hf:owner/name/model 'data.text=[\"hf:owner/name/text\"]' "
      "checkpoint.folder=s3://bucket/run log.metrics=b.jsonl log.blackbox=box "
      "log.tensorboard=board trace.file=t.json "
      "sinks='[{sink=command,options={command=[sh,-c,\"cat > events.jsonl\"]}}]' ";
  place.token = "hf_hunter2";
  place.tell(run);
  place.hub.state.token = "hf_another";
  const CommandAnswer refused = place.ask(run + "train.steps=8");
  CHECK(refused.code != 0);
  place.hub.state.token = "hf_hunter2";
  place.tell("checkpoint export s3://bucket/run/step-00000006 --to s3://bucket/out");
  // Servers that repeat what they were sent.
  place.hub.state.fault = [](const Request& request, Reply& reply) {
    reply = {.code = 403, .body = request.head};
  };
  const CommandAnswer repeated = place.ask(run + "train.steps=8");
  CHECK(repeated.code != 0);
  place.bucket.state.before = [](const Request& request) {
    return std::optional(Reply{
        .code = 403,
        .body = "<Error><Code>AccessDenied</Code><Message>" + request.head + "</Message></Error>"});
  };
  const CommandAnswer wrong_key = place.ask("checkpoint info s3://bucket/run/step-00000006");
  CHECK(wrong_key.code != 0);
  place.bucket.state.before = [](const Request&) { return std::optional<Reply>(); };
  const auto hides = [&](const std::string& name, const std::string& bytes) {
    INFO(name);
    CHECK(bytes.find("hunter2") == std::string::npos);
    CHECK(bytes.find(secret) == std::string::npos);
    CHECK(name.find("hunter2") == std::string::npos);
  };
  hides("refused", refused.out + refused.error);
  hides("repeated", repeated.out + repeated.error);
  hides("wrong key", wrong_key.out + wrong_key.error);
  CHECK(place.names_below().size() > 20);
  for (const std::string& name : place.names_below()) {
    if (std::filesystem::is_regular_file(place / name)) {
      hides(name, read_file(place / name));
    }
  }
  for (const auto& [name, bytes] : place.bucket.state.objects) {
    hides(name, bytes);
  }
}

TEST_CASE("a search for a layout asks a store once, however many candidates it has") {
  StoredPlace place;
  const std::string search =
      "plan run.toml model.from=hf:owner/name/model 'data.text=[\"hf:owner/name/text\"]' "
      "--search --ranks 2 --hardware rates.toml";
  place.tell(
      "plan run.toml model.from=hf:owner/name/model 'data.text=[\"hf:owner/name/text\"]' "
      "--save-hardware rates.toml");
  const auto lists = [&] {
    const std::lock_guard guard(place.hub.state.guard);
    return std::ranges::count_if(place.hub.state.seen, [](const std::string& path) {
      return path.find("/tree/") != std::string::npos;
    });
  };
  const auto before = lists();
  place.tell(search);
  CHECK(lists() - before <= 4);  // the model and the data, and whether they are a file
}

TEST_CASE("files that are not of an export are neither taken for it nor removed") {
  StoredPlace place;
  place.bucket.state.objects["out/mine.txt"] = "mine";
  CHECK_THAT(place.refusal(export_words + "s3://bucket/out"), Contains("mine.txt already"));
  CHECK(names_in(place, "out") == std::vector<std::string>{"mine.txt"});
}

TEST_CASE("tasks and their documents are read from a store, and results name the addresses") {
  StoredPlace place;
  const std::string task =
      "task: one\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: documents.jsonl\n"
      "test_split: test\noutput_type: multiple_choice\ndoc_to_text: \"{{q}}\"\n"
      "doc_to_choice: [\"a\", \"b\"]\ndoc_to_target: answer\n"
      "metric_list:\n  - metric: acc\n";
  const std::string documents =
      "{\"q\":\"line 1\",\"answer\":0}\n{\"q\":\"line 4\",\"answer\":1}\n";
  place.write("tasks/one.yaml", task);
  place.write("tasks/documents.jsonl", documents);
  place.hub.state.files["tasks/one.yaml"] = {task};
  place.hub.state.files["tasks/documents.jsonl"] = {documents};
  place.hub.state.files["tasks/large.bin"] = {"not read"};
  const std::string here = place.tell("evaluate model --json --tasks tasks/one.yaml");
  CHECK_THAT(here, Contains("acc"));
  CHECK(place.tell("evaluate model --json --tasks hf:owner/name/tasks/one.yaml") == here);
  CHECK(place.tell("evaluate model --json --tasks 'hf:owner/name/tasks/*.yaml'") == here);
  CHECK_THAT(place.refusal("evaluate model --tasks hf:owner/name/tasks/two.yaml"),
             Contains("two.yaml") && Contains("nothing of this name"));
  CHECK_THAT(place.tell("evaluate model --json --text hf:owner/name/text/a.txt"),
             Contains("\"hf:owner/name/text/a.txt\""));
}
