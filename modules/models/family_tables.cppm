module;
#include <toml++/toml.h>
module tessera.models:family_tables;

import tessera.base;
import :values;
import :decoder_family;
import :decoder_values;

// The tables of a family file.
namespace tessera::models {

/// Where the value of a key goes.
using FieldPlace =
    std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*>;

/// A key of a table, and the member of `Owner` that it sets.
template <class Owner>
struct NamedField {
  const char* name;
  FieldPlace (*place)(Owner&);
};

template <class Owner, class Value>
Owner field_owner(Value Owner::*);

/// The key that sets a member: named_field<&GgufForm::pairs>("pairs").
template <auto Member>
constexpr auto named_field(const char* name) {
  using Owner = decltype(field_owner(Member));
  return NamedField<Owner>{name, +[](Owner& owner) -> FieldPlace { return &(owner.*Member); }};
}

/// The most entries of a list.
inline constexpr std::size_t longest_list = 1000;

/// The tables of one file. All that is wrong with them is collected, with its lines.
class FamilyTables {
 public:
  /// Errors (input): the text has more than 1 MB, or is no TOML.
  FamilyTables(const std::string& file, std::string_view text);

  const toml::table& root() const { return root_; }
  const std::string& file() const { return file_; }
  void problem(const toml::node& node, const std::string& text);
  /// One that has no line.
  void problem(const std::string& text) { problems_.push_back(file_ + ": " + text); }
  /// Error (input) that lists the problems, if there are any.
  void throw_if_any() const;

  // `where`: what a key is in, with a dot.
  void check_names(const toml::table& table, const std::string& where,
                   const std::vector<std::string>& known);
  /// The node as a value of the type that `like` has; otherwise a problem.
  std::optional<ModelValue> read_value(const toml::node& node, const std::string& name,
                                       const ModelValue& like);
  /// The value of a key; nothing: it is not there, or of another type, which is a problem.
  template <class T>
  std::optional<T> take(const toml::table& table, const std::string& key,
                        const std::string& where) {
    const std::optional<ModelValue> value = taken(table, key, where, ModelValue(T{}));
    return value ? std::optional<T>(std::get<T>(*value)) : std::nullopt;
  }
  template <class T>
  void set(const toml::table& table, const std::string& key, const std::string& where, T& to) {
    if (const std::optional<T> value = take<T>(table, key, where)) {
      to = *value;
    }
  }
  /// Adds the texts of a list.
  void set(const toml::table& table, const std::string& key, const std::string& where,
           std::vector<std::string>& to);
  void set(const toml::table& table, const std::string& key, const std::string& where,
           FieldPlace to);
  /// Sets the members whose keys are there. Names besides these and `others` are problems.
  template <class Owner, std::size_t Count>
  void set_fields(const toml::table& table, const std::string& where,
                  const NamedField<Owner> (&fields)[Count], Owner& to,
                  const std::vector<std::string>& others = {}) {
    std::vector<std::string> known = others;
    for (const NamedField<Owner>& field : fields) {
      known.emplace_back(field.name);
      set(table, field.name, where, field.place(to));
    }
    check_names(table, where, known);
  }
  void required(const toml::table& table, const std::string& key, std::string& to);
  /// The table of this name; null: there is none.
  const toml::table* section(const std::string& name);
  /// A table in a table; null: it is not there.
  const toml::table* part(const toml::table& table, const std::string& name,
                          const std::string& where);
  /// Calls `read` with each table of a list.
  void each(const std::string& name, const std::function<void(const toml::table&)>& read);
  void each(const toml::table& table, const std::string& name, const std::string& where,
            const std::function<void(const toml::table&)>& read);
  /// Texts by name. `known`: the names that there can be; empty: any.
  void read_texts(const toml::table& table, const std::string& name,
                  const std::vector<std::string>& known, std::map<std::string, std::string>& to);
  void read_texts(const std::string& name, const std::vector<std::string>& known,
                  std::map<std::string, std::string>& to);

  // Properties of decoders.
  /// The member of this name; null: there is none, which is a problem.
  const NamedDecoderMember* member(const toml::node& node, const std::string& name);
  /// Whether a value is one of the words that the member can have, if it has words.
  bool is_word(const toml::node& node, const std::string& name, const DecoderMember& member,
               const ModelValue& value);
  void read_members(const toml::table& table, const std::string& where,
                    std::vector<std::pair<DecoderMember, ModelValue>>& to);

 private:
  std::optional<ModelValue> taken(const toml::table& table, const std::string& key,
                                  const std::string& where, const ModelValue& like);

  std::string file_;
  toml::table root_;
  std::vector<std::string> problems_;
};

/// A value as JSON; "null" is no text there.
std::string flag_of(const toml::node& node);
std::string json_of(const toml::node& node);
/// The value of a property has the type of the member that it sets.
ModelValue empty_value(const DecoderMember& member);

// The sections that have a source of their own.
/// A module of [[fused]]. `where`: what the table is in, with a dot.
void read_fused(FamilyTables& in, const toml::table& table, const std::string& where,
                std::vector<FusedModule>& to);
/// [[key]].
void read_family_keys(FamilyTables& in, DecoderTraits& traits);
/// [gguf].
void read_family_gguf(FamilyTables& in, DecoderTraits& traits);

}  // namespace tessera::models
