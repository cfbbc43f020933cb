module;
#include <nlohmann/json_fwd.hpp>
module tessera.models:hub_config_state;

import tessera.base;
import :hub_config;

// What the readers of a config.json share.
namespace tessera::models {

/// Whether the object has the key and not null.
bool present(const nlohmann::json& object, const std::string& key);
/// A value as an error shows it.
std::string json_shown(const nlohmann::json& value);

/// A positive number of an object; `otherwise` where it is absent or wrong, which is a problem.
double positive_number(const nlohmann::json& object, const std::string& key, double otherwise,
                       std::vector<std::string>& problems);

struct HubConfig::State {
  State(nlohmann::json document, std::string file);

  std::shared_ptr<nlohmann::json> document;
  nlohmann::json& json;
  std::string name;
  std::vector<std::string> problems;
  std::set<std::string> read;     // they change the model, and a family writes them
  std::set<std::string> checked;  // they must have one value
  std::set<std::string> ignored;

  void refuse(const std::string& key, const nlohmann::json& value, const std::string& only,
              const std::string& reason);
  /// The key has this value, which the file has at `where`.
  void give(const std::string& key, const std::string& where, const nlohmann::json& value);
  /// The keys with these names have the parts of an object, which the file has at `where`.
  void give_parts(const std::string& where, const nlohmann::json& object,
                  const std::map<std::string, std::string>& names);
  /// Notes the keys that nobody has read, checked or ignored.
  void check_names();
  /// Error (input) that lists the problems, if there are any.
  void throw_if_any() const;
};

}  // namespace tessera::models
