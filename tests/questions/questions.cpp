// Runs of the program, and what it answers about them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "asked.hpp"
#include "catch.hpp"
#include "folder.hpp"
#include "random_page.hpp"
#include "texts.hpp"

namespace {

using namespace asked;

/// The places of a step's rows, in the order of the rows.
std::vector<std::string> places_of(const Json& where) {
  std::vector<std::string> places;
  for (const Json& row : where["rows"]) {
    for (const Json& record : row["records"]) {
      places.push_back(record["place"].get<std::string>());
    }
  }
  return places;
}

std::string line(const Folder& folder, std::uint64_t number) {
  return folder / ("rows.jsonl:" + std::to_string(number + 1));
}

struct Layout {
  std::string name;
  std::string data = "";
  std::string train = "";
  std::string more = "";
};

}  // namespace

TEST_CASE("the rows of a step are those of the page on the order of data, in every epoch") {
  const Folder folder;
  folder.write("rows.jsonl", records(10));
  folder.write("run.toml",
               config(jsonl, "steps = 9\nbatch = 4\nmicro_batch = 1\nseed = 3\n", sharded));
  train(folder);
  std::map<std::string, std::vector<std::pair<int, int>>> steps_of;
  for (int step = 1; step <= 9; ++step) {
    const Json where = json_of(folder, "data where saved --step " + std::to_string(step));
    REQUIRE(where["rows"].size() == 4);
    for (int row = 0; row < 4; ++row) {
      const auto position = static_cast<std::uint64_t>((step - 1) * 4 + row);
      const std::string place =
          line(folder, random_page::order(10, 3, position / 10, position % 10));
      const Json& found = where["rows"][static_cast<std::size_t>(row)];
      CHECK(found["records"][0]["place"] == place);
      CHECK(found["epoch"] == position / 10 + 1);
      // Two ranks share the batch, and take a row at a time.
      CHECK(found["ranks"] == Json({row / 2}));
      CHECK(found["micro_batch"] == row % 2);
      steps_of[place].emplace_back(step, row);
    }
  }
  for (const auto& [place, steps] : steps_of) {
    const Json seen = json_of(folder, "data seen saved " + place);
    std::vector<std::pair<int, int>> found;
    for (const Json& one : seen["steps"]) {
      found.emplace_back(one["step"].get<int>(), one["row"].get<int>());
    }
    CHECK(found == steps);
  }
}

TEST_CASE("documents of packed rows have their tokens, and windows of texts their bytes") {
  const Folder folder;
  folder.write("rows.jsonl", records(12));
  folder.write("run.toml", config(jsonl + "packing = \"documents\"\norder = \"sequential\"\n",
                                  "steps = 2\nbatch = 2\n"));
  train(folder);
  const Json where = json_of(folder, "data where saved --step 1");
  std::set<std::string> places;
  for (const Json& row : where["rows"]) {
    std::int64_t end = 0;
    for (const Json& record : row["records"]) {
      CHECK(record["begin"] == end);
      end = record["end"].get<std::int64_t>();
      const int i = record["number"].get<int>() - 1;
      // "nI: " and the letters, and the end token is predicted.
      const int letters = 3 + i % 7;
      CHECK(record["trained"].get<int>() >= letters);
      places.insert(record["place"].get<std::string>());
    }
    CHECK(end <= 24);
  }
  CHECK(places.size() == places_of(where).size());
  CHECK(places.size() > 2);

  const Folder texts;
  texts.write("text.txt", std::string(1000, 'x') + std::string(1000, 'y'));
  texts.write("run.toml",
              config("text = [\"text.txt\"]\norder = \"sequential\"\n", "steps = 2\nbatch = 3\n"));
  train(texts);
  CHECK(places_of(json_of(texts, "data where saved --step 2")) ==
        std::vector<std::string>{texts / "text.txt:72", texts / "text.txt:96",
                                 texts / "text.txt:120"});
  const Json seen = json_of(texts, "data seen saved text.txt:100");
  CHECK(seen["steps"] == Json::parse(R"([{"step": 2, "row": 1, "excluded": false}])"));
}

