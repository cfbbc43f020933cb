// What may change after a module tree is built: hooks that are removed, children that are replaced.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

using namespace tessera;
using tessera::testing::error_of;

namespace {

using Names = std::vector<std::string>;

/// y = factor * x.
class Times final : public nn::Module {
 public:
  explicit Times(double factor) : factor_(factor) {
    add_parameter("weight",
                  std::make_shared<nn::Parameter>(Dims{2}, DType::f64, nn::Initialization{}));
  }
  std::string_view kind() const override { return "Times"; }
  Tensors forward(const Tensors& inputs) override { return {ops::mul_scalar(inputs[0], factor_)}; }

 private:
  double factor_;
};

/// Calls what it contains, and adds 1.
class PlusOne final : public nn::Module {
 public:
  explicit PlusOne(const std::shared_ptr<nn::Module>& inside) {
    inside_ = attach("inside", inside);
  }
  std::string_view kind() const override { return "PlusOne"; }
  Tensors forward(const Tensors& inputs) override {
    return {ops::add_scalar((*inside_)(inputs[0]), 1)};
  }

 private:
  nn::Child inside_;
};

/// Two children that can be replaced and one that cannot.
class Parent final : public nn::Module {
 public:
  Parent() {
    first_ = add_child<Times>("list.0", 2);
    second_ = add_child<Times>("list.1", 3);
    held_ = add_child<Times>("held", 5);
    set_names("top");
  }
  std::string_view kind() const override { return "Parent"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*held_)((*second_)((*first_)(inputs[0])))};
  }

 private:
  nn::Child first_, second_;
  std::shared_ptr<Times> held_;
};

Tensor scalar(double value) { return full({1}, value, DType::f64); }

std::shared_ptr<nn::Module> plus_one(const std::shared_ptr<nn::Module>& before) {
  return std::make_shared<PlusOne>(before);
}

Names names_of(nn::Module& root) {
  Names names;
  for (const auto& [name, parameter] : nn::named_parameters(root)) {
    names.push_back(parameter->name);
    CHECK(parameter->name == name);
    CHECK(parameter->other_names.empty());
  }
  return names;
}

}  // namespace

TEST_CASE("a hook runs until its handle removes it") {
  Times module(10);
  nn::HookHandle before = module.add_pre_hook(
      [](nn::Module&, Tensors& inputs) { inputs[0] = ops::add_scalar(inputs[0], 1); });
  nn::HookHandle outer = module.add_outer_pre_hook(
      [](nn::Module&, Tensors& inputs) { inputs[0] = ops::mul_scalar(inputs[0], 2); });
  nn::HookHandle after = module.add_hook([](nn::Module&, const Tensors&, Tensors& outputs) {
    outputs[0] = ops::add_scalar(outputs[0], 0.5);
  });
  CHECK(module(scalar(3)).item() == 10 * (2 * 3 + 1) + 0.5);
  before.remove();
  CHECK(module(scalar(3)).item() == 10 * (2 * 3) + 0.5);
  before.remove();  // again: nothing happens
  after.remove();
  CHECK(module(scalar(3)).item() == 10 * (2 * 3));
  {
    const nn::HookHandle dropped =
        module.add_hook([](nn::Module&, const Tensors&, Tensors& outputs) {
          outputs[0] = ops::mul_scalar(outputs[0], 3);
        });
  }
  CHECK(module(scalar(3)).item() == 3 * 10 * (2 * 3));  // without its handle it stays
  outer.remove();
  CHECK(module(scalar(3)).item() == 3 * 10 * 3);
}

TEST_CASE("a hook that removes itself, or adds one, changes the next call") {
  Times module(1);
  int once = 0;
  int added = 0;
  nn::HookHandle handle;
  handle = module.add_hook([&](nn::Module& self, const Tensors&, Tensors&) {
    ++once;
    handle.remove();
    self.add_hook([&](nn::Module&, const Tensors&, Tensors&) { ++added; });
  });
  module(scalar(1));
  CHECK(once == 1);
  CHECK(added == 0);
  module(scalar(1));
  CHECK(once == 1);
  CHECK(added == 1);
}

TEST_CASE("a handle may outlive its module") {
  nn::HookHandle handle;
  {
    Times module(1);
    handle = module.add_pre_hook([](nn::Module&, Tensors&) {});
  }
  handle.remove();
  nn::HookHandle().remove();
}

