// Two runs, builds and layouts of which one computes something else: bisect names where.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "asked.hpp"
#include "catch.hpp"
#include "folder.hpp"
#include "texts.hpp"

namespace {

using namespace asked;

const std::string bend =
    "[[parallel]]\nstyle = \"Bend\"\naxis = \"one\"\non = [\"model.layers.0.mlp.down_proj\"]\n";
const std::string one_rank = "[mesh]\naxes = [\"one\"]\nshape = [1]\n";

/// A version of the plugin in tests/questions/libraries/bend.cpp.
std::string plugin(const std::string& version) {
  return "[plugins]\npaths = [\"" BISECT_LIBRARIES "/" + version + "/Bend.so\"]\n";
}

std::string bent(const std::string& version, const std::string& train = "",
                 const std::string& mesh = one_rank + bend) {
  return config(jsonl, "steps = 8\nbatch = 4\nthreads = 1\n" + train, mesh + plugin(version));
}

/// A run of a config in a folder of its own: "NAME/saved" of `folder`.
void train_as(const Folder& folder, const std::string& name, const std::string& text) {
  folder.write(name + ".toml", text);
  const Answer answer = ask(folder, "train " + name + ".toml checkpoint.folder=" + name +
                                        " log.metrics=" + name + ".jsonl");
  INFO(name << "\n" << answer.out << answer.error);
  REQUIRE(answer.code == 0);
}

}  // namespace

TEST_CASE("a wrong operator, style or optimizer of a plugin is named, with element and values") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  train_as(folder, "right", bent("right"));
  train_as(folder, "again", bent("right"));
  CHECK(json_of(folder, "bisect right again")["same"] == true);
  const Json equal = json_of(folder, "bisect right again --step 7");
  CHECK(equal["same"] == true);
  CHECK(equal["compared"].get<int>() > 100);
  CHECK(equal["only_first"] == 0);
  CHECK(equal["only_second"] == 0);

  train_as(folder, "operator", bent("operator"));
  for (const char* const step : {"", " --step 6"}) {
    const Json wrong = json_of(folder, "bisect right operator" + std::string(step), 1);
    INFO(wrong.dump(1));
    CHECK(wrong["step"] == (*step == 0 ? 1 : 6));
    if (*step == 0) {
      CHECK(wrong["call"]["operator"] == "bend");
      CHECK(wrong["call"]["phase"] == "forward");
      CHECK(wrong["call"]["module"] == "model.layers.0.mlp.down_proj");
      CHECK(wrong["begins_here"] == true);
      CHECK(wrong["operands"].empty());
      REQUIRE(wrong["elements"].size() == 1);
      const Json& element = wrong["elements"][0];
      CHECK(element["of"] == "result");
      CHECK(element["element"] == Json({0, 0, 5}));
      CHECK(element["differing"] == 1);
      CHECK(element["second"].get<double>() - element["first"].get<double>() == Approx(0.125));
    } else {  // the runs had been apart before
      CHECK(wrong["call"]["phase"] == "start");
      CHECK(has(wrong["text"].get<std::string>(), "the difference is older"));
    }
  }
  train_as(folder, "style", bent("style"));
  const Json style = json_of(folder, "bisect right style", 1);
  CHECK(style["call"]["operator"] == "mul_scalar");
  CHECK(style["call"]["module"] == "model.layers.0.mlp.down_proj");
  CHECK(style["other_arguments"] == true);
  CHECK(has(style["text"].get<std::string>(), "1.25"));

  const std::string slope = "[optimizer]\nname = \"slope\"\nlr = 0.01\nwarmup = 1\n";
  train_as(folder, "down", bent("right") + slope);
  train_as(folder, "steep", bent("optimizer") + slope);
  const Json optimizer = json_of(folder, "bisect down steep", 1);
  INFO(optimizer.dump(1));
  CHECK(optimizer["recorded"]["step"] == 2);
  CHECK(optimizer["call"]["step"] == 1);
  CHECK(optimizer["call"]["phase"] == "optimizer");
  CHECK(optimizer["call"]["operator"] == "foreach_mul_");
}

TEST_CASE("a row of the data that was another one is named before any operator") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  std::string other = records(40);
  const std::size_t place = other.find("n17: ");
  other[place + 1] = '9';
  folder.write("other.jsonl", other);
  const std::string text = config(jsonl, "steps = 8\nbatch = 4\nthreads = 1\n");
  std::string changed = text;
  changed.replace(changed.find("rows.jsonl"), 10, "other.jsonl");
  train_as(folder, "first", text);
  train_as(folder, "second", changed);
  const Json found = json_of(folder, "bisect first second", 1);
  CHECK(has(found["row"]["first"].get<std::string>(), "rows.jsonl:18"));
  CHECK(has(found["row"]["second"].get<std::string>(), "other.jsonl:18"));
  CHECK_FALSE(found.contains("call"));
}

