module tessera.hub:peft_files;

import tessera.base;
import tessera.nn;

// What a folder of PEFT calls the parameters of updates, and how it differs from a model.

namespace tessera::hub {

/// What the names of all tensors begin with: the model within PEFT's own.
inline constexpr std::string_view peft_root = "base_model.model.";
inline constexpr const char* peft_weights_file = "adapter_model.safetensors";

/// Our name of a parameter of an update, and what PEFT has in its place.
struct PeftParameter {
  const char* own;
  const char* peft;
};
std::vector<PeftParameter> peft_parameters(const nn::LowRankUpdate& update);
std::string peft_name(const std::string& module, const PeftParameter& part);

/// A tensor of the folder.
struct PeftTensor {
  std::string module;  // whose update it is a part of; empty: of none
  std::string weight;  // else the weight of the model that it replaces; empty: none
};
PeftTensor peft_tensor(const std::string& name);

/// Error (input): PEFT would read weights of another file.
void check_peft_weights_file(const std::string& folder);

/// Differences, each with the modules that it is true of.
class PeftDifferences {
 public:
  void add(const std::string& text, const std::string& module) { all_[text].push_back(module); }
  void add(const std::string& text) { all_[text]; }
  /// `thing`: what the adapter does not fit, and what to do.
  void throw_if_any(const std::string& folder, const std::string& thing) const;

 private:
  std::map<std::string, std::vector<std::string>> all_;
};

}  // namespace tessera::hub
