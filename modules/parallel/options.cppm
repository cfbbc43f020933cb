export module tessera.parallel:options;

import tessera.base;
import tessera.placement;
import tessera.options;

export namespace tessera::parallel {

/// The placement to which a style redistributes one value of a module.
struct ValuePlacement {
  std::string name;                    // of the value, or of all values nested in it; empty: by
  std::size_t position = 0;            // position, counted from 0
  std::optional<Placement> placement;  // none: the value is not redistributed
};
using ValuePlacements = std::vector<ValuePlacement>;

/// The options of one style in a config, with placements.
class Options : public PluginOptions {
 public:
  using PluginOptions::PluginOptions;
  Options(PluginOptions options) : PluginOptions(std::move(options)) {}

  /// A placement as text: "Shard(1)", "Replicate".
  Placement placement(const std::string& name, Placement otherwise);
  std::optional<Placement> optional_placement(const std::string& name);
  /// Placements of several values: "Shard(1)" (of the first), ["Shard(1)", "None"] by position,
  /// {mask = "None", cache = "Shard(2)"} by name; "None" leaves a value as it is. `otherwise` is
  /// the default for the first value; without it no value is redistributed.
  ValuePlacements placements(const std::string& name,
                             std::optional<Placement> otherwise = std::nullopt);
  /// As PluginOptions::table and tables, with placements inside.
  Options table(const std::string& name) { return PluginOptions::table(name); }
  std::vector<Options> tables(const std::string& name);
};

/// As the other functions of this name (see OptionTable).
std::string option_json(const ValuePlacements& value);

}  // namespace tessera::parallel

export namespace tessera {

// Options of these types in an OptionTable. Without a value, nothing is redistributed.
void read_option(PluginOptions& options, const OptionKey& key, Placement& value);
void read_option(PluginOptions& options, const OptionKey& key, std::optional<Placement>& value);
/// Its default is of one value, the first, or of none.
void read_option(PluginOptions& options, const OptionKey& key, parallel::ValuePlacements& value);
std::string option_json(const Placement& value);
std::string option_json(const std::optional<Placement>& value);

}  // namespace tessera
