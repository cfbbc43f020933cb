export module tessera.runs:keys;

import tessera.base;
import tessera.options;
import :spec;

// The one description of the keys of a config, which parsing, overrides, errors and docs/config.md
// follow. A new key: a field in spec.cppm, and an entry in its section's body (section_keys.cppm).

export namespace tessera::runs {

/// The field of a RunSpec that a key fills; its type is the key's type.
using Slot = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                          std::vector<std::int64_t>*, std::vector<double>*, Names*, JsonText*,
                          JsonList*, WordField>;

/// What a run reads where a key names a path: that may be an address of a store, too.
enum class Reads : std::uint8_t {
  nothing,  // it is written, or is none
  files,
  model,        // the folder of a model, a tokenizer or an adapter
  checkpoints,  // and writes: those in a store are used where they are
};

/// A key of a config, and the field of a RunSpec that it fills.
struct Key {
  std::string path;  // "train.steps"; "parallel.style" is `style` of every [[parallel]] entry
  std::function<Slot(RunSpec&, std::size_t entry)> slot;
  std::string doc;
  Range range = {};
  std::vector<std::string> choices = {};  // allowed words; for a path: words that are not paths
  bool is_path = false;
  Reads reads = Reads::nothing;
  bool required = false;
  bool of_family = false;       // of model.family, not of all models
  bool of_layout_free = false;  // only runs with train.reproducible=layout have it

  std::string section() const { return path.substr(0, path.find('.')); }
  std::string leaf() const { return path.substr(path.find('.') + 1); }
  bool in_list() const;
};

/// A section that is a list of tables, such as [[parallel]], in a RunSpec.
struct ListSection {
  std::string name;
  std::string example;  // an entry, as the command line takes it
  std::size_t (*size)(const RunSpec&);
  void (*resize)(RunSpec&, std::size_t entries);
  std::string& (*where)(RunSpec&, std::size_t entry);  // the field for its place
};
std::span<const ListSection> list_sections();
/// Null: the section of this name is a table.
const ListSection* list_section(std::string_view name);
/// A description in which every key has a slot 0: each list has an entry.
RunSpec with_entries();

/// Every key of a config with this model.family, in the order of the documentation. Error (input):
/// there is no such family.
std::vector<Key> config_keys(const std::string& family = ModelConfig().family);

/// The sections' names, in the order of the documentation.
std::vector<std::string> config_sections();

/// Whether a key determines the loss curve, and so is a part of a checkpoint's fingerprint where it
/// differs from its default. A new key of the sections that influence.cpp names is, until it is
/// excluded there.
bool has_influence(const Key& key);

/// Names that `checkpoint.allow` takes: those keys, their sections, and `data.content`.
std::vector<std::string> allowable_names(const std::string& family);

/// The word of a key that has one: "cosine" of "optimizer.schedule".
std::string word_of(const RunSpec& spec, const std::string& key);
/// A value as a JSON text; that of a key outside of lists.
std::string json_of(const Slot& slot);
std::string json_of(const Key& key, const RunSpec& config);

/// "integer", "list of texts"...
std::string type_name(const Slot& slot);

/// "\"a\" or \"b\"" where the key has only these words, else "a text".
std::string expected_text(const Key& key);
/// What was expected where this text is not a value of the key, or of an entry of its list; empty:
/// it is one.
std::string problem_of_text(const Key& key, const std::string& text, bool in_list);

}  // namespace tessera::runs
