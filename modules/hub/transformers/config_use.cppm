export module tessera.hub:config_use;

import tessera.base;
import tessera.models;

export namespace tessera::hub {

/// What a family makes of a folder's config.json.
struct ConfigUse {
  std::string family;
  models::HubKeyUse keys;
  std::vector<std::string> problems;  // why it is refused, unknown keys apart; none: it is not
};

/// Which model a config.json is of, and how well families understand it.
struct ConfigReport {
  std::string model_type;       // "": it has none
  std::string text;             // the file, parsed and written again
  std::vector<ConfigUse> uses;  // one, of its family; or of the built-in ones, the best first
  bool is_known = false;        // model_type is a family
};

/// Reads FOLDER/config.json. Errors (input): there is none, or it is no JSON object.
ConfigReport describe_config(const std::filesystem::path& folder);

}  // namespace tessera::hub
