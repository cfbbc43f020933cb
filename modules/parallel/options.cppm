export module tessera.parallel:options;

import tessera.base;
import tessera.placement;

export namespace tessera::parallel {

/// An option that a style reads: what it must be, and what holds when it is not given.
struct OptionUse {
  std::string name;
  std::string expected;
  std::string otherwise;
};

/// What a style brings one value of a module to.
struct ValuePlacement {
  std::string name;                    // of the value, or of all values nested in it; empty: by
  std::size_t position = 0;            // position, counted from 0
  std::optional<Placement> placement;  // none: it stays as it comes
};
using ValuePlacements = std::vector<ValuePlacement>;

/// The options of one style in a config: a JSON object as text. Each read states its name and
/// default; names that nobody read are errors.
class Options {
 public:
  /// `where` begins the errors: "run.toml:31: FSDP".
  explicit Options(std::string_view json = "{}", std::string where = "options");

  bool flag(const std::string& name, bool otherwise);
  std::int64_t integer(const std::string& name, std::int64_t otherwise);
  double number(const std::string& name, double otherwise);
  std::string text(const std::string& name, const std::string& otherwise);
  /// A placement as text: "Shard(1)", "Replicate".
  Placement placement(const std::string& name, Placement otherwise);
  std::optional<Placement> optional_placement(const std::string& name);
  /// Placements of several values: "Shard(1)" (of the first), ["Shard(1)", "None"] by position,
  /// {mask = "None", cache = "Shard(2)"} by name; "None" leaves a value as it comes. `otherwise`
  /// holds for the first value; none: nothing is brought anywhere.
  ValuePlacements placements(const std::string& name,
                             std::optional<Placement> otherwise = std::nullopt);

  /// Error (input) when an option was given that no read asked for; the nearest known name is
  /// offered.
  void finish() const;

  /// What has been read until now, by name.
  std::vector<OptionUse> asked() const;

 private:
  const std::string* take(const std::string& name, const char* expected, std::string otherwise);
  [[noreturn]] void wrong(const std::string& name, const std::string& got) const;

  std::string where_;
  std::map<std::string, std::string> given_;  // values as JSON text
  std::map<std::string, OptionUse> asked_;
};

}  // namespace tessera::parallel
