// AdamW for parameters in bf16: its random rounding against docs/random-numbers-of-a-run.md, in
// every layout and after a resume, and what small updates become.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

#include "curves.hpp"
#include "parameters.hpp"
#include "random_page.hpp"

using namespace tessera;
using optim_test::layout_of;
using optim_test::on_mesh;

namespace {

std::vector<Tensor> one(const Tensor& x) { return {x}; }

std::vector<std::uint16_t> bits_of(const Tensor& x) {
  const Tensor whole = ops::contiguous(x.is_distributed() ? full_tensor(x) : x);
  const auto* const bits = static_cast<const std::uint16_t*>(whole.raw_data());
  return {bits, bits + whole.numel()};
}

nn::ParameterPointer stored_parameter(const std::string& name, const Dims& shape,
                                      DType dtype = DType::bf16) {
  auto made = std::make_shared<nn::Parameter>(shape, dtype, nn::Initialization{});
  made->name = name;
  const Tensor values = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    values.data<float>()[i] = static_cast<float>(std::sin(1 + static_cast<double>(i)));
  }
  made->value = ops::cast(values, dtype);
  made->value.set_requires_grad();
  return made;
}

Tensor gradient_of(const Dims& shape, int step, DType dtype = DType::bf16) {
  const Tensor gradient = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < gradient.numel(); ++i) {
    gradient.data<float>()[i] = static_cast<float>(std::cos(0.7 * static_cast<double>(i) + step));
  }
  return ops::cast(gradient, dtype);
}

/// The page's rounding of f32 to bf16, in plain C++: `noise` of 65536 parts of the distance.
std::uint16_t rounded(float value, std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t below = bits & 0xffffU;
  return static_cast<std::uint16_t>((bits >> 16) + (below + noise >= 0x10000U ? 1 : 0));
}

/// What a run leaves: parameters and state by name.
using Bits = std::map<std::string, std::vector<std::uint16_t>>;

struct Setup {
  std::vector<nn::ParameterPointer> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
};

/// Two parameters of one shape and one that does not divide, at these placements; null: plain.
Setup make_setup(const DeviceMesh* mesh, const std::vector<Placement>& placements) {
  Setup made;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, Dims>>{{"a", {6, 10}}, {"b", {6, 10}}, {"c", {7}}}) {
    auto p = stored_parameter(name, shape);
    if (mesh != nullptr) {
      p->value = distribute(detached(p->value), layout_of(*mesh, placements, shape));
      p->value.set_requires_grad();
    }
    made.parameters.push_back(std::move(p));
  }
  made.optimizer = std::make_unique<optim::Optimizer>(made.parameters, optim::adamw_rule());
  return made;
}

void take_step(Setup& setup, int step) {
  for (const nn::ParameterPointer& p : setup.parameters) {
    const Tensor gradient = gradient_of(p->value.shape(), step);
    p->value.grad() =
        p->value.is_distributed() ? distribute(gradient, p->value.layout()) : gradient;
  }
  setup.optimizer->step(0.01);
}

Bits bits_of(const Setup& setup) {
  Bits all;
  for (const nn::ParameterPointer& p : setup.parameters) {
    all[p->name] = bits_of(p->value);
  }
  for (const auto& [name, state] : setup.optimizer->state().tensors) {
    if (state.dtype() != DType::bf16) {
      fail(name + " is not bf16");
    }
    all[name] = bits_of(state);
  }
  return all;
}

/// A new optimizer's, continued from what another one has, whatever its layout is.
void load(Setup& to, const Bits& from, const StateDict& scalars) {
  to.optimizer->prepare_state();
  const auto copy = [&](const Tensor& into, const std::string& name) {
    const Tensor whole = empty(into.shape(), DType::bf16);
    std::ranges::copy(from.at(name), static_cast<std::uint16_t*>(whole.raw_data()));
    ops::copy_(local_of(into),
               into.is_distributed() ? distribute(whole, into.layout()).local() : whole);
  };
  const NoGrad no_grad;
  for (const nn::ParameterPointer& p : to.parameters) {
    copy(p->value, p->name);
  }
  for (const auto& [name, state] : to.optimizer->state().tensors) {
    copy(state, name);
  }
  to.optimizer->load_scalars(scalars);
}

}  // namespace

