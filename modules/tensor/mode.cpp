// The stack of modes. The dispatcher tests whether it has a mode; everything else is here.
module;
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
module tessera.tensor;

import tessera.base;
import :path;

namespace tessera {
namespace {

ModesSlot modes_slot = nullptr;

bool is_above(ModeLevel level) { return level == ModeLevel::above_distribution; }

ResultShapes shapes_of(const Tensors& tensors) {
  ResultShapes shapes;
  for (const Tensor& x : tensors) {
    shapes.push_back(x ? ResultShape{x.shape(), x.dtype()} : ResultShape{});
  }
  return shapes;
}

std::string text_of(const ResultShapes& shapes) {
  std::string text;
  for (const ResultShape& r : shapes) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name_of(r.dtype), to_string(r.shape));
  }
  return text.empty() ? "none" : text;
}

bool same(const ResultShapes& a, const ResultShapes& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = a[i].dtype == b[i].dtype && a[i].shape == b[i].shape;
  }
  return equal;
}

/// Shapes of the operator's results, where nothing has computed them.
ResultShapes inferred(const Call& call) {
  ResultShapes shapes;
  if (call.op.infer != nullptr) {
    call.op.infer(call, shapes);
  } else if (call.op.in_place) {
    shapes.push_back({call.in[0].shape(), call.in[0].dtype()});
  }
  return shapes;
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  constexpr std::string_view names[] = {"create",        "read",       "module",     "phase",
                                        "gradient_hook", "accumulate", "collective", "wait",
                                        "release",       "restore"};
  return names[static_cast<int>(kind)];
}

bool encloses(ActionKind kind) {
  return kind == ActionKind::module || kind == ActionKind::phase ||
         kind == ActionKind::gradient_hook || kind == ActionKind::accumulate;
}

Mode::~Mode() = default;
Tensors Mode::call(const Call& call, NextCall& next) { return next(call); }
void Mode::perform(Action& action, NextAction& next) { next(action); }

ModeScope::ModeScope(ModeLevel level, Mode& mode) : mode_(mode), level_(level) {
  if (std::exchange(mode.installed_, true)) {
    fail({.thing = "mode",
          .wrong = "it is installed already",
          .advice = "a mode is at one level of one thread at a time (use an object for each)"});
  }
  PathState& path = path_state();
  if (++path.scopes == 1) {
    __atomic_fetch_add(&threads_with_modes, 1, __ATOMIC_RELAXED);
    if (modes_slot != nullptr) {
      modes_slot(true);
    }
  }
  below_ = is_above(level) ? path.above : path.below;
  TopModes::set(path, is_above(level) ? this : path.above, is_above(level) ? path.below : this);
}

ModeScope::~ModeScope() {
  mode_.installed_ = false;
  PathState& path = path_state();
  TopModes::set(path, is_above(level_) ? below_ : path.above,
                is_above(level_) ? path.below : below_);
  if (--path.scopes == 0) {
    __atomic_fetch_sub(&threads_with_modes, 1, __ATOMIC_RELAXED);
    if (modes_slot != nullptr) {
      modes_slot(false);
    }
  }
}

void set_modes_slot(ModesSlot slot) { modes_slot = slot; }

bool modes_installed() { return path_state().has_modes; }

std::uint64_t recordings() { return path_state().recordings; }
void begin_recording() { ++path_state().recordings; }

Tensors ModeStack::call(ModeLevel level, const Call& call) {
  PathState& path = path_state();
  const ModeScope& scope = *(is_above(level) ? path.above : path.below);
  const TopModes hidden(path, is_above(level) ? scope.below_ : path.above,
                        is_above(level) ? path.below : scope.below_);
  NextCall next(level);
  Tensors out = scope.mode_.call(call, next);
  next.check(call, out);
  return out;
}

Tensors NextCall::operator()(const Op& op, std::span<const Tensor> in,
                             const Attributes& attributes) {
  check_call(op, in, attributes);
  Tensors out = level_ == ModeLevel::above_distribution ? call_below_autograd(op, in, attributes)
                                                        : call_kernel(op, in, attributes);
  returned_ = shapes_of(out);
  called_ = true;
  return out;
}

void NextCall::check(const Call& call, const Tensors& out) const {
  const ResultShapes expected = called_ ? returned_ : inferred(call);
  const ResultShapes got = shapes_of(out);
  if (!same(expected, got)) {
    fail({.thing = call.op.name,
          .wrong = "the results that a mode returns are wrong",
          .expected = text_of(expected),
          .got = text_of(got),
          .advice = "return what the operator would return"});
  }
}

/// One action on its way through the modes.
struct ActionPath {
  PathState& path;
  const std::function<void()>& run;
  bool below_only;
  ModeScope* above = path.above;
  ModeScope* below = path.below;

  void next(Action& action) {
    if (path.above != nullptr && !below_only) {
      pass(*path.above, action, ModeStack::next(*path.above), path.below);
    } else if (path.below != nullptr) {
      pass(*path.below, action, path.above, ModeStack::next(*path.below));
    } else {
      // Actions within a scope are seen by all modes, parts of another action by none.
      const bool seen = encloses(action.kind);
      const TopModes modes(path, seen ? above : nullptr, seen ? below : nullptr);
      run();
    }
  }

  void pass(const ModeScope& scope, Action& action, ModeScope* next_above, ModeScope* next_below) {
    const TopModes hidden(path, next_above, next_below);
    NextAction following(*this);
    ModeStack::mode(scope).perform(action, following);
  }
};

void NextAction::operator()(Action& action) { path_.next(action); }

void perform(Action& action, const std::function<void()>& run, ModeLevel level) {
  ActionPath{path_state(), run, level == ModeLevel::below_distribution}.next(action);
}

}  // namespace tessera
