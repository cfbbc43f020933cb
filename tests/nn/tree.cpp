// Names, hooks, shared parameters, train mode and memory of module trees.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

using namespace tessera;

namespace {

using Names = std::vector<std::string>;

/// Two parameters, and an output that is its input times a factor.
class Leaf final : public nn::Module {
 public:
  explicit Leaf(double factor = 1) : factor_(factor) {
    add_parameter("weight", std::make_shared<nn::Parameter>(
                                Dims{2, 3}, DType::f64,
                                nn::Initialization{nn::Initialization::Kind::normal, 0.5}));
    add_parameter("bias",
                  std::make_shared<nn::Parameter>(Dims{3}, DType::f64, nn::Initialization{}));
  }
  std::string_view kind() const override { return "Leaf"; }
  std::vector<std::string> input_names() const override { return {"x", "mask", "cache.keys"}; }
  Tensors forward(const Tensors& inputs) override {
    seen = inputs;
    return {ops::mul_scalar(input(inputs, 0), factor_)};
  }
  Tensors seen;

 private:
  double factor_;
};

/// first -> second -> second again.
class Tree final : public nn::Module {
 public:
  Tree() {
    first_ = add_child<Leaf>("first", 2);
    inner_ = add_child<Inner>("inner");
    attach("again", inner_);
    set_names();
  }
  std::string_view kind() const override { return "Tree"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*inner_)((*inner_)((*first_)(inputs[0])))};
  }
  Leaf& first() { return *first_; }

 private:
  class Inner final : public nn::Module {
   public:
    Inner() { leaf_ = add_child<Leaf>("layers.0", 3); }
    std::string_view kind() const override { return "Inner"; }
    Tensors forward(const Tensors& inputs) override { return {(*leaf_)(inputs[0])}; }

   private:
    std::shared_ptr<Leaf> leaf_;
  };
  std::shared_ptr<Leaf> first_;
  std::shared_ptr<Inner> inner_;
};

Tensor scalar(double value) { return full({1}, value, DType::f64); }

Names names_of(nn::Module& root) {
  Names names;
  for (const nn::Module* module : nn::all_modules(root)) {
    names.push_back(module->name());
  }
  return names;
}

}  // namespace

TEST_CASE("modules and parameters have the names of their first place in the tree") {
  Tree tree;
  CHECK(names_of(tree) == Names{"", "first", "inner", "inner.layers.0"});
  Names parameters;
  for (const nn::ParameterPointer& p : nn::all_parameters(tree)) {
    parameters.push_back(p->name);
  }
  CHECK(parameters ==
        Names{"first.weight", "first.bias", "inner.layers.0.weight", "inner.layers.0.bias"});
  CHECK(nn::parameter_count(tree) == 2 * (2 * 3 + 3));
  tree.set_names("model");
  CHECK(names_of(tree) == Names{"model", "model.first", "model.inner", "model.inner.layers.0"});
  CHECK(nn::all_parameters(tree)[0]->name == "first.weight");  // its first name stays
}

TEST_CASE("a shared parameter is one parameter with several names") {
  Tree tree;
  nn::Module& other = *tree.children()[1].second->children()[0].second;
  other.set_parameter("weight", tree.first().parameter("weight"));
  CHECK(nn::all_parameters(tree).size() == 3);
  CHECK(nn::parameter_count(tree) == 2 * 3 + 3 + 3);
  Names names;
  for (const auto& [name, parameter] : nn::named_parameters(tree)) {
    names.push_back(name);
    CHECK((parameter == tree.first().parameter("weight")) == (name.find("weight") != name.npos));
  }
  CHECK(names ==
        Names{"first.weight", "first.bias", "inner.layers.0.weight", "inner.layers.0.bias"});
  nn::materialize(tree);
  nn::initialize(tree);
  CHECK(other.parameter("weight")->value.raw_data() ==
        tree.first().parameter("weight")->value.raw_data());
}

TEST_CASE("hooks run in the order in which they were added, outer ones around") {
  Leaf leaf(10);
  Names order;
  const auto before = [&](const char* name, double added) {
    return [&order, name, added](nn::Module&, Tensors& inputs) {
      order.emplace_back(name);
      inputs[0] = ops::add_scalar(inputs[0], added);
    };
  };
  leaf.add_pre_hook(before("first", 1));
  leaf.add_pre_hook(before("second", 2));
  leaf.add_outer_pre_hook(before("outer", 4));
  leaf.add_hook([&](nn::Module& module, const Tensors& inputs, Tensors& outputs) {
    order.emplace_back("after");
    CHECK(&module == &leaf);
    CHECK(inputs[0].item() == 8);  // what forward was given
    outputs[0] = ops::add_scalar(outputs[0], 0.5);
  });
  leaf.add_hook([&](nn::Module&, const Tensors&, Tensors& outputs) {
    order.emplace_back("last");
    outputs[0] = ops::mul_scalar(outputs[0], 2);
  });
  const Tensor x = scalar(1);
  CHECK(leaf(x).item() == 2 * (10 * 8 + 0.5));
  CHECK(order == Names{"outer", "first", "second", "after", "last"});
  CHECK(x.item() == 1);  // the caller's input is as it was
}

