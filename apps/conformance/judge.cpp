module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

// Judges what the ranks gave, and goes through an operator's placements.
namespace tessera::conformance {
namespace {

/// Says where a case is wrong.
class Judge {
 public:
  Judge(const Case& one, const DeviceMesh& mesh, const CallResult& plain, Verdict& verdict)
      : case_(one), mesh_(mesh), plain_(plain), account_(verdict) {}

  /// Whether the operator accepted the operands.
  bool judge(std::span<const CallResult* const> ranks) {
    const std::string& first = ranks[0]->error;
    for (const CallResult* r : ranks) {
      if (r->error != first || !r->error.empty()) {
        judge_refusal(ranks);
        return false;
      }
    }
    ++account_.accepted;
    account_.placed += is_placed() ? 1 : 0;
    for (const CallResult* r : ranks) {
      if (!r->communicated.empty()) {
        report("communicates: " + r->communicated);
        return true;
      }
    }
    compare("result", ranks, &CallResult::out);
    compare("written operand", ranks, &CallResult::written);
    for (const CallResult* r : ranks) {
      if (!r->backward_error.empty()) {
        judge_failed_backward(ranks);
        return true;
      }
    }
    compare("gradient", ranks, &CallResult::gradients);
    return true;
  }

 private:
  void report(const std::string& what) {
    std::string text = case_.sample->name + " on " + to_string(mesh_) + " with";
    for (std::size_t i = 0; i < case_.layouts.size(); ++i) {
      const Tensor& x = case_.sample->inputs[i];
      text += x ? " " + to_string(x.shape()) + to_string(case_.layouts[i]) : " none";
    }
    account_.findings.push_back(
        text + (case_.form == GradientForm::natural ? " (natural gradients)" : "") + ": " + what);
  }

  /// Whether an operand is other than Replicate on an axis of several ranks.
  bool is_placed() const {
    for (std::size_t i = 0; i < case_.layouts.size(); ++i) {
      for (int axis = 0; case_.sample->inputs[i] && axis < mesh_.ndim(); ++axis) {
        if (mesh_.axis_size(axis) > 1 && !case_.layouts[i].placement(axis).is_replicate()) {
          return true;
        }
      }
    }
    return false;
  }

  /// Whether some tensor is Partial in a way whose terms do not add up to the value.
  static bool has_extremum(const Layout& layout) {
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      const Placement p = layout.placement(axis);
      if (layout.mesh().axis_size(axis) > 1 && p.is_partial() && !(p == Partial()) &&
          !(p == Partial(ReduceOp::avg))) {
        return true;
      }
    }
    return false;
  }

  /// A backward may fail only where it needs a value that no rank has before it is communicated:
  /// which rank holds an extremum, nobody knows. So an operand or a result is an extremum, a
  /// product or a norm in parts, every rank refuses, and with communication allowed the gradients
  /// are right.
  void judge_failed_backward(std::span<const CallResult* const> ranks) {
    bool in_parts = false;
    for (std::size_t i = 0; i < case_.layouts.size(); ++i) {
      in_parts = in_parts || (case_.sample->inputs[i] && has_extremum(case_.layouts[i]));
    }
    for (const Tensor& out : ranks[0]->out) {
      in_parts = in_parts || (out && has_extremum(out.layout()));
    }
    const std::string& first = ranks[0]->backward_error;
    for (const CallResult* r : ranks) {
      if (!in_parts || r->backward_error.empty()) {
        report("backward: " + (first.empty() ? r->backward_error : first));
        return;
      }
      if (!r->communicating_error.empty()) {
        report("backward, with communication allowed: " + r->communicating_error);
        return;
      }
    }
    ++account_.excused;
    compare("gradient, with communication allowed,", ranks, &CallResult::gradients);
  }