TEST_CASE(
    "a step that is replayed has the recorded bits, and the losses of its rows are its loss") {
  const std::vector<Layout> layouts = {
      {"one rank", "", "micro_batch = 2\n"},
      {"dropout, captured", "", "micro_batch = 1\n", "[graph]\ncapture = true\n"},
      {"fully sharded, packed", "packing = \"documents\"\n", "", sharded},
      {"tensor parallel, checkpointed", "", "activation_checkpointing = true\n", tensor_parallel},
      {"logits in parts", "", "head_rows = 16\n", sharded},
      {"any layout", "", "reproducible = \"layout\"\nvirtual_shards = 4\n", sharded}};
  for (const Layout& layout : layouts) {
    INFO(layout.name);
    const Folder folder;
    folder.write("rows.jsonl", records(60));
    std::string text =
        config(jsonl + layout.data, "steps = 8\nbatch = 4\n" + layout.train, layout.more);
    if (layout.name.starts_with("dropout")) {
      text.insert(text.find("[data]"), "dropout = 0.2\n");
    }
    folder.write("run.toml", text);
    train(folder);
    const auto before = folder.names_below("saved");
    const std::string metrics = read_file(folder / "metrics.jsonl");
    const Json step = json_of(folder, "replay saved --step 7 --rows --modules");
    CHECK(step["same"] == true);
    CHECK(step["rows_are_loss"] == true);
    CHECK(step["checkpoint"].get<std::string>().ends_with("step-00000004"));
    double sum = 0;
    std::int64_t trained = 0;
    for (const Json& row : step["rows"]) {
      double of_documents = 0;
      for (const Json& document : row["documents"]) {
        of_documents += document["loss"].get<double>();
      }
      CHECK(of_documents == Approx(row["loss"].get<double>()));
      sum += row["loss"].get<double>();
      trained += row["trained"].get<std::int64_t>();
    }
    CHECK(step["rows"].size() == 4);
    CHECK(sum / static_cast<double>(trained) == Approx(step["loss"].get<double>()).epsilon(1e-5));
    std::set<std::string> modules;
    for (const Json& module : step["modules"]) {
      modules.insert(module["name"].get<std::string>());
      CHECK(module["activations"].get<double>() > 0);
    }
    CHECK(modules.contains("model.layers.1.mlp.down_proj"));
    CHECK(step["updates"][0]["change"].get<double>() > 0);
    // Nothing of the run was written.
    CHECK(folder.names_below("saved") == before);
    CHECK(read_file(folder / "metrics.jsonl") == metrics);
    if (layout.name == "any layout") {
      folder.write("other.toml", config(jsonl, "steps = 8\nbatch = 4\n" + layout.train));
      CHECK(json_of(folder, "replay saved --step 7 --layout other.toml")["same"] == true);
    }
  }
}

TEST_CASE("what a model adds to the losses of rows is named, and they and it are the loss") {
  const std::string mixture = "family = \"mixtral\"\nexperts = 4\nexperts_per_token = 2\n";
  const std::string balanced = "[experts]\nbalance_loss = 0.5\nz_loss = 0.1\nbias_rate = 0.01\n";
  const std::string further =
      "family = \"deepseek_v3\"\nexperts = 4\nexperts_per_token = 2\nfurther_layers = 1\n";
  const std::string stages =
      "[mesh]\naxes = [\"stage\"]\nshape = [2]\n[[parallel]]\nstyle = \"Pipeline\"\n"
      "axis = \"stage\"\non = [\".\"]\n";
  struct Case {
    std::string name;
    std::string model;
    std::string more;
    std::set<std::string> terms;
    bool packed = false;
  };
  const std::vector<Case> cases = {
      {"experts", mixture, balanced, {"experts"}},
      {"experts, fully sharded, packed", mixture, balanced + sharded, {"experts"}, true},
      {"further tokens", further, "", {"further tokens"}},
      {"further tokens and experts, fully sharded",
       further,
       balanced + sharded,
       {"experts", "further tokens"}},
      {"stages", "", stages, {}}};
  for (const Case& one : cases) {
    INFO(one.name);
    const Folder folder;
    folder.write("rows.jsonl", records(60));
    std::string text = config(jsonl + (one.packed ? "packing = \"documents\"\n" : ""),
                              "steps = 8\nbatch = 4\nmicro_batch = 2\n", one.more);
    text.insert(text.find("[data]"), one.model);
    folder.write("run.toml", text);
    train(folder);
    const Json step = json_of(folder, "replay saved --step 7 --rows");
    CHECK(step["same"] == true);
    CHECK(step["rows_are_loss"] == true);
    double sum = 0;
    std::int64_t trained = 0;
    for (const Json& row : step["rows"]) {
      sum += row["loss"].get<double>();
      trained += row["trained"].get<std::int64_t>();
    }
    CHECK(step["rows"].size() == 4);
    const double loss = step["loss"].get<double>() * static_cast<double>(trained);
    std::set<std::string> names;
    for (const auto& [name, term] : step["terms"].items()) {
      names.insert(name);
      CHECK(term.get<double>() > 0.01 * loss);  // it is not lost in the tolerance
      sum += term.get<double>();
    }
    CHECK(names == one.terms);
    CHECK(sum == Approx(loss).epsilon(1e-5));
  }
}

