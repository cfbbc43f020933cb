module tessera.runs:section_keys;

import tessera.base;
import tessera.options;
import :keys;
import :spec;

// The keys of a config by its sections: a body for each, all written with the same few functions.

namespace tessera::runs {

// [model], and the keys of this family in it. Error (input): there is no such family.
std::vector<Key> model_keys();
std::vector<Key> family_keys(const std::string& family);
// [data]
std::vector<Key> source_keys();
std::vector<Key> row_keys();
// [train], [dpo] and [experts]
std::vector<Key> train_keys();
std::vector<Key> gradient_keys();
std::vector<Key> healing_keys();
std::vector<Key> reproducible_keys();
std::vector<Key> dpo_keys();
std::vector<Key> expert_keys();
// [optimizer]
std::vector<Key> optimizer_keys();
// [mesh], [plugins] and [[parallel]]
std::vector<Key> mesh_keys();
// [log] and [trace]
std::vector<Key> log_keys();
// [[sinks]]
std::vector<Key> sink_keys();
// [graph]
std::vector<Key> graph_keys();
// [checkpoint]
std::vector<Key> checkpoint_keys();

template <auto Section, auto Member>
Slot field(RunSpec& config, std::size_t /*entry*/) {
  return &((config.*Section).*Member);
}

/// A field of an enumeration. The table is there for good: slots refer to it.
template <auto Section, auto Member, class E>
std::function<Slot(RunSpec&, std::size_t)> words(const WordField::Words<E>& table) {
  static const WordField::Words<E> kept = table;
  return [](RunSpec& config, std::size_t /*entry*/) {
    return WordField((config.*Section).*Member, kept);
  };
}

/// A field of each entry of a list.
template <auto List, auto Member>
Slot entry_field(RunSpec& config, std::size_t entry) {
  return &((config.*List).at(entry).*Member);
}

inline constexpr double largest_size = 1 << 24;
inline constexpr double largest_count = 1e15;

inline Range from(double low, double high = largest_count) { return {low, high, false, false}; }
inline constexpr Range positive{0, no_limit, true, false};
inline constexpr Range not_negative{0};
inline constexpr Range below_one{0, 1, false, true};

/// The path of a file or a folder.
template <class Field>
Key path_key(const std::string& path, Field field, const std::string& doc) {
  return {.path = path, .slot = field, .doc = doc, .is_path = true};
}

}  // namespace tessera::runs
