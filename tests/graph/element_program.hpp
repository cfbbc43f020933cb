// A program that calls every operator whose function of an element generated code has.
// Included after the imports of tessera.tensor and tessera.program.
#pragma once
#include <cstddef>
#include <set>
#include <string>

#include "program_text.hpp"

namespace graph_test {

inline std::string tensor(int number, tessera::DType dtype, const std::string& shape) {
  return "%" + std::to_string(number) + ": " + std::string(name_of(dtype)) + "[" + shape + "]";
}

/// Operators of rows, and of booleans: they have cases of their own.
inline const std::set<std::string> of_rows = {
    "rms_norm", "rms_norm_backward", "layer_norm",  "layer_norm_backward",
    "softmax",  "softmax_backward",  "log_softmax", "log_softmax_backward"};
inline const std::set<std::string> of_booleans = {
    "eq",         "ne",          "lt",          "le",          "gt",
    "ge",         "eq_scalar",   "ne_scalar",   "lt_scalar",   "le_scalar",
    "gt_scalar",  "ge_scalar",   "where",       "masked_fill", "masked_fill_backward",
    "logical_or", "logical_and", "logical_xor", "logical_not", "isnan",
    "isinf",      "isfinite"};

struct AllElements {
  tessera::Program program;
  int calls = 0;
};
/// Of inputs x0, x1 and x2 of the type.
inline AllElements all_elements(tessera::DType dtype) {
  using namespace tessera;
  std::string body;
  for (int k = 0; k < 3; ++k) {
    body += "input " + tensor(k, dtype, "1003") + " = x" + std::to_string(k) + "\n";
  }
  body += "section step\n";
  std::string outputs;
  int number = 3;
  for (const Op* const op : all_ops()) {
    if (op->element == nullptr || op->in_place || op->operands.size() > 3 ||
        of_rows.contains(op->name) || of_booleans.contains(op->name)) {
      continue;
    }
    std::string arguments;
    for (std::size_t k = 0; k < op->parameters.size(); ++k) {
      const std::string& type = op->parameters[k].type;
      const std::string value = type == "float"
                                    ? std::to_string(0.75 + 0.5 * static_cast<double>(k))
                                : type == "dtype" ? std::string(dtype == DType::f32   ? "bf16"
                                                                : dtype == DType::f64 ? "f64"
                                                                                      : "f32")
                                : type == "bool"  ? "true"
                                                  : type.substr(0, type.find('/'));
      arguments += (k == 0 ? "; " : ", ") + op->parameters[k].name + "=" + value;
    }
    std::string operands;
    for (std::size_t k = 0; k < op->operands.size(); ++k) {
      operands += (k == 0 ? "%" : ", %") + std::to_string(k);
    }
    const DType made = op->name != "cast"    ? dtype
                       : dtype == DType::f32 ? DType::bf16
                       : dtype == DType::f64 ? DType::f64
                                             : DType::f32;
    body +=
        "  " + tensor(number, made, "1003") + " = " + op->name + "(" + operands + arguments + ")\n";
    outputs += "output %" + std::to_string(number) + " = " + op->name + "\n";
    ++number;
  }
  return {program(body + outputs), number - 3};
}

}  // namespace graph_test
