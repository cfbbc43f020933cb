// Memory that operands, results and gradients have in common, for every registered operator: no
// operator is known here by name. Shared memory is found by comparing addresses, without the
// library's own functions for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "../conformance/conformance.hpp"
#include "operator_samples.hpp"
#include "recorded_samples.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace on_graph;

namespace {

/// Calls f(element's index, its address) for each element.
template <class F>
void for_each_address(const Tensor& x, F f) {
  Dims index = Dims::filled(x.dims(), 0);
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t at = 0;
    for (int d = 0; d < x.dims(); ++d) {
      at += index[d] * x.strides()[d];
    }
    f(i, static_cast<std::byte*>(x.raw_data()) + at * size);
    for (int d = x.dims() - 1; d >= 0 && ++index[d] == x.shape()[d]; --d) {
      index[d] = 0;
    }
  }
}

/// Which tensor has each address; where two have one, or one has it twice, that is a finding.
class Owners {
 public:
  void add(const std::string& name, const Tensor& x, bool alone) {
    if (!x) {
      return;
    }
    for_each_address(x, [&](std::int64_t, std::byte* address) {
      const auto [at, fresh] = owner_.emplace(address, std::pair(name, alone));
      if (!fresh && (alone || at->second.second) && findings_.size() < 3) {
        findings_.insert(name + " shares memory with " + at->second.first);
      }
    });
  }
  const std::set<std::string>& findings() const { return findings_; }

 private:
  std::map<const std::byte*, std::pair<std::string, bool>> owner_;
  std::set<std::string> findings_;
};

/// Whether both lists have the same values, undefined in the same places.
bool same_values(std::span<const Tensor> a, std::span<const Tensor> b, double most) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) {
    same = a[i].defined() == b[i].defined() &&
           (!a[i] || largest_difference(ops::clone(a[i]), ops::clone(b[i])) <= most);
  }
  return same;
}

/// All that must be apart: each of `gradients` from everything.
void check_apart(Findings& all, const std::string& name, const Recorded& r,
                 std::span<const Tensor> gradients) {
  Owners owners;
  const auto add = [&](const char* what, std::span<const Tensor> list, bool alone) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      owners.add(what + std::to_string(i), list[i], alone);
    }
  };
  add("operand ", r.leaves, false);
  add("result ", r.out, false);
  add("root gradient ", r.root_gradients, false);
  add("gradient ", gradients, true);
  for (const std::string& finding : owners.findings()) {
    all.insert(name + ": " + finding);
  }
  for (const Tensor& g : gradients) {
    if (g && !g.is_contiguous()) {
      all.insert(name + ": a gradient is not dense");
    }
  }
}

/// Writing one gradient changes no other tensor.
void check_writes(Findings& all, const std::string& name, const Recorded& r) {
  const std::vector<Tensor> gradients = r.gradients_of_leaves();
  std::vector<Tensor> others(r.leaves);
  others.insert(others.end(), r.out.begin(), r.out.end());
  others.insert(others.end(), r.root_gradients.begin(), r.root_gradients.end());
  for (const Tensor& g : gradients) {
    if (!g) {
      continue;
    }
    std::vector<Tensor> rest = others;
    std::copy_if(gradients.begin(), gradients.end(), std::back_inserter(rest),
                 [&](const Tensor& x) { return !x.same_as(g); });
    const std::vector<Tensor> before = clones(rest);
    ops::fill_(g, -12.5);
    if (!same_values(rest, before, 0)) {
      all.insert(name + ": writing a gradient changes another tensor");
    }
  }
}

}  // namespace

