// A program against what PyTorch has computed with it. Include it after the imports.
#pragma once
#include <string>

namespace exported_test {

/// How a program is trained.
enum class Way { plain, recompute, sharded };

/// The largest differences from PyTorch: of gradients relative to the largest one of the model, of
/// outputs and parameters to the largest number of each (1 where that is smaller).
struct Differences {
  double outputs = 0;
  double gradients = 0;
  double steps = 0;  // parameters after 20 steps
  double losses = 0;
  double largest() const;
};

/// Of FOLDER/NAME.pt2 from FOLDER/NAME.safetensors.
Differences differences(const std::string& folder, const std::string& name, Way way = Way::plain);

/// The folder of the stored programs.
std::string stored();

}  // namespace exported_test
