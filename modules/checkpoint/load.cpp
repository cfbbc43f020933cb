module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :job;
import :stored_values;

namespace tessera {
namespace {

bool share_memory(const Tensor& a, const Tensor& b) {
  if (a.same_as(b)) {
    return true;
  }
  const Tensor& x = local_of(a);
  const Tensor& y = local_of(b);
  return a.shape() == b.shape() && a.dtype() == b.dtype() && x.device() == y.device() &&
         x.device_address() != nullptr && x.device_address() == y.device_address() &&
         x.strides() == y.strides();
}

/// The box that this rank holds.
LocalPart own_part(const Tensor& x) {
  if (x.is_distributed()) {
    return local_part(x.shape(), x.layout(), current_rank());
  }
  return {Dims::filled(x.dims(), 0), x.shape()};
}

/// Why a stored tensor cannot fill this one; "" when it can.
std::string misfit(const TensorInfo& stored, const Tensor& x, const LoadOptions& options,
                   bool will_fill) {
  if (!(stored.shape == x.shape())) {
    return fmt::format("shape (expected {}, got {})", to_string(x.shape()),
                       to_string(stored.shape));
  }
  if (stored.dtype != x.dtype() && !(options.cast && can_cast(stored.dtype, x.dtype()))) {
    return fmt::format("type (expected {}, got {})", name_of(x.dtype()), name_of(stored.dtype));
  }
  if (!will_fill) {
    return "";
  }
  if (x.is_meta()) {
    return "no memory (it is on the meta device; materialise the model first)";
  }
  if (x.is_distributed() && x.layout().has_partial()) {
    return fmt::format("layout ({} cannot be filled)", to_string(x.layout()));
  }
  if (!(local_of(x).shape() == own_part(x).shape)) {
    return fmt::format("local shape (expected {}, got {})", to_string(own_part(x).shape),
                       to_string(local_of(x).shape()));
  }
  return "";
}

bool is_ignored(const std::string& name, const LoadOptions& options) {
  return std::any_of(options.ignore.begin(), options.ignore.end(),
                     [&](const std::string& pattern) { return matches_pattern(name, pattern); });
}

/// The first of them, and how many more there are.
std::string first_of(const std::vector<std::string>& words, const char* between = ", ") {
  constexpr std::size_t most = 6;
  if (words.size() <= most + 1) {
    return fmt::format("{}", fmt::join(words, between));
  }
  return fmt::format("{} and {} more", fmt::join(words.begin(), words.begin() + most, between),
                     words.size() - most);
}

/// Compares names, shapes and types; nothing is written.
class Comparison {
 public:
  Comparison(const TensorSource& from, const StateDict& into, const LoadOptions& options,
             bool with_scalars, bool will_fill)
      : from_(from), into_(into), options_(options), will_fill_(will_fill) {
    check_base();
    compare_tensors();
    if (with_scalars) {
      compare_scalars();
    }
  }

  LoadReport finish() {
    std::vector<std::string> lines = std::move(misfits_);
    if (options_.strict && !report_.missing.empty()) {
      lines.push_back(fmt::format("missing: {}", first_of(report_.missing)));
    }
    if (options_.strict && !report_.unexpected.empty()) {
      lines.push_back(fmt::format("unexpected: {}", first_of(report_.unexpected)));
    }
    if (!lines.empty()) {
      fail_input(
          fmt::format("{}: the stored tensors do not fit the model; {}; use the config that it was "
                      "saved with",
                      from_.path(), first_of(lines, "; ")));
    }
    return std::move(report_);
  }

 private:
  /// The tensors that the checkpoint leaves out must be there already.
  void check_base() {
    const CheckpointBase* const base = from_.base().get();
    if (base == nullptr || base->hash == options_.base) {
      return;
    }
    if (options_.base.empty()) {
      fail_input({.thing = from_.path(),
                  .wrong = fmt::format("it leaves out {} of its tensors, which are those of {}",
                                       base->tensors.size(), base->path),
                  .advice = "start from that model (model.from)"});
    }
    fail_input({.thing = from_.path(),
                .wrong = fmt::format("the tensors that it leaves out are those of another base "
                                     "({} when it was saved)",
                                     base->path),
                .expected = "the hash " + base->hash,
                .got = options_.base,
                .advice = "start from the model that the run started from"});
  }

  /// Whether the state has the values already.
  bool is_of_base(const std::string& name, const Tensor& tensor) {
    if (!from_.base()) {
      return false;
    }
    const auto found = from_.base()->tensors.find(options_.prefix + name);
    if (found == from_.base()->tensors.end()) {
      return false;
    }
    const std::string problem = misfit(found->second, tensor, options_, false);
    if (!problem.empty()) {
      misfits_.push_back(fmt::format("'{}': {}", name, problem));
    }
    return true;
  }