TEST_CASE("a module that is in two places runs its hooks at each call") {
  Tree tree;
  int calls = 0;
  tree.children()[1].second->add_hook([&](nn::Module&, const Tensors&, Tensors&) { ++calls; });
  CHECK(tree(scalar(1)).item() == 2 * 3 * 3);
  CHECK(calls == 2);
}

TEST_CASE("named inputs may be given in any order, and absent ones are undefined") {
  Leaf leaf;
  leaf.by_name({{"cache.keys", scalar(3)}, {"x", scalar(1)}});
  REQUIRE(leaf.seen.size() == 3);
  CHECK(leaf.seen[0].item() == 1);
  CHECK(!leaf.seen[1].defined());
  CHECK(leaf.seen[2].item() == 3);
  leaf(scalar(2));  // fewer by position: the same
  REQUIRE(leaf.seen.size() == 3);
  CHECK(leaf.seen[0].item() == 2);
  CHECK(!leaf.seen[1].defined());
  CHECK(!leaf.seen[2].defined());
}

TEST_CASE("train mode reaches every module below and nothing above") {
  Tree tree;
  CHECK(tree.is_training());
  nn::Module& inner = *tree.children()[1].second;
  inner.train(false);
  CHECK(tree.is_training());
  CHECK(tree.first().is_training());
  CHECK(!inner.children()[0].second->is_training());
  tree.train(false);
  CHECK(!tree.first().is_training());
  tree.train();
  for (const nn::Module* module : nn::all_modules(tree)) {
    CHECK(module->is_training());
  }
}

TEST_CASE("materialize gives memory once, and initialize fills it by each parameter's rule") {
  Tree tree;
  tree.first().parameter("bias")->value.set_requires_grad(false);
  tree.first().parameter("bias")->initialization.kind = nn::Initialization::Kind::ones;
  for (const nn::ParameterPointer& p : nn::all_parameters(tree)) {
    CHECK(p->value.is_meta());
  }
  nn::materialize(tree);
  std::vector<void*> memory;
  for (const nn::ParameterPointer& p : nn::all_parameters(tree)) {
    CHECK(!p->value.is_meta());
    CHECK(p->value.requires_grad() == (p->name != "first.bias"));  // frozen stays frozen
    memory.push_back(p->value.raw_data());
  }
  set_seed(3);
  nn::initialize(tree);
  nn::materialize(tree);
  std::vector<double> normal;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const nn::Parameter& p = *nn::all_parameters(tree)[i];
    CHECK(p.value.raw_data() == memory[i]);
    const std::vector<double> values = to_doubles(p.value);
    if (p.initialization.kind == nn::Initialization::Kind::normal) {
      normal.insert(normal.end(), values.begin(), values.end());
    } else {
      const double wanted = p.name == "first.bias" ? 1 : 0;
      CHECK(values == std::vector<double>(values.size(), wanted));
    }
  }
  // The parameters draw from one stream, one after another: no two values are equal.
  for (std::size_t i = 0; i < normal.size(); ++i) {
    CHECK(std::abs(normal[i]) < 5 * 0.5);
    for (std::size_t j = 0; j < i; ++j) {
      CHECK(normal[i] != normal[j]);
    }
  }
  set_seed(3);
  nn::initialize(tree);
  CHECK(to_doubles(nn::all_parameters(tree)[0]->value) ==
        std::vector<double>(normal.begin(), normal.begin() + 6));
}

TEST_CASE("a module holds what is attached to it") {
  const auto owner = std::make_shared<int>(1);
  {
    Leaf leaf;
    leaf.attach<std::shared_ptr<int>>() = owner;
    CHECK(owner.use_count() == 2);
  }
  CHECK(owner.use_count() == 1);
}

TEST_CASE("a gradient that is kept elsewhere has one memory, which nobody else's tensor shares") {
  struct Place final : MemoryPlace {
    int taken = 0;
    Tensor allocate(const Dims& shape, DType dtype) override {
      ++taken;
      return empty(shape, dtype);
    }
  };
  const auto place = std::make_shared<Place>();
  nn::Parameter parameter({3, 2}, DType::f32, {});
  parameter.attach<nn::MemoryPlaces>().gradient = place;
  parameter.value = full({3, 2}, 1);
  const Storage* const first = &nn::gradient_memory_of(parameter).storage();
  CHECK(&nn::gradient_memory_of(parameter).storage() == first);
  CHECK(place->taken == 1);
  const Tensor held = nn::gradient_memory_of(parameter);
  ops::fill_(held, 3);
  const Tensor& other = nn::gradient_memory_of(parameter);
  CHECK(&other.storage() != first);
  ops::fill_(other, 4);
  CHECK(to_doubles(held)[0] == 3);
  const Tensor view = ops::narrow(nn::gradient_memory_of(parameter), 0, 1, 1);
  CHECK(&nn::gradient_memory_of(parameter).storage() != &view.storage());
  CHECK(place->taken == 3);
}
