export module tessera.options:plugin_options;

import tessera.base;

export namespace tessera {

/// An option that a plugin reads: its expected values, and its default.
struct OptionUse {
  std::string name;
  std::string expected;
  std::string otherwise;
};

/// The options of one plugin's object in a config: a JSON object as text. Each read states a name
/// and a default; options that no read requested are errors.
class PluginOptions {
 public:
  /// `where` is the prefix of the errors: "run.toml:31: FSDP". Error (input): not a JSON object.
  explicit PluginOptions(std::string_view json = "{}", std::string where = "options");

  // Errors (input): the option has another type; the text names option, expected and got.
  bool flag(const std::string& name, bool otherwise);
  std::int64_t integer(const std::string& name, std::int64_t otherwise);
  double number(const std::string& name, double otherwise);
  /// `expected` describes what `fits` accepts, for the error of a number that does not.
  double number(const std::string& name, double otherwise, const char* expected,
                bool (*fits)(double));
  std::optional<double> optional_number(const std::string& name, const char* expected,
                                        bool (*fits)(double));
  std::string text(const std::string& name, const std::string& otherwise);
  /// A list of numbers, of as many as the default has.
  std::vector<double> numbers(const std::string& name, const std::vector<double>& otherwise,
                              const char* expected, bool (*fits)(double));
  std::vector<std::string> texts(const std::string& name);
  /// A list of tables, each with options of its own; its errors begin with "WHERE: NAME[0]".
  std::vector<PluginOptions> tables(const std::string& name);

  /// Error (input): options that do not fit together; `why` follows the place.
  [[noreturn]] void refuse(std::string_view why) const;
  /// Error (input): an option was given that no read requested; the text suggests the nearest known
  /// name.
  void finish() const;

  /// The options that were read so far, by name.
  std::vector<OptionUse> asked() const;

 protected:
  const std::string* take(const std::string& name, const char* expected, std::string otherwise);
  [[noreturn]] void wrong(const std::string& name, const std::string& got) const;
  const std::string& where() const { return where_; }
  /// Replaces the default that asked() shows.
  void set_default(const std::string& name, std::string otherwise);

 private:
  std::string where_;
  std::map<std::string, std::string> given_;  // values as JSON text
  std::map<std::string, OptionUse> asked_;
};

}  // namespace tessera
