module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;

// The description of a run that a program has made, checked as a config is.
namespace tessera::runs {
namespace {

/// What the values of a key must be; its problems are noted.
struct ValueCheck {
  const Key& key;
  std::string name;
  Problems& problems;

  void number(const std::string& where, double value, const std::string& what) const {
    if (!contains(key.range, value)) {
      add(where, expected_number(what, key.range), fmt::format("{}", value));
    }
  }
  void word(const std::string& where, const std::string& value, bool in_list) const {
    if (const std::string expected = problem_of_text(key, value, in_list); !expected.empty()) {
      add(where, expected, fmt::format("\"{}\"", shown(value)));
    }
  }
  void json(const std::string& where, const std::string& text, bool list) const {
    const nlohmann::json value = parse_json(text, false);
    if (list ? !value.is_array() : !value.is_object()) {
      add(where, list ? "the text of a JSON array" : "the text of a JSON object", shown(text));
    }
  }

  void one(const std::string& /*where*/, bool /*value*/, bool /*in_list*/) const {}
  void one(const std::string& where, std::int64_t value, bool) const {
    number(where, static_cast<double>(value), "an integer");
  }
  void one(const std::string& where, double value, bool) const {
    number(where, value, "a finite number");
  }
  void one(const std::string& where, const std::string& value, bool in_list) const {
    word(where, value, in_list);
  }
  void one(const std::string& where, const JsonText& value, bool) const {
    json(where, value.text, false);
  }
  void one(const std::string& where, const JsonList& value, bool) const {
    json(where, value.text, true);
  }
  template <class T>
  void list(const std::string& where, const std::vector<T>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      one(fmt::format("{}[{}]", where, i), values[i], true);
    }
  }
  void operator()(const WordField& field) const {
    if (std::ranges::find(field.words(), field.word()) == field.words().end()) {
      add(name, join_words(field.words()), "no value of the enumeration");
    }
  }
  template <class T>
  void operator()(const T* value) const {
    if constexpr (std::is_same_v<T, Names>) {
      list(name, value->all);
    } else if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
      list(name, *value);
    } else {
      one(name, *value, false);
    }
  }

 private:
  void add(const std::string& where, const std::string& expected, const std::string& got) const {
    problems.add(SourceLine{}, fmt::format("{}: expected {}, got {}", where, expected, got));
  }
};

/// Sizes that the family does not have.
void check_sizes(const RunSpec& spec, const std::vector<Key>& keys, Problems& problems) {
  std::vector<std::string> names;
  for (const Key& key : keys) {
    if (key.of_family) {
      names.push_back(key.leaf());
    }
  }
  for (const auto& [name, value] : spec.model.sizes) {
    if (std::ranges::find(names, name) == names.end()) {
      problems.add(SourceLine{},
                   fmt::format("model.sizes: the family '{}' has no '{}'{}", spec.model.family,
                               shown(name), did_you_mean(name, names)));
    }
  }
}

}  // namespace

RunSpec checked(RunSpec spec, const std::optional<OwnTask>& own) {
  Problems problems("");
  const std::vector<Key> keys = config_keys(spec.model.family);
  check_sizes(spec, keys, problems);
  RunSpec initial;
  initial.model.family = spec.model.family;
  for (const ListSection& list : list_sections()) {
    list.resize(initial, list.size(spec));
  }
  std::set<std::string> unread;
  const auto look_at = [&](const Key& key, const std::string& name, std::size_t entry) {
    const Slot slot = key.slot(spec, entry);
    const std::size_t before = problems.size();
    std::visit(ValueCheck{key, name, problems}, slot);
    if (problems.size() > before) {
      unread.insert(name);
    } else if (json_of(slot) != json_of(key.slot(initial, entry))) {
      spec.given.try_emplace(name);
    }
  };
  for (const Key& key : keys) {
    const ListSection* const list = list_section(key.section());
    for (std::size_t i = 0; list != nullptr && i < list->size(spec); ++i) {
      look_at(key, fmt::format("{}[{}].{}", list->name, i, key.leaf()), i);
    }
    if (list == nullptr) {
      look_at(key, key.path, 0);
    }
  }
  for (const ListSection& list : list_sections()) {
    for (std::size_t i = 0; i < list.size(spec); ++i) {
      if (std::string& where = list.where(spec, i); where.empty()) {
        where = fmt::format("{}[{}]", list.name, i);
      }
    }
  }
  if (spec.train.epochs > 0 && !spec.given.contains("train.steps")) {
    spec.train.steps = 0;  // follows from the data
  }
  check_config(spec, unread, problems, own);
  problems.throw_if_any();
  return with_copies(std::move(spec));
}

}  // namespace tessera::runs