  /// A refusal is right when all ranks refuse with an Error that names the operator and a layout.
  void judge_refusal(std::span<const CallResult* const> ranks) {
    ++account_.refused;
    for (const CallResult* r : ranks) {
      if (r->error.empty()) {
        const CallResult* other = *std::find_if(
            ranks.begin(), ranks.end(), [](const CallResult* o) { return !o->error.empty(); });
        report("only some ranks refuse: " + other->error);
        return;
      }
      if (!r->refusal || r->error.find("placement rule is wrong") != std::string::npos) {
        report("fails: " + r->error);
        return;
      }
      bool names_layout = false;
      for (std::size_t i = 0; i < case_.layouts.size(); ++i) {
        names_layout =
            names_layout || (case_.sample->inputs[i] &&
                             r->error.find(to_string(case_.layouts[i])) != std::string::npos);
      }
      if (!r->error.starts_with(case_.sample->op->name + ":") || !names_layout) {
        report("refuses without naming itself and a layout: " + r->error);
        return;
      }
    }
  }

  void compare(const char* what, std::span<const CallResult* const> ranks,
               std::vector<Tensor> CallResult::* member) {
    const std::vector<Tensor>& expected = plain_.*member;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::vector<Tensor> parts;
      for (const CallResult* r : ranks) {
        parts.push_back(i < (r->*member).size() ? (r->*member)[i] : Tensor());
      }
      const std::string name = what + (" " + std::to_string(i));
      try {
        compare(name, parts, expected[i]);
      } catch (const std::exception& error) {
        report(name + ": " + error.what());
      }
    }
  }

  void compare(const std::string& name, std::span<const Tensor> parts, const Tensor& expected) {
    for (const Tensor& part : parts) {
      if (part.defined() != expected.defined()) {
        report(name + (expected ? " is missing" : " should not exist"));
        return;
      }
    }
    if (!expected) {
      return;
    }
    const Spec& spec = *parts[0].spec();
    if (!(spec.shape == expected.shape()) || spec.dtype != expected.dtype()) {
      report(name + " is " + to_string(spec) + " where the plain one is " + to_string(expected));
      return;
    }
    const std::vector<double> found = whole_value(parts);
    const std::vector<double> wanted = to_doubles(expected);
    const double allowed = rounding(*case_.sample, expected, parts.size());
    // Parts of both signs, brought to infinity each for itself, have no sum.
    bool in_parts = false;
    for (std::size_t i = 0; i < case_.layouts.size(); ++i) {
      in_parts = in_parts || (case_.sample->inputs[i] && case_.layouts[i].has_partial());
    }
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (in_parts && std::isinf(wanted[k]) && std::isnan(found[k])) {
        continue;
      }
      const bool equal = found[k] == wanted[k] || (std::isnan(found[k]) && std::isnan(wanted[k])) ||
                         std::abs(found[k] - wanted[k]) <= allowed * (1 + std::abs(wanted[k]));
      if (!equal) {
        report(name + " as " + to_string(spec) + " has " + std::to_string(found[k]) +
               " at element " + std::to_string(k) + " where the plain one has " +
               std::to_string(wanted[k]));
        return;
      }
    }
  }

  const Case& case_;
  const DeviceMesh& mesh_;
  const CallResult& plain_;
  Verdict& account_;
};

/// Without extrema and products: reductions of different kinds on two axes have no defined order.
std::vector<Placements> linear_ones(const std::vector<Placements>& placements) {
  std::vector<Placements> kept;
  for (const Placements& each : placements) {
    if (std::all_of(each.begin(), each.end(), [](Placement p) {
          return !p.is_partial() || p == Partial() || p == Partial(ReduceOp::avg);
        })) {
      kept.push_back(each);
    }
  }
  return kept;
}

