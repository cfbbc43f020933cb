// Which pieces of a model a stage has.
// Included after the imports of tessera's modules.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace pipeline_style {

/// What each piece of the model costs in a step: the elements of its parameters, as products with
/// them are nearly all that it computes. Tables of embeddings cost nothing: their rows are copied.
std::vector<double> costs_of(tessera::nn::LanguageModel& model);

/// The first pieces of `stages` stages whose dearest one is as cheap as it can be; of such
/// divisions, one with the smallest sum of squares. Every stage has a piece. Needs as many pieces.
std::vector<std::size_t> balanced(const std::vector<double>& costs, std::size_t stages);

/// The first pieces of the stages that begin with these modules, after the first stage. Error
/// (input): a name with which no piece begins, or names that are not in the model's order.
std::vector<std::size_t> by_hand(tessera::nn::LanguageModel& model,
                                 const std::vector<std::string>& split);

}  // namespace pipeline_style