TEST_CASE("runs of several layouts agree within the tolerance, and a wrong operator stands out") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  const std::string more = "seed = 5\n";
  train_as(folder, "one", bent("right", more));
  for (std::string mesh : {sharded, tensor_parallel}) {
    // The style has an axis of its own.
    mesh.replace(mesh.find("axes = ["), 8, "axes = [\"one\", ");
    mesh.replace(mesh.find("shape = ["), 9, "shape = [1, ");
    for (const char* const version : {"right", "operator"}) {
      INFO(mesh << version);
      folder.write("other.toml", bent(version, more, mesh + bend));
      const bool right = version == std::string("right");
      const Json found = json_of(folder, "bisect one --step 6 --layout other.toml", right ? 0 : 1);
      INFO(found.dump(1));
      CHECK(found["view"] == "written");
      CHECK(found["compared"].get<int>() > (right ? 100 : 10));
      if (!right) {
        CHECK(found["call"]["step"] == 5);  // the first one after the checkpoint
        CHECK(found["call"]["operator"] == "bend");
        CHECK(found["call"]["module"] == "model.layers.0.mlp.down_proj");
        CHECK(found["begins_here"] == true);
        CHECK_FALSE(found["elements"].empty());
      }
    }
  }
}

TEST_CASE("what cannot be compared is an error that says why, and nothing of a run is written") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  const std::string text = config(jsonl, "steps = 8\nbatch = 4\nthreads = 1\n");
  train_as(folder, "one", text);
  std::string deeper = text;
  deeper.replace(deeper.find("layers = 2"), 10, "layers = 3");
  train_as(folder, "deep", deeper);
  train_as(folder, "faster", text + "[optimizer]\nlr = 0.1\n");
  const auto before = folder.names_below("one");
  const auto error_of = [&](const std::string& arguments) {
    const Answer answer = ask(folder, "bisect " + arguments);
    INFO(arguments << answer.out << answer.error);
    CHECK(answer.code == 2);
    return answer.error;
  };
  CHECK(has(error_of("one"), "there is nothing to compare the run with"));
  CHECK(has(error_of("one deep"), "they are runs of different models: model.layers differs"));
  CHECK(has(error_of("one faster"), "they are not runs of one config: optimizer.lr differs"));
  CHECK(has(error_of("one nowhere"), "there is no such folder"));
  CHECK(has(error_of("one one --step 9"), "the run has no such step (expected 1 to 8, got 9)"));
  CHECK(has(error_of("one one --step 3"), "there is no checkpoint before step 3"));
  CHECK(has(error_of("one --against captured"), "there is no such way"));
  CHECK(has(error_of("one --other-program ./no-program"), "./no-program cannot be started"));
  CHECK(has(error_of("one --other-program /bin/false"), "/bin/false ended with 1"));
  CHECK(has(error_of("one one --step 6 --tolerance 2"), "--tolerance"));
  CHECK(has(error_of("one one --step 6 --keep one"), "is not empty"));
  CHECK(has(error_of("one --layout faster.toml"), "its config is of another run"));
  std::filesystem::remove(folder.path() / "one.jsonl");
  CHECK(has(error_of("one faster"), "they are not runs"));
  train_as(folder, "two", text);
  CHECK(has(error_of("one two"), "its metrics file is gone"));
  CHECK(json_of(folder, "bisect one two --step 6")["same"] == true);
  CHECK(folder.names_below("one") == before);
  folder.write("rows.jsonl", records(41));
  CHECK(has(error_of("one two --step 6"), "the run's data have changed since"));
}

TEST_CASE("a captured step has the calls of the step as it is written") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  train_as(folder, "run", bent("right") + "[graph]\ncapture = true\n");
  const Json found = json_of(folder, "bisect run --against eager");
  INFO(found.dump(1));
  CHECK(found["same"] == true);
  CHECK(found["compared"].get<int>() > 50);
}

TEST_CASE("the first operator that is wrong on a new device is found by one command") {
  const Folder folder;
  folder.write("rows.jsonl", records(40));
  train_as(folder, "run", config(jsonl, "steps = 8\nbatch = 4\nthreads = 1\n"));
  const auto command = [](const std::string& version) {
    return "bisect run --device Toy --plugin " BISECT_DEVICES "/" + version + "/Toy.so";
  };
  const Json right = json_of(folder, command("right"));
  CHECK(right["same"] == true);
  CHECK(right["compared"].get<int>() > 100);
  const Json wrong = json_of(folder, command("wrong"), 1);
  INFO(wrong.dump(1));
  CHECK(wrong["call"]["operator"] == "swiglu");
  CHECK(wrong["call"]["module"] == "model.layers.0.mlp");
  CHECK(wrong["call"]["phase"] == "forward");
  CHECK(wrong["begins_here"] == true);
  CHECK(wrong["elements"][0]["element"] == Json({0, 0, 7}));
}