TEST_CASE("a run that is continued without rows takes all others in their order") {
  for (const bool packed : {false, true}) {
    const Folder folder;
    folder.write("rows.jsonl", records(20));
    folder.write("run.toml", config(jsonl + (packed ? "packing = \"documents\"\n" : ""),
                                    "steps = 16\nbatch = 3\n"));
    train(folder, "train.steps=4");
    std::vector<std::string> all;  // without what is left out
    const auto take = [&](int first, int last) {
      std::vector<std::string> places;
      for (int step = first; step <= last; ++step) {
        const Json where = json_of(folder, "data where saved --step " + std::to_string(step));
        for (const Json& row : where["rows"]) {
          for (const Json& record : row["records"]) {
            if (!record.contains("excluded")) {
              places.push_back(record["place"].get<std::string>());
            }
          }
        }
      }
      return places;
    };
    REQUIRE(
        ask(folder, "train run.toml train.steps=22 checkpoint.folder=whole log.metrics=whole.jsonl")
            .code == 0);
    std::vector<std::string> whole;
    for (int step = 5; step <= 22; ++step) {
      for (const std::string& place :
           places_of(json_of(folder, "data where whole --step " + std::to_string(step)))) {
        whole.push_back(place);
      }
    }
    const std::set<std::string> out = {line(folder, 4), line(folder, 11), line(folder, 12)};
    std::string list = "# rows without a meaning\n\n";
    for (const std::string& place : out) {
      list += place + "\n";
    }
    folder.write("out.txt.rows", list);
    train(folder, "data.exclude=out.txt.rows train.steps=12");
    std::erase_if(whole, [&](const std::string& place) { return out.contains(place); });
    const std::vector<std::string> taken = take(5, 12);
    REQUIRE(taken.size() <= whole.size());
    CHECK(taken ==
          std::vector<std::string>(whole.begin(), whole.begin() + static_cast<long>(taken.size())));
    // The exclusion is part of the checkpoint: without the key it holds all the same.
    train(folder);
    const std::vector<std::string> further = take(5, 16);
    REQUIRE(further.size() <= whole.size());
    CHECK(further == std::vector<std::string>(whole.begin(),
                                              whole.begin() + static_cast<long>(further.size())));
    CHECK(json_of(folder, "replay saved --step 15 --rows")["same"] == true);
    // A document that is left out of a row that stays loses nothing.
    bool found = false;
    for (int step = 5; packed && step <= 16 && !found; ++step) {
      const std::string number = std::to_string(step);
      const Json where = json_of(folder, "data where saved --step " + number);
      for (const Json& row : where["rows"]) {
        found = found || std::ranges::any_of(row["records"], [](const Json& record) {
                  return record.contains("excluded");
                });
      }
      const Json replayed =
          found ? json_of(folder, "replay saved --rows --step " + number) : Json::object();
      for (const Json& row : replayed.value("rows", Json::array())) {
        double sum = 0;
        for (const Json& document : row["documents"]) {
          sum += document["loss"].get<double>();
        }
        CHECK(sum == Approx(row["loss"].get<double>()));
      }
    }
    CHECK(found == packed);
  }
}

