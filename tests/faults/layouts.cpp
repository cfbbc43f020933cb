#include "layouts.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <tuple>

#include "catch.hpp"

namespace faults {

namespace {

namespace fs = std::filesystem;

const Words fsdp = {"mesh.axes=[shard]", "mesh.shape=[2]",
                    R"(parallel=[{style=FSDP,axis=shard,on=["model.layers.*","."]}])"};

}  // namespace

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Kind sharded{"FSDP", 2, fsdp};
const Kind captured{"FSDP, captured", 2, with(fsdp, {"graph.capture=true"})};
const Kind mixed{"FSDP and tensor parallel", 4, {}};  // what small_run is
const Kind hybrid{"hybrid",
                  4,
                  {"mesh.axes=[copy,shard]", "mesh.shape=[2,2]",
                   R"(parallel=[{style=Replicate,axis=copy,on=["."]},)"
                   R"({style=FSDP,axis=shard,on=["model.layers.*","."]}])"}};
const Kind pipeline{"pipeline",
                    2,
                    {"mesh.axes=[pipe]", "mesh.shape=[2]", "train.micro_batch=1",
                     R"(parallel=[{style=Pipeline,axis=pipe,on=["."]}])"}};
const Kind captured_pipeline{"pipeline, captured", 2,
                             with(pipeline.arguments, {"graph.capture=true"})};
const Kind lone{"one rank", 1, {"mesh.axes=[]", "mesh.shape=[]", "parallel=[]"}};

Words train(const Kind& kind, const Words& more) {
  return with(
      with({"train", "run.toml", "train.steps=" + std::to_string(kind.steps), "checkpoint.every=7",
            "checkpoint.keep=2", "train.threads=1", "model.dropout=0.1"},
           kind.arguments),
      more);
}

Words healing(const Kind& kind, const Words& more) {
  return train(kind,
               with({"train.heal=true", "train.heal_after=1", "train.heal_limit=1000000"}, more));
}

Words curve(const RunFolder& folder) {
  Words lines;
  for (const std::string& line : lines_of(read_file(folder / "metrics.jsonl"))) {
    std::string values;
    for (const char* name : {"\"step\":", "\"loss\":", "\"grad_norm\":", "\"lr\":"}) {
      const std::size_t begin = line.find(name);
      values += line.substr(begin, line.find(',', begin) - begin) + " ";
    }
    lines.push_back(values);
  }
  return lines;
}

Ending ending_of(const RunFolder& folder) {
  Ending ending{curve(folder), {}};
  const Words saved = checkpoints(folder / "checkpoints");
  for (const auto& entry : fs::directory_iterator(fs::path(folder / "checkpoints") /
                                                  (saved.empty() ? "" : saved.back()))) {
    const std::string name = saved.back() + "/" + entry.path().filename().string();
    ending.files[name] = name.ends_with(".json") ? "" : read_file(entry.path());
  }
  return ending;
}

const Ending& undisturbed(const Kind& kind, const Words& more) {
  static std::map<std::tuple<std::string, std::int64_t, Words>, Ending> known;
  Ending& ending = known[{kind.name, kind.steps, more}];
  if (ending.curve.empty()) {
    const RunFolder folder;
    const Result result = run(folder, train(kind, more));
    INFO(kind.name << ": " << result.error);
    REQUIRE(result.code == 0);
    ending = ending_of(folder);
    REQUIRE(ending.curve.size() == static_cast<std::size_t>(kind.steps));
  }
  return ending;
}

}  // namespace faults