TEST_CASE("a step in bf16 is the step in f32, rounded with the page's numbers") {
  for (const DType gradients : {DType::bf16, DType::f32}) {
    for (const bool amsgrad : {false, true}) {
      set_seed(11);
      const auto p = stored_parameter("p", {37, 61});
      optim::Optimizer optimizer({p}, optim::adamw_rule({.beta2 = 0.99, .amsgrad = amsgrad}),
                                 {.weight_decay = 0.1});
      std::vector<Tensor> wide = {ops::cast(detached(p->value), DType::f32),
                                  zeros(p->value.shape()), zeros(p->value.shape()),
                                  amsgrad ? zeros(p->value.shape()) : Tensor()};
      const std::vector<std::string> names = {"exp_avg.p", "exp_avg_sq.p", "max_exp_avg_sq.p"};
      const auto elements = static_cast<std::uint64_t>(p->value.numel());
      for (int step = 1; step <= 3; ++step) {
        p->value.grad() = gradient_of(p->value.shape(), step, gradients);
        optimizer.step(0.02, 0.5);
        ops::adamw_(one(wide[0]), one(ops::cast(p->value.grad(), DType::f32)), one(wide[1]),
                    one(wide[2]), one(wide[3]),
                    {.lr = 0.02,
                     .beta1 = 0.9,
                     .beta2 = 0.99,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .grad_scale = 0.5,
                     .step = step,
                     .amsgrad = amsgrad});
        const std::uint64_t first =
            static_cast<std::uint64_t>(step - 1) * ((2 * elements + 3) / 4 * 4);
        for (std::size_t k = 0; k < wide.size(); ++k) {
          if (!wide[k]) {
            continue;
          }
          const Tensor got = k == 0 ? p->value : optimizer.state().tensors.at(names[k - 1]);
          std::vector<std::uint16_t> expected;
          for (std::uint64_t i = 0; i < elements; ++i) {
            const std::uint32_t word = random_page::word(11, "rounding", first + 2 * i + k / 2);
            expected.push_back(
                rounded(wide[k].data<float>()[i], k % 2 == 0 ? word & 0xffffU : word >> 16));
          }
          CHECK(bits_of(got) == expected);
          wide[k] = ops::cast(detached(got), DType::f32);
        }
      }
    }
  }
}

TEST_CASE("parameters and state in bf16 have the same bits in every layout, and after a resume") {
  set_seed(3);
  Setup plain = make_setup(nullptr, {});
  Bits after[5];
  StateDict scalars;
  for (int step = 1; step <= 4; ++step) {
    take_step(plain, step);
    after[step] = bits_of(plain);
    if (step == 2) {
      scalars = plain.optimizer->state();
    }
  }
  CHECK(after[1].at("exp_avg.a") != after[1].at("exp_avg.b"));  // of one shape and gradient
  const std::vector<std::pair<Dims, std::vector<Placement>>> layouts = {
      {{2}, {Shard(0)}},
      {{2}, {Shard(1)}},
      {{3}, {Replicate()}},
      {{2, 2}, {Shard(0), Shard(1)}},
      {{2, 2}, {Shard(0), Shard(0)}},
      {{4}, {Shard(0)}}};
  for (const auto& [shape, placements] : layouts) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      set_seed(3);
      Setup own = make_setup(&mesh, placements);
      for (int step = 1; step <= 2; ++step) {
        take_step(own, step);
        if (bits_of(own) != after[step]) {
          fail("other bits in " + to_string(placements[0]));
        }
      }
      Setup resumed = make_setup(&mesh, placements);
      load(resumed, after[2], scalars);
      for (int step = 3; step <= 4; ++step) {
        take_step(resumed, step);
        if (bits_of(resumed) != after[step]) {
          fail("other bits after a resume in " + to_string(placements[0]));
        }
      }
    });
  }
}

TEST_CASE("updates that are far below the unit of bf16 are not lost") {
  set_seed(1);
  const auto p = stored_parameter("p", {64, 64});
  ops::fill_(detached(p->value), 1);
  optim::Optimizer optimizer({p}, optim::adamw_rule(), {.weight_decay = 0});
  const std::int64_t steps = 200;
  const double lr = 2e-5;  // the unit below 1 is 2^-8 = 4e-3
  for (std::int64_t step = 0; step < steps; ++step) {
    p->value.grad() = ops::cast(full(p->value.shape(), 0.01), DType::bf16);
    optimizer.step(lr);
  }
  const std::vector<double> values = to_doubles(p->value);
  double mean = 0;
  for (const double x : values) {
    mean += x / static_cast<double>(values.size());
  }
  // Each element is 1 or 1 - 2^-8: the mean of 4096 has a standard deviation of 6e-5.
  CHECK(mean == Approx(1 - lr * static_cast<double>(steps)).margin(3e-4));
}

TEST_CASE("optimizers that do not round refuse parameters in bf16") {
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const auto p = stored_parameter("model.w", {32, 256}, dtype);
      const auto make = [&](const char* options) {
        optim::Optimizer({p}, optim::load_rule(name, options));
      };
      if (name == "adamw" && dtype == DType::bf16) {
        CHECK_NOTHROW(make("{}"));
        CHECK_THROWS_WITH(make(R"({"state_bits": 8})"),
                          Catch::Contains("does not update 'model.w', which is stored in bf16"));
      } else {
        CHECK_THROWS_WITH(make("{}"), Catch::Contains("does not update 'model.w', which is stored "
                                                      "in " +
                                                      std::string(name_of(dtype))));
      }
    }
  }
}