TEST_CASE("what cannot be answered is an error that says why") {
  const Folder folder;
  folder.write("rows.jsonl", records(20));
  folder.write("run.toml", config(jsonl, "steps = 6\nbatch = 3\n"));
  train(folder);
  const auto error_of = [&](const std::string& arguments) {
    const Answer answer = ask(folder, arguments);
    INFO(arguments << answer.out);
    CHECK(answer.code == 2);
    return answer.error;
  };
  std::string error;
  CHECK(has(error_of("replay saved --step 4"), "there is no checkpoint before step 4"));
  CHECK(
      has(error_of("replay saved --step 7"), "the run has no such step (expected 1 to 6, got 7)"));
  CHECK(has(error_of("data where saved --step 0"), "no such step"));
  CHECK(has(error_of("data seen saved rows.jsonl:99"), "no row of the training has this place"));
  CHECK(has(error_of("data seen saved other.jsonl:1"), "no row of the training has this place"));
  CHECK(has(error_of("replay nowhere --step 5"), "there is no such folder"));
  CHECK(has(error_of("replay saved --step 5 --layout run.toml"),
            "the run's bits depend on its layout"));
  folder.write("twice.rows", line(folder, 3) + "\n" + line(folder, 3) + "\n");
  error = error_of("train run.toml data.exclude=twice.rows train.steps=8");
  CHECK(has(error, "twice.rows:2"));
  CHECK(has(error, "is named twice"));
  folder.write("unknown.rows", line(folder, 30) + "\n");
  CHECK(has(error_of("train run.toml data.exclude=unknown.rows train.steps=8"),
            "no row of the training has this place"));
  folder.write("wrong.rows", "rows\n");
  error = error_of("train run.toml data.exclude=wrong.rows train.steps=8");
  CHECK(has(error, "wrong.rows:1"));
  CHECK(has(error, "it is not the place of a row"));
  std::string changed = records(20);
  changed[changed.find("aaa")] = 'b';
  folder.write("rows.jsonl", changed);
  CHECK(has(error_of("replay saved --step 5"),
            "the run's data have changed since: " + (folder / "rows.jsonl")));
  std::filesystem::remove(folder / "rows.jsonl");
  CHECK(has(error_of("data where saved --step 5"), "which is gone"));
}

namespace {

/// Records that follow one rule, but for some: labels exchanged, binary text, one token repeated.
std::string poisoned(int count, const std::set<int>& bad) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const char a = static_cast<char>('a' + (i * 7 + i / 5) % 5);
    std::string completion = std::string(3, static_cast<char>(a + 1)) + std::string(3, a);
    if (bad.contains(i)) {
      completion = i % 3 == 0   ? "ZQJXWV"
                   : i % 3 == 1 ? "\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006"
                                : "~~~~~~~~~~~~";
    }
    text += R"({"prompt": "after )" + std::string(1, a) + R"(: ", "completion": ")" + completion +
            "\"}\n";
  }
  return text;
}

Json metrics_of(const Folder& folder, const std::string& file) {
  Json all = Json::array();
  for (const std::string& one : lines_of(read_file(folder / file))) {
    all.push_back(Json::parse(one));
  }
  return all;
}

const std::string rule =
    "steps = 200\nbatch = 8\nseed = 2\non_spike = { over = 60, action = \"ACTION\" }\n";

std::string spiked_config(const std::string& action, const Layout& layout) {
  std::string train = rule;
  train.replace(train.find("ACTION"), 6, action);
  return config(jsonl + "order = \"sequential\"\n" + layout.data, train + layout.train,
                layout.more + "[optimizer]\nlr = 0.005\nwarmup = 5\n");
}

}  // namespace

TEST_CASE("a step with poisoned rows is named, left out, or gone back from") {
  for (const Layout& layout : std::vector<Layout>{
           {"one rank"},
           {"captured, sharded", "", "micro_batch = 1\n", sharded + "[graph]\ncapture = true\n"}}) {
    const Folder folder;
    folder.write("rows.jsonl", poisoned(1600, {1440, 1441, 1442}));
    const std::set<std::string> bad = {line(folder, 1440), line(folder, 1441), line(folder, 1442)};
    INFO(layout.name);
    folder.write("run.toml", spiked_config("skip", layout));
    const Answer skipped = ask(folder, "train run.toml");
    INFO(skipped.out << skipped.error);
    REQUIRE(skipped.code == 0);
    std::vector<int> steps;
    for (const Json& one : metrics_of(folder, "metrics.jsonl")) {
      if (one.contains("spike")) {
        CHECK(one["skipped"] == true);
        steps.push_back(one["step"].get<int>());
      }
    }
    REQUIRE_FALSE(steps.empty());
    std::set<std::string> named;
    for (const int step : steps) {
      const Json replayed = json_of(folder, "replay saved --rows --step " + std::to_string(step));
      CHECK(replayed["same"] == true);
      CHECK(replayed["skipped"] == true);
      for (std::size_t row = 0; row < 3; ++row) {
        named.insert(replayed["rows"][row]["documents"][0]["place"].get<std::string>());
      }
    }
    CHECK(named == bad);
    for (const std::string& place : named) {
      CHECK(has(skipped.out + skipped.error, place.substr(place.rfind('/') + 1)));
    }
    folder.write("run.toml", spiked_config("rollback", layout));
    const Answer back = ask(folder, "train run.toml checkpoint.folder=back log.metrics=back.jsonl");
    INFO(back.out << back.error);
    REQUIRE(back.code == 0);
    int last = 0;
    for (const Json& one : metrics_of(folder, "back.jsonl")) {
      CHECK(one["step"].get<int>() == ++last);  // no step twice
      CHECK_FALSE(one.contains("spike"));
    }
    CHECK(last == 200);
    CHECK(metrics_of(folder, "back.jsonl").back()["excluded_rows"] == 8);
    for (const std::string& place : named) {
      const Json seen = json_of(folder, "data seen back " + place);
      CHECK(seen["steps"].empty());
    }
    folder.write("run.toml", spiked_config("stop", layout));
    const Answer stopped =
        ask(folder, "train run.toml checkpoint.folder=stop log.metrics=stop.jsonl");
    CHECK(stopped.code == 1);
    CHECK(stopped.error.find("is far above the") != std::string::npos);
  }
}

