// A program against what PyTorch has computed with it. Include it after the imports.
#pragma once
#include <string>

namespace exported_test {

/// How a program is trained.
enum class Way { plain, recompute, sharded, placed };

/// The largest differences from PyTorch: of gradients relative to the largest one of the model, of
/// outputs and parameters to the largest number of each (1 where that is smaller).
struct Differences {
  double outputs = 0;
  double gradients = 0;
  double steps = 0;  // parameters after 20 steps
  double losses = 0;
  // Beside gradients in float64, relative to the same number; 0: there are none.
  double exact = 0;           // of ours
  double exact_expected = 0;  // of PyTorch's
  double largest() const;
  /// Whether all but rounding is below `limit`: gradients that are no farther from those in float64
  /// than `limit`, or than twice PyTorch's own, are equal but for rounding.
  bool below(double limit) const;
};

/// Of FOLDER/NAME.pt2 from FOLDER/NAME.safetensors. A step that a mode has placed tells no outputs
/// and no gradients.
Differences differences(const std::string& folder, const std::string& name, Way way = Way::plain);

/// The folder of the stored programs.
std::string stored();

}  // namespace exported_test
