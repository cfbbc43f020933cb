export module tessera.options:option_table;

import tessera.base;
import :option_values;
import :plugin_options;

// Options of a plugin's object as one structure. A table binds names to fields; reading with
// checks, writing and documentation follow from it. The fields' first values are the defaults.
export namespace tessera {

/// An option in a table.
struct OptionKey {
  std::string name;
  std::string doc;
  Range range = {};  // of a number
};

// Reads an option of each type, with the field's value as its default, and writes it as JSON
// (empty: it is not written). Modules overload these for their own types. Errors (input):
// PluginOptions'.
void read_option(PluginOptions& options, const OptionKey& key, bool& value);
void read_option(PluginOptions& options, const OptionKey& key, int& value);
void read_option(PluginOptions& options, const OptionKey& key, std::int64_t& value);
void read_option(PluginOptions& options, const OptionKey& key, double& value);
void read_option(PluginOptions& options, const OptionKey& key, std::string& value);
void read_option(PluginOptions& options, const OptionKey& key, std::vector<std::string>& value);
void read_option(PluginOptions& options, const OptionKey& key, const WordField& value);
std::string option_json(bool value);
std::string option_json(int value);
std::string option_json(std::int64_t value);
std::string option_json(double value);
std::string option_json(const std::string& value);
std::string option_json(const std::vector<std::string>& value);
/// The value's word. Error (input): it has none.
std::string checked_word(const OptionKey& key, const WordField& value);

/// A JSON object or list as text.
class OptionsText {
 public:
  void add(const std::string& name, const std::string& json);  // empty: nothing
  void add(const std::string& json);
  std::string object() const;
  std::string list() const;

 private:
  std::string text_;
};

/// The options that a structure has:
///   OptionTable<Settings>()
///       .add("depth", &Settings::depth, "How deep it looks.", {.low = 1})
///       .words("order", &Settings::order, {{"up", Order::up}, {"down", Order::down}}, "Order.")
template <class Options>
class OptionTable {
 public:
  /// A field: a member, or a function that returns a member of a member.
  template <class Field, class From>
  static decltype(auto) field_of(const Field& field, From& from) {
    if constexpr (requires { from.*field; }) {
      return (from.*field);
    } else {
      return field(from);
    }
  }
  template <class Field>
  static auto copy_of(const Field& field, Options& from) {
    return field_of(field, from);
  }
  template <class Field>
  using ValueOf = decltype(copy_of(*static_cast<Field*>(nullptr), *static_cast<Options*>(nullptr)));

  template <class Field>
  OptionTable& add(const std::string& name, Field field, const std::string& doc,
                   const Range& range = {}) {
    const OptionKey key{name, doc, range};
    return push({key,
                 [key, field](PluginOptions& options, Options& into) {
                   read_option(options, key, field_of(field, into));
                   options.document(key.name, key.doc);
                 },
                 [field](const Options& from) { return option_json(field_of(field, from)); }});
  }

  /// A field whose values have words.
  template <class Field>
  OptionTable& words(const std::string& name, Field field,
                     const WordField::Words<ValueOf<Field>>& words, const std::string& doc) {
    const OptionKey key{name, doc};
    return push({key,
                 [key, field, words](PluginOptions& options, Options& into) {
                   read_option(options, key, WordField(field_of(field, into), words));
                   options.document(key.name, key.doc);
                 },
                 [key, field, words](const Options& from) {
                   ValueOf<Field> value = field_of(field, from);
                   return option_json(checked_word(key, WordField(value, words)));
                 }});
  }

  /// A list of values that have words.
  template <class Field>
  OptionTable& word_list(const std::string& name, Field field,
                         const WordField::Words<typename ValueOf<Field>::value_type>& words,
                         const std::string& doc) {
    using Value = typename ValueOf<Field>::value_type;
    const OptionKey key{name, doc};
    const auto words_of = [key, field, words](const Options& from) {
      std::vector<std::string> all;
      for (Value value : field_of(field, from)) {
        all.push_back(checked_word(key, WordField(value, words)));
      }
      return all;
    };
    return push({key,
                 [key, field, words, words_of](PluginOptions& options, Options& into) {
                   Value value{};
                   const WordField word(value, words);
                   const auto given = options.choices(key.name, words_of(into), word.words());
                   field_of(field, into).clear();
                   for (std::size_t i = 0; i < given.size(); ++i) {
                     word.set(given[i]);
                     field_of(field, into).push_back(value);
                   }
                   options.document(key.name, key.doc);
                 },
                 [words_of](const Options& from) { return option_json(words_of(from)); }});
  }

  /// A list of structures with options of their own; the default is none.
  template <class Field, class Entry>
  OptionTable& tables(const std::string& name, Field field, const OptionTable<Entry>& entries,
                      const std::string& doc) {
    const OptionKey key{name, doc};
    return push({key,
                 [key, field, entries](PluginOptions& options, Options& into) {
                   auto& all = field_of(field, into);
                   all.clear();
                   std::vector<PluginOptions> given = options.tables(key.name);
                   for (std::size_t i = 0; i < given.size(); ++i) {
                     all.push_back(entries.read(given[i]));
                   }
                   options.document(key.name, key.doc, entries.documentation());
                 },
                 [field, entries](const Options& from) {
                   OptionsText text;
                   for (const Entry& one : field_of(field, from)) {
                     text.add(entries.json(one));
                   }
                   return text.list();
                 }});
  }

  /// Reads all of them. What is not given stays what it is.
  Options read(PluginOptions& options, Options into = {}) const {
    for (const Row& row : rows_) {
      row.read(options, into);
    }
    return into;
  }

  /// What read() takes.
  std::string json(const Options& from) const {
    OptionsText text;
    for (const Row& row : rows_) {
      text.add(row.key.name, row.json(from));
    }
    return text.object();
  }

  std::vector<OptionUse> documentation(const Options& defaults = {}) const {
    PluginOptions none;
    static_cast<void>(read(none, defaults));
    return none.asked();
  }

 private:
  struct Row {
    OptionKey key;
    std::function<void(PluginOptions&, Options&)> read;
    std::function<std::string(const Options&)> json;
  };

  OptionTable& push(Row row) {
    rows_.push_back(std::move(row));
    return *this;
  }

  std::vector<Row> rows_;
};

}  // namespace tessera
