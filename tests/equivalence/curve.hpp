// PyTorch's stored curves (tests/reference), and runs that must follow them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "support.hpp"

namespace equivalence {

/// A stored curve, and the config of the run that it came from, without its layout.
struct Curve {
  nlohmann::json json;
  std::string config;

  /// The file data/FOLDER/NAME.json.
  Curve(const std::string& folder, const std::string& name);
};

/// Trains and compares losses, gradient norms and learning rates of all steps.
void follows(const Curve& curve, const Layout& where, const std::string& overrides);

}  // namespace equivalence
