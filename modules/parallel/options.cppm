export module tessera.parallel:options;

import tessera.base;
import tessera.placement;

export namespace tessera::parallel {

/// An option that a style reads: its expected values, and its default.
struct OptionUse {
  std::string name;
  std::string expected;
  std::string otherwise;
};

/// The placement to which a style redistributes one value of a module.
struct ValuePlacement {
  std::string name;                    // of the value, or of all values nested in it; empty: by
  std::size_t position = 0;            // position, counted from 0
  std::optional<Placement> placement;  // none: the value is not redistributed
};
using ValuePlacements = std::vector<ValuePlacement>;

/// The options of one style in a config: a JSON object as text. Each read states a name and a
/// default; options that no read requested are errors.
class Options {
 public:
  /// `where` is the prefix of the errors: "run.toml:31: FSDP".
  explicit Options(std::string_view json = "{}", std::string where = "options");

  bool flag(const std::string& name, bool otherwise);
  std::int64_t integer(const std::string& name, std::int64_t otherwise);
  double number(const std::string& name, double otherwise);
  std::string text(const std::string& name, const std::string& otherwise);
  /// A placement as text: "Shard(1)", "Replicate".
  Placement placement(const std::string& name, Placement otherwise);
  std::optional<Placement> optional_placement(const std::string& name);
  /// Placements of several values: "Shard(1)" (of the first), ["Shard(1)", "None"] by position,
  /// {mask = "None", cache = "Shard(2)"} by name; "None" leaves a value as it is. `otherwise` is
  /// the default for the first value; without it no value is redistributed.
  ValuePlacements placements(const std::string& name,
                             std::optional<Placement> otherwise = std::nullopt);

  /// Error (input): an option was given that no read requested; the text suggests the nearest known
  /// name.
  void finish() const;

  /// The options that were read so far, by name.
  std::vector<OptionUse> asked() const;

 private:
  const std::string* take(const std::string& name, const char* expected, std::string otherwise);
  [[noreturn]] void wrong(const std::string& name, const std::string& got) const;

  std::string where_;
  std::map<std::string, std::string> given_;  // values as JSON text
  std::map<std::string, OptionUse> asked_;
};

}  // namespace tessera::parallel
