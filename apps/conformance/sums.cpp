module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

// Long sums of equal values in types of 16 bits. A sum that is rounded to its type after each term
// stops growing where the type has no next number: ones give 256 in bf16 and 2,048 in f16, however
// many there are.
namespace tessera::conformance {
namespace {

/// So many that a sum which stops growing is at most half of what it should be.
constexpr std::int64_t terms_of(DType dtype) { return dtype == DType::bf16 ? 1024 : 4096; }

constexpr std::int64_t most_elements = std::int64_t{1} << 17;  // of an operand or a result

/// Which extents of a call become long.
struct LongExtent {
  std::int64_t terms = 0;     // the new extent
  std::int64_t extent = 1;    // all that are equal to it,
  std::size_t operand = 0;    // or only that of this operand
  int dim = 0;                // and this dim
  bool everywhere = false;    // all
  bool arguments_too = true;  // of the dims among the arguments too
};

/// Extents of the operands that may become long, one after the other.
std::vector<LongExtent> choices_of(const CallSample& sample, std::int64_t terms) {
  std::vector<LongExtent> all;
  std::set<std::int64_t> extents;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    const Tensor& x = sample.inputs[i];
    for (int d = 0; x && d < x.dims(); ++d) {
      const std::int64_t extent = x.shape()[d];
      for (const bool arguments_too : {false, true}) {
        all.push_back({terms, extent, i, d, false, arguments_too});
        if (extents.insert(2 * extent + (arguments_too ? 1 : 0)).second) {
          all.push_back({terms, extent, i, d, true, arguments_too});
        }
      }
    }
  }
  return all;
}

Dims longer_shape(Dims shape, std::size_t operand, const LongExtent& longer) {
  for (int d = 0; d < shape.size(); ++d) {
    if (longer.everywhere ? shape[d] == longer.extent
                          : operand == longer.operand && d == longer.dim) {
      shape[d] = longer.terms;
    }
  }
  return shape;
}

/// The arguments; nothing where none of their dims changes although they were to.
std::optional<Attributes> longer_arguments(const CallSample& sample, const LongExtent& longer) {
  if (!longer.arguments_too) {
    return sample.attributes;
  }
  if (sample.op->arguments == nullptr) {
    return std::nullopt;
  }
  bool changed = false;
  std::vector<ArgumentValue> values = sample.op->arguments->values(sample.attributes);
  for (ArgumentValue& value : values) {
    if (auto* const dims = std::get_if<Dims>(&value)) {
      for (std::int64_t& extent : *dims) {
        changed = changed || extent == longer.extent;
        extent = extent == longer.extent ? longer.terms : extent;
      }
    }
  }
  return changed ? std::optional(sample.op->arguments->from_values(values)) : std::nullopt;
}

/// Ones; integers are `integer`: places, or counts. Bytes are codes, of which each value is one.
Tensor equal_values(const Dims& shape, DType dtype, std::int64_t integer) {
  const bool is_number = is_floating(dtype) || dtype == DType::boolean;
  const std::int64_t given = size_of(dtype) == 1 ? std::min<std::int64_t>(integer, 127) : integer;
  return full(shape, is_number ? 1 : static_cast<double>(given), dtype);
}

/// The call with longer operands of equal values, in the sample's types; nothing where it would be
/// too large.
std::optional<CallSample> longer_call(const CallSample& sample, const LongExtent& longer,
                                      std::int64_t integer) {
  const std::optional<Attributes> attributes = longer_arguments(sample, longer);
  if (!attributes) {
    return std::nullopt;
  }
  CallSample call = sample;
  call.attributes = *attributes;
  std::string values;
  bool has_integers = false;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor& x = call.inputs[i];
    if (!x) {
      continue;
    }
    const Dims shape = longer_shape(x.shape(), i, longer);
    if (shape.product() > most_elements) {
      return std::nullopt;
    }
    x = equal_values(shape, x.dtype(), integer);
    has_integers = has_integers || !(is_floating(x.dtype()) || x.dtype() == DType::boolean);
    values += (values.empty() ? "" : ", ") + to_string(shape);
  }
  call.name += " of " + values + (has_integers ? ", integers " + std::to_string(integer) : "") +
               (longer.arguments_too ? ", longer arguments" : "");
  return call;
}