TEST_CASE("the state of the detector is part of a checkpoint") {
  const Folder folder;
  folder.write("rows.jsonl", poisoned(1600, {1440, 1441, 1442}));
  folder.write("run.toml", spiked_config("skip", {}));
  train(folder);
  train(
      folder,
      "checkpoint.folder=parts log.metrics=parts.jsonl train.steps=20 optimizer.schedule=constant");
  train(folder, "checkpoint.folder=parts log.metrics=parts.jsonl");
  const Json whole = metrics_of(folder, "metrics.jsonl");
  const Json parts = metrics_of(folder, "parts.jsonl");
  REQUIRE(whole.size() == parts.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i]["loss"] == parts[i]["loss"]);
    CHECK(whole[i].contains("spike") == parts[i].contains("spike"));
  }
}

TEST_CASE("poisoned rows are named by replays in five layouts, and a run goes on without them",
          "[.long]") {
  std::set<int> bad;
  for (int i = 1440; i < 1540; ++i) {
    bad.insert(i);
  }
  const std::vector<Layout> layouts = {
      {"one rank"},
      {"captured, sharded", "", "micro_batch = 1\n", sharded + "[graph]\ncapture = true\n"},
      {"sharded", "", "", sharded},
      {"tensor parallel", "", "micro_batch = 2\n", tensor_parallel},
      {"any layout", "", "reproducible = \"layout\"\nvirtual_shards = 4\n", sharded}};
  for (const Layout& layout : layouts) {
    INFO(layout.name);
    const Folder folder;
    folder.write("rows.jsonl", poisoned(1600, bad));
    folder.write("valid.jsonl", poisoned(64, {}));
    std::string text = spiked_config("warn", layout);
    text.replace(text.find("validation = 0"), 14, "validation_files = [\"valid.jsonl\"]");
    folder.write("run.toml", text);
    train(folder);
    // In the step of the first ones, before they were learned, each loses more than any good row.
    const Json step = json_of(folder, "replay saved --rows --step 181");
    std::set<std::string> named;
    for (const Json& row : step["rows"]) {
      named.insert(row["documents"][0]["place"].get<std::string>());
      CHECK(row["loss"].get<double>() / row["trained"].get<double>() > 3);
    }
    for (int i = 1440; i < 1448; ++i) {
      CHECK(named.contains(line(folder, static_cast<std::uint64_t>(i))));
    }
    text.replace(text.find("\"warn\""), 6, "\"rollback\"");
    text.replace(text.find("steps = 200"), 11, "steps = 187");
    folder.write("run.toml", text);
    train(folder, "checkpoint.folder=back log.metrics=back.jsonl");
    // A run that never had them.
    std::string clean;
    int number = 0;
    for (const std::string& one : lines_of(read_file(folder / "rows.jsonl"))) {
      clean += bad.contains(number++) ? "" : one + "\n";
    }
    folder.write("clean.jsonl", clean);
    train(folder,
          "checkpoint.folder=clean log.metrics=clean.metrics 'data.jsonl=[\"clean.jsonl\"]'");
    const double back = metrics_of(folder, "back.jsonl").back()["validation_loss"].get<double>();
    const double never =
        metrics_of(folder, "clean.metrics").back()["validation_loss"].get<double>();
    INFO(back << " and " << never);
    CHECK(back == Approx(never).epsilon(0.01));
  }
}
