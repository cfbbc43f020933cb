export module tessera.options:plugin_options;

import tessera.base;
import :option_values;

export namespace tessera {

/// An option that a plugin reads: its expected values, its default, and its documentation.
struct OptionUse {
  std::string name;
  std::string expected;
  std::string otherwise;
  std::string doc = {};
};

/// The options of one plugin's object in a config: a JSON object as text. Each read states a name
/// and a default; options that no read requested are errors. Copies are the same options.
class PluginOptions {
 public:
  /// `where` is the prefix of the errors: "run.toml:31: FSDP". Error (input): not a JSON object.
  explicit PluginOptions(std::string_view json = "{}", std::string where = "options");

  // Errors (input): the option has another type; the text names option, expected and got. Of a
  // list, each entry that does not fit is named: "option 'betas[1]' must be a number (got true)".
  bool flag(const std::string& name, bool otherwise);
  std::int64_t integer(const std::string& name, std::int64_t otherwise, const Range& range = {});
  double number(const std::string& name, double otherwise, const Range& range = {});
  /// `expected` describes what `fits` accepts, for the error of a number that does not.
  double number(const std::string& name, double otherwise, const char* expected,
                bool (*fits)(double));
  std::optional<double> optional_number(const std::string& name, const char* expected,
                                        bool (*fits)(double));
  std::string text(const std::string& name, const std::string& otherwise);
  /// One of several texts.
  std::string choice(const std::string& name, const std::string& otherwise,
                     const std::vector<std::string>& choices);
  /// A list of them.
  std::vector<std::string> choices(const std::string& name,
                                   const std::vector<std::string>& otherwise,
                                   const std::vector<std::string>& choices);
  /// A list of numbers, of as many as the default has.
  std::vector<double> numbers(const std::string& name, const std::vector<double>& otherwise,
                              const char* expected, bool (*fits)(double));
  // Lists of any length.
  std::vector<bool> flags(const std::string& name, const std::vector<bool>& otherwise = {});
  std::vector<std::int64_t> integers(const std::string& name,
                                     const std::vector<std::int64_t>& otherwise = {});
  std::vector<double> numbers(const std::string& name, const std::vector<double>& otherwise = {});
  std::vector<std::string> texts(const std::string& name,
                                 const std::vector<std::string>& otherwise = {});
  /// A table with options of its own, empty where none is given: schedule = {warmup = 3}. Its
  /// errors name the path, "option 'schedule.warmup'", and finish() of this object covers it too.
  PluginOptions table(const std::string& name);
  /// A list of tables; the path of an option is "groups[0].lr".
  std::vector<PluginOptions> tables(const std::string& name);

  /// Error (input): options that do not fit together; `why` follows the place.
  [[noreturn]] void refuse(std::string_view why) const;
  /// Error (input): an option was given that no read requested, here or in a table; the text
  /// suggests the nearest known name.
  void finish() const;

  /// Says what an option that was read means; `entries`: the options of each table in its list.
  void document(const std::string& name, const std::string& doc,
                const std::vector<OptionUse>& entries = {});

  /// The options that were read so far, in this order; those of tables by their paths, those of
  /// the tables in a list as "groups[].lr".
  std::vector<OptionUse> asked() const;

 protected:
  /// The value as JSON text; null where the option is not given.
  const std::string* take(const std::string& name, const std::string& expected,
                          std::string otherwise);
  /// Error (input): `got` is not what was expected.
  [[noreturn]] void wrong(const std::string& name, const std::string& got) const;
  const std::string& where() const;
  /// The option's path from the outermost table.
  std::string path_of(const std::string& name) const;
  /// Replaces the default that asked() shows.
  void set_default(const std::string& name, std::string otherwise);

 private:
  struct State;
  template <class T, class Fits>
  std::vector<T> list(const std::string& name, const std::vector<T>& otherwise,
                      const std::string& expected, const std::string& entry_expected, Fits fits);
  PluginOptions inner(const std::string& entry, const std::string& json);

  std::shared_ptr<State> state_;
};

}  // namespace tessera