TEST_CASE("a child is replaced by name; its parent calls the new one, and names follow") {
  Parent parent;
  CHECK(parent(scalar(1)).item() == 2 * 3 * 5);
  parent.replace_child("list.0", plus_one);
  CHECK(parent(scalar(1)).item() == (2 + 1) * 3 * 5);
  CHECK(names_of(parent) ==
        Names{"top.list.0.inside.weight", "top.list.1.weight", "top.held.weight"});
  parent.replace_child("list.1", [](const auto&) { return std::make_shared<Times>(7); });
  CHECK(parent(scalar(1)).item() == (2 + 1) * 7 * 5);
  CHECK(parent.children()[1].second->name() == "top.list.1");
}

TEST_CASE("modules are replaced by pattern") {
  Parent parent;
  CHECK(nn::replace_modules(parent, "top.list.*", plus_one) == 2);
  CHECK(parent(scalar(1)).item() == ((2 + 1) * 3 + 1) * 5);
  CHECK(names_of(parent) ==
        Names{"top.list.0.inside.weight", "top.list.1.inside.weight", "top.held.weight"});
  const auto refused = [&](const std::string& pattern) {
    return error_of([&] { nn::replace_modules(parent, pattern, plus_one); });
  };
  CHECK(refused("top.lst.0") ==
        "the pattern 'top.lst.0' matches no module that can be replaced; did you mean "
        "'top.list.0'?");
  CHECK(refused("top.list.**")
            .find("matches 'top.list.0' and, inside of it, "
                  "'top.list.0.inside'") != std::string::npos);
}

TEST_CASE("a shared parameter keeps the names that it has outside of what is replaced") {
  Parent parent;
  nn::Module& first = *parent.children()[0].second;
  first.set_parameter("weight", parent.children()[2].second->parameter("weight"));
  parent.set_names("top");
  const nn::ParameterPointer shared = first.parameter("weight");
  CHECK(shared->name == "top.held.weight");
  CHECK(shared->other_names == Names{"top.list.0.weight"});
  parent.replace_child("list.0", plus_one);
  CHECK(shared->name == "top.held.weight");
  CHECK(shared->other_names == Names{"top.list.0.inside.weight"});
}

TEST_CASE("a child that would still be called elsewhere cannot be replaced") {
  Parent parent;
  const auto refused = [&](const std::string& name, const nn::Replacement& make) {
    return error_of([&] { parent.replace_child(name, make); });
  };
  const std::string start = "module 'top' (Parent): child ";
  CHECK(refused("held", plus_one)
            .starts_with(start + "'held' cannot be replaced: somebody else holds a pointer to it"));
  CHECK(refused("third", plus_one) == start + "'third' cannot be replaced: there is no such child");
  CHECK(refused("list.0", [](const auto&) { return nullptr; }) ==
        start + "'list.0' cannot be replaced: nothing was made for its place");
  CHECK(parent(scalar(1)).item() == 2 * 3 * 5);
  parent.attach<nn::PlanState>().applied = true;
  CHECK(refused("list.0", plus_one)
            .starts_with(start + "'list.0' cannot be replaced: a plan was applied"));
  CHECK(error_of([] { *nn::Child(); }).starts_with("module: a Child that was never added"));
}

TEST_CASE("a buffer needs plain values, and a name that no parameter has") {
  const auto refused = [](const Tensor& values) {
    return error_of([&] { const nn::Buffer buffer(values); });
  };
  CHECK(refused(scalar(1)) == "no error");
  CHECK(refused({}).find("got none") != std::string::npos);
  CHECK(refused(empty({2}, DType::f32, meta)).find("got one on meta") != std::string::npos);
  Tensor trained = scalar(1);
  trained.set_requires_grad();
  CHECK(refused(trained).find("got one that requires a gradient") != std::string::npos);
  class Holder final : public nn::Module {
   public:
    explicit Holder(const std::string& name) {
      add_parameter("weight",
                    std::make_shared<nn::Parameter>(Dims{2}, DType::f64, nn::Initialization{}));
      add_buffer(name, std::make_shared<nn::Buffer>(scalar(1)));
    }
    std::string_view kind() const override { return "Holder"; }
    Tensors forward(const Tensors& inputs) override { return inputs; }
  };
  CHECK(error_of([] { const Holder holder("weight"); }) ==
        "module: it has a parameter 'weight' already; use another name");
  Holder holder("mask");
  CHECK(error_of([&] { static_cast<void>(holder.buffer("msak")); }).find("has no buffer 'msak'") !=
        std::string::npos);
  CHECK(nn::all_buffers(holder).size() == 1);
}
