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

namespace {

enum class Order { up, down };

struct Entry {
  std::vector<std::string> on = {};
  int depth = 1;
};

struct Settings {
  bool fast = true;
  std::int64_t count = 3;
  double share = 0.5;
  std::string name = "a \"b\"";
  std::vector<std::string> names = {"x"};
  Order order = Order::up;
  std::optional<DType> type = std::nullopt;
  std::vector<Order> orders = {Order::up, Order::down};
  std::vector<Entry> entries = {};
  Placement placement = Replicate();
  std::optional<Placement> first = {};
  parallel::ValuePlacements values = {{"", 0, Replicate()}};
  Entry inner = {};
};

const OptionTable<Settings>& settings_table() {
  using S = Settings;
  const auto entries = OptionTable<Entry>()
                           .add("on", &Entry::on, "Of an entry.")
                           .add("depth", &Entry::depth, "How deep.", {.low = 0});
  static const auto table =
      OptionTable<S>()
          .add("fast", &S::fast, "Whether.")
          .add("count", &S::count, "How many.", {.low = 1, .high = 9})
          .add("share", &S::share, "Of all.", {.low = 0, .high = 1, .high_open = true})
          .add("name", &S::name, "Its name.")
          .add("names", &S::names, "Others.")
          .words("order", &S::order, {{"up", Order::up}, {"down", Order::down}}, "From where.")
          .words("type", &S::type, {{"none", std::nullopt}, {"bf16", DType::bf16}}, "Its type.")
          .word_list("orders", &S::orders, {{"up", Order::up}, {"down", Order::down}}, "Several.")
          .tables("entries", &S::entries, entries, "More.")
          .add("placement", &S::placement, "Where.")
          .add("first", &S::first, "At first.")
          .add("values", &S::values, "By value.")
          .add("inner_depth", [](auto& s) -> auto& { return s.inner.depth; }, "Inside.");
  return table;
}

Settings settings_of(const std::string& json) {
  Options options(json, "run.toml:7: Style");
  Settings settings = settings_table().read(options);
  options.finish();
  return settings;
}

std::string refused_settings(const std::string& json) {
  return error_of([&] { settings_of(json); });
}

}  // namespace

TEST_CASE("a structure's options are read from the table that binds its fields") {
  const Settings none = settings_of("{}");
  CHECK((none.fast && none.count == 3 && none.share == 0.5 && none.order == Order::up));
  CHECK(none.orders == std::vector<Order>{Order::up, Order::down});
  CHECK((none.entries.empty() && !none.type && !none.first && none.placement == Replicate()));
  const Settings all = settings_of(R"~({"fast": false, "count": 9, "share": 0, "name": "n",
      "names": ["p", "q"], "order": "down", "type": "bf16", "orders": ["down"],
      "entries": [{"on": ["a.*"]}, {"depth": 0}], "placement": "Shard(1)", "first": "Shard(0)",
      "values": {"mask": "None", "x": "Shard(2)"}, "inner_depth": 4})~");
  CHECK((!all.fast && all.count == 9 && all.share == 0 && all.name == "n"));
  CHECK(all.names == std::vector<std::string>{"p", "q"});
  CHECK((all.order == Order::down && all.type == DType::bf16));
  CHECK(all.orders == std::vector<Order>{Order::down});
  REQUIRE(all.entries.size() == 2);
  CHECK(all.entries[0].on == std::vector<std::string>{"a.*"});
  CHECK((all.entries[0].depth == 1 && all.entries[1].depth == 0));
  CHECK((all.placement == Shard(1) && all.first == Shard(0) && all.inner.depth == 4));
  REQUIRE(all.values.size() == 2);
  CHECK((all.values[0].name == "mask" && !all.values[0].placement));
  CHECK((all.values[1].name == "x" && all.values[1].placement == Shard(2)));
}

TEST_CASE("what a structure is written as is what it is read from") {
  Settings some;
  some.type = DType::bf16;
  some.entries = {{{"a", "b"}, 7}};
  some.first = Shard(-1);
  some.values = {{"", 1, Shard(0)}};
  const std::string json = settings_table().json(some);
  CHECK(json == R"~({"fast": true, "count": 3, "share": 0.5, "name": "a \"b\"", "names": ["x"], )~"
                R"~("order": "up", "type": "bf16", "orders": ["up","down"], )~"
                R"~("entries": [{"on": ["a","b"], "depth": 7}], "placement": "Replicate", )~"
                R"~("first": "Shard(-1)", "values": ["None","Shard(0)"], "inner_depth": 1})~");
  CHECK(settings_table().json(settings_of(json)) == json);
  some.order = static_cast<Order>(7);
  CHECK(error_of([&] { settings_table().json(some); }) ==
        "option 'order': its value is none of those that it may have (expected \"up\" or "
        "\"down\")");
}

TEST_CASE("a wrong option of a structure is named, with what it may be") {
  const std::string place = "run.toml:7: Style: ";
  CHECK(refused_settings(R"({"cuont": 1})").starts_with(place + "there is no option 'cuont' "));
  CHECK(refused_settings(R"({"cuont": 1})").ends_with("; did you mean 'count'?"));
  CHECK(refused_settings(R"({"fast": 1})") ==
        place + "option 'fast' must be true or false (got 1)");
  CHECK(refused_settings(R"({"count": 10})") ==
        place + "option 'count' must be a whole number at least 1 and at most 9 (got 10)");
  CHECK(refused_settings(R"({"share": 1})") ==
        place + "option 'share' must be a number at least 0 and less than 1 (got 1)");
  CHECK(refused_settings(R"({"order": "upp"})") ==
        place + "option 'order' must be \"up\" or \"down\" (got \"upp\")");
  CHECK(refused_settings(R"({"orders": ["up", 3]})") ==
        place + "option 'orders[1]' must be \"up\" or \"down\" (got 3)");
  CHECK(refused_settings(R"({"entries": [{}, {"depth": -1}]})") ==
        place + "option 'entries[1].depth' must be a whole number at least 0 (got -1)");
  CHECK(refused_settings(R"({"entries": [{"detph": 1}]})") ==
        place +
            "there is no option 'entries[0].detph' (options of 'entries[0]': depth and on); "
            "did you mean 'depth'?");
  CHECK(refused_settings(R"({"inner_depth": 3000000000})")
            .find("option 'inner_depth' is too large (got 3000000000)") != std::string::npos);
}

TEST_CASE("a table of options says what each is") {
  const std::vector<OptionUse> uses = settings_table().documentation();
  std::vector<std::string> names;
  for (const OptionUse& use : uses) {
    names.push_back(use.name);
    CHECK(!use.doc.empty());
  }
  CHECK(names == std::vector<std::string>{"fast", "count", "share", "name", "names", "order",
                                          "type", "orders", "entries", "entries[].on",
                                          "entries[].depth", "placement", "first", "values",
                                          "inner_depth"});
  CHECK(uses[1].expected == "a whole number at least 1 and at most 9");
  CHECK(
      (uses[1].otherwise == "3" && uses[5].otherwise == "\"up\"" && uses[12].otherwise == "none"));
}
