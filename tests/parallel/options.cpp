// Options of plugins: lists of any length, nested tables, and errors that name the value.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.options;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

using namespace tessera;
using parallel_test::error_of;

namespace {

using Options = parallel::Options;

/// The error of a read of these options, or of what no read requested.
std::string refused(const std::string& json, const std::function<void(Options&)>& read) {
  return error_of([&] {
    Options options(json, "run.toml:7: Style");
    read(options);
    options.finish();
  });
}

}  // namespace

TEST_CASE("options are lists of any length and nested tables") {
  Options options(R"~({"flags": [true, false], "sizes": [3, 5, 7], "scales": [0.5, 2],
                       "names": [], "mode": "fast",
                       "inner": {"placement": "Shard(1)", "deeper": {"depth": 2}},
                       "groups": [{"lr": 0.1}, {"lr": 0.2, "at": "Replicate"}]})~");
  CHECK(options.flags("flags") == std::vector<bool>{true, false});
  CHECK(options.integers("sizes") == std::vector<std::int64_t>{3, 5, 7});
  CHECK(options.numbers("scales") == std::vector<double>{0.5, 2});
  CHECK(options.texts("names", {"otherwise"}).empty());
  CHECK(options.texts("absent", {"otherwise"}) == std::vector<std::string>{"otherwise"});
  CHECK(options.choice("mode", "safe", {"safe", "fast"}) == "fast");
  Options inner = options.table("inner");
  CHECK(inner.placement("placement", Replicate()) == Shard(1));
  CHECK(inner.table("deeper").integer("depth", 1) == 2);
  CHECK(options.table("missing").integer("depth", 1) == 1);
  std::vector<Options> groups = options.tables("groups");
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].number("lr", 0) == 0.1);
  CHECK(groups[0].optional_placement("at") == std::nullopt);
  CHECK(groups[1].number("lr", 0) == 0.2);
  CHECK(groups[1].optional_placement("at") == Replicate());
  options.finish();
  std::vector<std::string> paths;
  for (const OptionUse& use : options.asked()) {
    paths.push_back(use.name);
  }
  for (const char* path : {"inner.deeper.depth", "groups[1].at", "mode", "missing.depth"}) {
    CHECK(std::ranges::find(paths, path) != paths.end());
  }
}

TEST_CASE("a wrong option is named by its path and its place in a list") {
  CHECK(refused(R"({"sizes": [3, 2.5]})", [](Options& o) { o.integers("sizes"); }) ==
        "run.toml:7: Style: option 'sizes[1]' must be a whole number (got 2.5)");
  CHECK(refused(R"({"sizes": 3})", [](Options& o) { o.integers("sizes"); }) ==
        "run.toml:7: Style: option 'sizes' must be a list of whole numbers (got 3)");
  CHECK(refused(R"({"flags": [1]})", [](Options& o) { o.flags("flags"); }) ==
        "run.toml:7: Style: option 'flags[0]' must be true or false (got 1)");
  CHECK(refused(R"({"names": ["a", []]})", [](Options& o) { o.texts("names"); }) ==
        "run.toml:7: Style: option 'names[1]' must be a text (got [])");
  CHECK(refused(R"({"mode": "fsat"})", [](Options& o) {
          o.choice("mode", "safe", {"safe", "fast"});
        }) == "run.toml:7: Style: option 'mode' must be \"safe\" or \"fast\" (got \"fsat\")");
  CHECK(refused(R"({"inner": 3})", [](Options& o) { o.table("inner"); }) ==
        "run.toml:7: Style: option 'inner' must be a table (got 3)");
  const auto nested = [](Options& o) {
    o.table("inner").table("deeper").integer("depth", 1);
    for (Options& group : o.tables("groups")) {
      group.placement("at", Replicate());
    }
  };
  CHECK(refused(R"({"inner": {"deeper": {"depth": true}}})", nested) ==
        "run.toml:7: Style: option 'inner.deeper.depth' must be a whole number (got true)");
  CHECK(refused(R"({"inner": {"deeper": {"dpeth": 1}}})", nested) ==
        "run.toml:7: Style: there is no option 'inner.deeper.dpeth' (options of 'inner.deeper': "
        "depth); did you mean 'depth'?");
  CHECK(refused(R"~({"groups": [{}, {"at": "Shrad(0)"}]})~", nested)
            .starts_with("run.toml:7: Style: option 'groups[1].at': "));
  CHECK(refused(R"({"groups": [{}, 4]})", nested) ==
        "run.toml:7: Style: option 'groups[1]' must be a table (got 4)");
  CHECK(refused(R"({"groups": [{"att": 4}]})", nested) ==
        "run.toml:7: Style: there is no option 'groups[0].att' (options of 'groups[0]': at); did "
        "you mean 'at'?");
  CHECK(error_of([] {
          Options options(R"({"inner": {}})", "here");
          options.table("inner").refuse("a and b do not fit together");
        }) == "here: option 'inner': a and b do not fit together");
}