  template <class Stored, class Wanted>
  void find_unexpected(const Stored& stored, const Wanted& wanted) {
    for (const auto& [name, value] : stored) {
      if (name.starts_with(options_.prefix) &&
          !wanted.contains(name.substr(options_.prefix.size())) && !is_ignored(name, options_)) {
        report_.unexpected.push_back(name);
      }
    }
  }

  void compare_tensors() {
    for (const auto& [name, tensor] : into_.tensors) {
      if (!tensor) {
        misfits_.push_back(fmt::format("'{}': the tensor is undefined", name));
        continue;
      }
      const auto stored = from_.tensors().find(options_.prefix + name);
      if (stored == from_.tensors().end()) {
        if (!is_of_base(name, tensor) && !is_tied(tensor)) {
          report_.missing.push_back(name);
        }
        continue;
      }
      const std::string problem = misfit(stored->second, tensor, options_, will_fill_);
      if (!problem.empty()) {
        misfits_.push_back(fmt::format("'{}': {}", name, problem));
      }
    }
    find_unexpected(from_.tensors(), into_.tensors);
  }

  void compare_scalars() {
    for (const auto& [name, scalar] : into_.scalars) {
      const auto stored = from_.scalars().find(options_.prefix + name);
      if (stored == from_.scalars().end()) {
        report_.missing.push_back(name);
      } else if (stored->second.index() != scalar.index()) {
        misfits_.push_back(fmt::format("'{}': the scalar has another type", name));
      }
    }
    find_unexpected(from_.scalars(), into_.scalars);
  }

  bool is_tied(const Tensor& tensor) const {
    return std::any_of(into_.tensors.begin(), into_.tensors.end(), [&](const auto& other) {
      return other.second && from_.contains(options_.prefix + other.first) &&
             share_memory(tensor, other.second);
    });
  }

  const TensorSource& from_;
  const StateDict& into_;
  const LoadOptions& options_;
  bool will_fill_;
  LoadReport report_;
  std::vector<std::string> misfits_;
};

/// Files of other programs may hold anything, so their values are checked, and they have no
/// scalars of ours.
LoadReport load_into(const TensorSource& from, StateDict& into, const LoadOptions& options,
                     bool from_others) {
  LoadReport report = Comparison(from, into, options, !from_others, true).finish();
  for (const auto& [name, tensor] : into.tensors) {
    if (from.contains(options.prefix + name)) {
      const LocalPart part = own_part(tensor);
      const Tensor there = detached(local_of(tensor));
      // Files are read into the host's memory.
      const Tensor local = is_on_host(there) ? there : empty(there.shape(), there.dtype());
      from.read(options.prefix + name, part, local);
      if (!is_on_host(there)) {
        const NoGrad constant;
        ops::copy_(there, local);
      }
      if (from_others) {
        checkpoint_detail::check_finite(
            local, part.offset, fmt::format("{}: tensor '{}'", from.path(), options.prefix + name));
      }
    }
  }
  for (auto& [name, scalar] : into.scalars) {
    const auto stored = from.scalars().find(options.prefix + name);
    if (!from_others && stored != from.scalars().end()) {
      scalar = stored->second;
    }
  }
  return report;
}

void check(const TensorSource& from, const StateDict& state, const LoadOptions& options) {
  Comparison(from, state, options, false, false).finish();
}

}  // namespace

void check_weights(const TensorSource& from, const StateDict& state, const LoadOptions& options) {
  check(from, state, options);
  checkpoint_detail::check_tied(from, state, options.prefix);
}

void check_weight_values(const TensorSource& from, const StateDict& state,
                         const LoadOptions& options) {
  checkpoint_detail::check_stored_finite(from, state, options.prefix);
}

bool has_stored_values(const TensorSource& from, const StateDict& state) {
  using checkpoint_detail::bytes_of;
  for (const auto& [name, tensor] : state.tensors) {
    if (!from.contains(name)) {
      continue;
    }
    if (!(from.info(name) == TensorInfo{tensor.dtype(), tensor.shape()})) {
      return false;
    }
    const Tensor own = checkpoint_detail::packed(local_of(tensor));
    const Tensor stored = empty(own.shape(), own.dtype());
    from.read(name, own_part(tensor), stored);
    if (!std::ranges::equal(bytes_of(own), bytes_of(stored))) {
      return false;
    }
  }
  return true;
}

void check_state(const TensorSource& from, const StateDict& state, const LoadOptions& options) {
  check(from, state, options);
}

LoadReport load_state(const TensorSource& from, StateDict& into, const LoadOptions& options) {
  return load_into(from, into, options, false);
}

LoadReport load_weights(const TensorSource& from, StateDict& into, const LoadOptions& options) {
  return load_into(from, into, options, true);
}

}  // namespace tessera