TEST_CASE("no operator's gradients share memory with anything") {
  Findings findings;
  std::set<std::string> checked;
  for (const CallSample& sample : samples()) {
    if (!differentiable(sample)) {
      continue;
    }
    find_in(findings, sample.name, [&] {
      const Recorded r(sample);
      if (r.roots.empty()) {
        return;
      }
      checked.insert(sample.op->name);
      backward(r.roots, r.root_gradients, {.retain_graph = true});
      check_apart(findings, sample.name, r, r.gradients_of_leaves());
      std::vector<Tensor> wanted;
      for (const Tensor& x : r.leaves) {
        if (x && x.requires_grad()) {
          wanted.insert(wanted.end(), {x, x});
        }
      }
      wanted.insert(wanted.end(), r.roots.begin(), r.roots.end());
      check_apart(findings, sample.name + ", requested", r,
                  gradients(r.roots, r.root_gradients, wanted));
      check_writes(findings, sample.name, r);
    });
  }
  CHECK(findings == none());
  CHECK(checked.size() > 100);
}

TEST_CASE("every operator's backward reads gradients that repeat or space their elements") {
  Findings findings;
  for (const CallSample& sample : samples()) {
    if (!differentiable(sample)) {
      continue;
    }
    find_in(findings, sample.name, [&] {
      const auto backward_with = [&](const std::function<Tensor(const Tensor&)>& form) {
        const Recorded r(sample);
        std::vector<Tensor> gradients;
        for (const Tensor& g : r.root_gradients) {
          gradients.push_back(form(g));
        }
        if (!r.roots.empty()) {
          backward(r.roots, gradients);
        }
        return r.gradients_of_leaves();
      };
      if (!same_values(backward_with(spaced), backward_with([](const Tensor& g) { return g; }),
                       1e-12)) {
        findings.insert(sample.name + ": spaced");
      }
      const auto transposed = [](const Tensor& g) {
        return g.dims() < 2 ? g : ops::transpose(ops::contiguous(ops::transpose(g, 0, -1)), 0, -1);
      };
      if (!same_values(backward_with(transposed), backward_with([](const Tensor& g) { return g; }),
                       1e-12)) {
        findings.insert(sample.name + ": transposed");
      }
      const auto same = [](const Tensor& g) { return full({}, 0.75, g.dtype()); };
      if (!same_values(
              backward_with([&](const Tensor& g) { return ops::expand(same(g), g.shape()); }),
              backward_with([&](const Tensor& g) { return full(g.shape(), 0.75, g.dtype()); }),
              1e-12)) {
        findings.insert(sample.name + ": expanded");
      }
    });
  }
  CHECK(findings == none());
}

TEST_CASE("operators of several results differentiate when one gradient arrives") {
  Findings findings;
  std::size_t several = 0;
  for (const CallSample& sample : samples()) {
    if (!differentiable(sample)) {
      continue;
    }
    const std::size_t count = Recorded(sample).roots.size();
    several += count > 1 ? 1 : 0;
    for (std::size_t i = 0; count > 1 && i < count; ++i) {
      find_in(findings, sample.name + ", result " + std::to_string(i), [&] {
        const Recorded one(sample);
        backward({&one.roots[i], 1}, {&one.root_gradients[i], 1});
        Recorded all(sample);  // the same as with zeros for the others
        for (std::size_t k = 0; k < count; ++k) {
          if (k != i) {
            ops::fill_(all.root_gradients[k], 0);
          }
        }
        backward(all.roots, all.root_gradients);
        for (std::size_t k = 0; k < one.leaves.size(); ++k) {
          const Tensor g = one.gradients_of_leaves()[k];
          const Tensor h = all.gradients_of_leaves()[k];
          const Tensor zero = h ? ops::zeros_like(h) : Tensor();
          if (!same_values({g ? &g : &zero, 1}, {&h, 1}, 1e-12)) {
            findings.insert(sample.name + ": another gradient than with zeros");
          }
        }
      });
    }
  }
  CHECK(findings == none());
  CHECK(several > 0);
}