std::string in_words(const Placements& placements) {
  std::string text;
  for (const Placement p : placements) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

/// The check of one operator: its samples on meshes of one axis, then on grids.
class OperatorCheck {
 public:
  OperatorCheck(std::span<const CallSample> samples, const Extent& extent)
      : samples_(samples), extent_(extent), accepted_(samples.size()) {}

  Verdict operator()() {
    if (!call_all_plain()) {
      return std::move(verdict_);
    }
    for (const int size : extent_.sizes) {
      check_axis(size);
    }
    for (const Dims& shape : extent_.grids) {
      check_grid(shape);
    }
    note_narrow_rules();
    return std::move(verdict_);
  }

 private:
  struct PlannedCase {
    Case one;
    std::size_t sample;
    const Placements* placements;  // of one-axis cases
  };

  /// On plain tensors: what every layout must give. False: one of them fails.
  bool call_all_plain() {
    for (const CallSample& sample : samples_) {
      plain_.push_back(call_plain(sample, extent_.order));
      if (!plain_.back().error.empty() || !plain_.back().backward_error.empty()) {
        verdict_.findings.push_back(sample.name + " fails on plain tensors: " +
                                    plain_.back().error + plain_.back().backward_error);
        return false;
      }
      placements_.push_back(axis_placements(sample, extent_.one_axis_cases));
    }
    return true;
  }

  void check_axis(int size) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, Dims{size});
    std::vector<PlannedCase> planned;
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      for (const Placements& p : placements_[s]) {
        plan(planned, s, one_axis_layouts(mesh, samples_[s], p), &p);
      }
    }
    check(mesh, planned);
  }

  void check_grid(const Dims& shape) {
    const std::vector<std::string> names{"a", "b", "c"};
    const DeviceMesh mesh = DeviceMesh::make({names.begin(), names.begin() + shape.size()}, shape);
    std::vector<PlannedCase> planned;
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      for (Layouts& layouts :
           grid_layouts(mesh, linear_ones(placements_[s]), linear_ones(accepted_[s]), extent_)) {
        plan(planned, s, std::move(layouts), nullptr);
      }
    }
    check(mesh, planned);
  }

  void plan(std::vector<PlannedCase>& planned, std::size_t s, Layouts layouts,
            const Placements* from) {
    const bool natural = planned.size() % 2 != 0;
    planned.push_back(
        {{&samples_[s], std::move(layouts),
          natural ? GradientForm::natural : GradientForm::replicate, extent_.order, extent_.place},
         s,
         from});
    if (extent_.both_gradient_forms) {
      planned.push_back(planned.back());
      planned.back().one.form = natural ? GradientForm::replicate : GradientForm::natural;
    }
  }

  void check(const DeviceMesh& mesh, const std::vector<PlannedCase>& planned) {
    std::vector<Case> cases;
    for (const PlannedCase& p : planned) {
      cases.push_back(p.one);
    }
    const std::vector<std::vector<CallResult>> results = run_cases(mesh, cases);
    for (std::size_t c = 0; c < planned.size(); ++c) {
      const PlannedCase& p = planned[c];
      std::vector<const CallResult*> ranks;
      for (const std::vector<CallResult>& rank : results) {
        ranks.push_back(&rank[c]);
      }
      const bool taken = Judge(p.one, mesh, plain_[p.sample], verdict_).judge(ranks);
      if (p.placements == nullptr) {
        continue;
      }
      if (taken) {
        accepted_[p.sample].push_back(*p.placements);
      } else if (extent_.list_narrow && mesh.size() > 1) {
        const std::string right = right_as(samples_[p.sample], *p.placements, plain_[p.sample],
                                           static_cast<int>(mesh.size()));
        if (!right.empty()) {
          ++right_on_[samples_[p.sample].name + " " + in_words(*p.placements) + " -> " + right];
        }
      }
    }
  }

  /// Notes refusals that would be right on every mesh.
  void note_narrow_rules() {
    const std::ptrdiff_t times = std::count_if(extent_.sizes.begin(), extent_.sizes.end(),
                                               [](int size) { return size > 1; }) *
                                 (extent_.both_gradient_forms ? 2 : 1);
    for (const auto& [text, count] : right_on_) {
      if (count == times) {
        verdict_.narrow.insert(text);
      }
    }
  }

  std::span<const CallSample> samples_;
  const Extent& extent_;
  Verdict verdict_;
  std::vector<CallResult> plain_;                    // by sample
  std::vector<std::vector<Placements>> placements_;  // by sample
  std::vector<std::vector<Placements>> accepted_;    // by sample
  std::map<std::string, std::ptrdiff_t> right_on_;   // how many times what is refused is right
};

}  // namespace

Verdict check_operator(std::span<const CallSample> samples, const Extent& extent) {
  return OperatorCheck(samples, extent)();
}

}  // namespace tessera::conformance