/// Gives the call ones as gradients of the results that have one. False where the operator refuses
/// the call, or its results would be too large.
bool completed(CallSample& sample) {
  ResultShapes results;
  try {
    if (sample.op->infer != nullptr) {
      sample.op->infer({*sample.op, sample.inputs, sample.attributes}, results);
    }
  } catch (const Error&) {
    return false;
  }
  for (const ResultShape& result : results) {
    if (result.shape.product() > most_elements) {
      return false;
    }
  }
  for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
    Tensor& gradient = sample.output_gradients[i];
    if (gradient && i < results.size()) {
      gradient = full(results[i].shape, 1, results[i].dtype);
    }
  }
  return true;
}

Tensor in_f32(const Tensor& x) {
  return x && is_floating(x.dtype()) && size_of(x.dtype()) == 2 ? ops::cast(x, DType::f32) : x;
}

CallSample in_f32(const CallSample& sample) {
  const NoGrad constant;
  CallSample wide = sample;
  for (Tensor& x : wide.inputs) {
    x = in_f32(x);
  }
  return wide;
}

class Comparison {
 public:
  Comparison(const CallSample& sample, SumAccount& account) : sample_(sample), account_(account) {}

  /// `alone`: of one operator, which rounds once; else of several, whose roundings add up.
  void compare(const char* what, const std::vector<Tensor>& found,
               const std::vector<Tensor>& wanted, bool alone) {
    for (std::size_t i = 0; i < found.size() && i < wanted.size(); ++i) {
      if (found[i] && wanted[i] && is_floating(found[i].dtype()) &&
          size_of(found[i].dtype()) == 2) {
        compare(what + (" " + std::to_string(i)), found[i], wanted[i], alone);
      }
    }
  }

 private:
  /// Whether a value of this type can be that of f32. Of several operators, small sums may consist
  /// of rounding; a large one that stops growing is too small by a factor, whatever rounding does.
  static bool fits(double found, double wanted, DType dtype, bool alone) {
    const bool grew = std::abs(wanted) < 256 || std::abs(found) > 0.6 * std::abs(wanted);
    const double allowed = 4 * epsilon(dtype) * std::abs(wanted) + 1e-5;
    return alone ? std::abs(found - wanted) <= allowed : grew;
  }

  void compare(const std::string& what, const Tensor& found, const Tensor& wanted, bool alone) {
    const std::vector<double> values = to_doubles(found);
    const std::vector<double> sums = to_doubles(wanted);
    const double largest = found.dtype() == DType::f16 ? 65504.0 : 3e38;
    for (std::size_t k = 0; k < values.size() && k < sums.size(); ++k) {
      if (!(std::abs(sums[k]) < largest)) {
        continue;
      }
      ++account_.compared;
      account_.long_sums +=
          std::abs(sums[k]) >= static_cast<double>(terms_of(found.dtype())) / 4 ? 1 : 0;
      if (!fits(values[k], sums[k], found.dtype(), alone)) {
        account_.findings.push_back(
            sample_.name + ": " + what + " has " + std::to_string(values[k]) + " where f32 has " +
            std::to_string(sums[k]) + "; a sum in 16 bits must be formed in f32 and rounded once");
        return;
      }
    }
  }

  const CallSample& sample_;
  SumAccount& account_;
};

}  // namespace

SumAccount check_sums(std::span<const CallSample> samples) {
  SumAccount account;
  const auto compare = [&](CallSample call) {
    if (!completed(call)) {
      return;
    }
    CallSample wide = in_f32(call);
    if (!completed(wide)) {
      return;
    }
    const CallResult found = call_plain(call);
    const CallResult wanted = call_plain(wide);
    if (!found.error.empty() || !wanted.error.empty()) {
      return;  // values that the operator refuses
    }
    ++account.calls;
    Comparison comparison(call, account);
    comparison.compare("result", found.out, wanted.out, true);
    comparison.compare("written operand", found.written, wanted.written, true);
    if (found.backward_error.empty() && wanted.backward_error.empty()) {
      comparison.compare("gradient", found.gradients, wanted.gradients, false);
    }
  };
  std::set<std::string> names;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<CallSample> narrow = in_type(samples, dtype);
    if (dtype == DType::f16 && !narrow.empty()) {
      // The types differ in what they are loaded by, not in how they are summed.
      narrow.resize(1);
      narrow[0].output_gradients.clear();
    }
    const std::int64_t terms = terms_of(dtype);
    for (const CallSample& sample : narrow) {
      for (const LongExtent& longer : choices_of(sample, terms)) {
        for (const std::int64_t integer : {std::int64_t{0}, terms / 4}) {
          auto call = longer_call(sample, longer, integer);
          if (call && names.insert(call->name).second) {
            compare(*std::move(call));
          }
        }
      }
    }
  }
  return account;
}

}  // namespace tessera::conformance
