// Runs of configs/ with a small model. Include it after the imports that training/trainer.hpp
// needs.
#pragma once
#include <string>
#include <vector>

namespace parallel_test {

/// The names of the configs in configs/ whose steps can be captured: without those in its folders,
/// and without that of a model in stages (tests/parallel/stages.cpp).
std::vector<std::string> shipped_configs();

/// The run of configs/NAME with these overrides, then one of `sizes`; its text is a page of docs.
tessera::runs::Run small_run(const std::string& name, std::vector<std::string> overrides,
                             const std::vector<std::string>& sizes);

}  // namespace parallel_test