TEST_CASE("writing what an operator saved is an error in backward, for results as for operands") {
  Findings findings;
  std::size_t saved = 0;
  for (const CallSample& sample : samples()) {
    if (!differentiable(sample)) {
      continue;
    }
    const auto check = [&](bool result, std::size_t i) {
      const Recorded r(sample);
      const Tensor& x = result ? r.out[i] : r.leaves[i];
      if (r.roots.empty() || !x || x.numel() == 0 || repeats_elements(x)) {
        return;
      }
      ++saved;
      ops::fill_(detached(x), 1);
      const std::string error = error_of([&] { backward(r.roots, r.root_gradients); });
      if (!contains(error, "changed in place")) {
        findings.insert(sample.name + (result ? ": result " : ": operand ") + std::to_string(i));
      }
    };
    for (std::size_t i = 0; i < 64; ++i) {
      if (((sample.op->saves_inputs >> i) & 1U) != 0 && i < sample.inputs.size()) {
        check(false, i);
      }
      if (((sample.op->saves_outputs >> i) & 1U) != 0 && i < Recorded(sample).out.size()) {
        check(true, i);
      }
    }
  }
  CHECK(findings == none());
  CHECK(saved > 100);
}

namespace {

bool is_written(const CallSample& sample, std::size_t i) {
  const Op& op = *sample.op;
  const std::size_t operand = op.place_of(i, sample.inputs.size()).operand;
  return operand == 0 || op.operands[operand].type.ends_with('!');
}

/// x's values in a view of one element for all, along the first dim that has several.
Tensor repeating(const Tensor& x) {
  Dims strides = contiguous_strides(x.shape());
  for (int d = 0; d < x.dims(); ++d) {
    if (x.shape()[d] > 1) {
      strides[d] = 0;
      return alias(ops::clone(x), x.shape(), strides, 0);
    }
  }
  return {};
}

/// Calls with `operands` must be refused, or give what the call with copies of them gives.
void refused_or_same(Findings& findings, const CallSample& sample, const std::string& what,
                     std::span<const Tensor> operands, bool must_refuse) {
  const std::vector<Tensor> copies = clones(operands);
  try {
    call(*sample.op, operands, sample.attributes);
  } catch (const Error& error) {
    if (!std::string(error.what()).starts_with(sample.op->name + ": ")) {
      findings.insert(sample.name + what + ": " + error.what());
    }
    return;
  }
  call(*sample.op, copies, sample.attributes);
  bool same = !must_refuse;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    same =
        same && (!is_written(sample, i) || same_values(operands.subspan(i, 1), {&copies[i], 1}, 0));
  }
  if (!same) {
    findings.insert(sample.name + what);
  }
}

}  // namespace

TEST_CASE("operators that write refuse operands that overlap, or give the same as with copies") {
  Findings findings;
  std::set<std::string> checked;
  for (const CallSample& sample : samples()) {
    if (!sample.op->in_place) {
      continue;
    }
    checked.insert(sample.op->name);
    const std::size_t count = sample.inputs.size();
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor& written = sample.inputs[i];
      if (!written || written.numel() == 0 || !is_written(sample, i)) {
        continue;
      }
      std::vector<Tensor> operands = clones(sample.inputs);
      if (const Tensor view = repeating(written)) {
        operands[i] = view;
        refused_or_same(findings, sample, ": repeats operand " + std::to_string(i), operands, true);
      }
      for (std::size_t j = 0; j < count; ++j) {
        const Tensor& other = sample.inputs[j];
        if (j == i || !other || other.numel() == 0) {
          continue;
        }
        const std::string pair = std::to_string(i) + " and " + std::to_string(j);
        if (other.shape() == written.shape() && other.dtype() == written.dtype()) {
          operands = clones(sample.inputs);
          operands[j] = ops::detach(operands[i]);
          refused_or_same(findings, sample, ": one view for " + pair, operands,
                          is_written(sample, j));
        }
        if (other.dtype() == written.dtype()) {
          // One buffer; the other operand begins with the last element that is written.
          const Tensor memory = empty({written.numel() + other.numel()}, written.dtype());
          ops::fill_(memory, 1);
          operands = clones(sample.inputs);
          operands[i] = alias(memory, written.shape(), contiguous_strides(written.shape()), 0);
          operands[j] =
              alias(memory, other.shape(), contiguous_strides(other.shape()), written.numel() - 1);
          ops::copy_(operands[i], written);
          refused_or_same(findings, sample, ": overlap of " + pair, operands,
                          written.numel() > 1 || other.numel() > 1);
        }
      }
    }
  }
  CHECK(findings == none());
  CHECK(checked.size() > 50);
}
