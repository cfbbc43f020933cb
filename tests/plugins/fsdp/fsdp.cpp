// FSDP computes with the values that parameters have, and no gradient is lost, whatever a program
// does between forward and backward.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

constexpr double tolerance = 1e-11;

DeviceMesh shard_mesh(int ranks) { return DeviceMesh::make({"shard"}, {ranks}); }

double number(const Tensor& loss) {
  const NoGrad no_grad;
  return full_tensor(detached(loss)).item();
}

/// All ways to make groups and to keep them.
struct Grouping {
  std::vector<std::string> on;
  bool reshard;
};
const std::vector<Grouping> groupings = {{{"blocks.*", "."}, true},
                                         {{"blocks.*", "."}, false},
                                         {{"."}, true},
                                         {{"."}, false},
                                         {{"blocks.*"}, true},
                                         {{"embed", "blocks.1", "head"}, false}};

/// Calls f(model, grouping's text) on every rank with FSDP over two or three ranks.
void in_all_groupings(const std::function<void(Planned& run, const std::string& what)>& f) {
  for (const int ranks : {2, 3}) {
    for (const Grouping& grouping : groupings) {
      std::vector<parallel::StyleEntry> entries = {fsdp(grouping.on, grouping.reshard)};
      std::string what = std::to_string(ranks) + " ranks, reshard " +
                         (grouping.reshard ? "true" : "false") + ", on";
      for (const std::string& pattern : grouping.on) {
        what += " " + pattern;
      }
      INFO(what);
      on_ranks(ranks, [&](int) {
        Planned run(std::make_shared<Net>(), shard_mesh(ranks), entries);
        f(run, what);
      });
    }
  }
}

/// Six rows: every rank has some.
Tensor tokens(int seed) { return net_tokens(6, seed); }

}  // namespace

TEST_CASE("a forward computes with what was written after a forward without backward") {
  in_all_groupings([](Planned& run, const std::string& what) {
    const auto expected = plain(std::make_shared<Net>());
    const auto agree = [&](const char* when) {
      write_values(*expected, values_of(*run.model));
      const double wanted = plain_loss(*expected, tokens(1)).item();
      const double got = number(run.loss(tokens(1)));
      check(difference({got}, {wanted}) < tolerance, what + ": " + when);
    };
    agree("the first forward");
    change_values(*run.model, 0.5, 0.1);
    agree("after a write by operators");
    {
      const NoGrad no_grad;
      agree("validation");
      change_values(*run.model, 1.5, -0.2);
      agree("validation after a write");
    }
    agree("after validation");
    {
      const NoGrad no_grad;  // by hand, on one rank only
      if (current_rank() == 1) {
        for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
          if (p->value.layout().placement(0).is_shard()) {
            ops::fill_(p->value.local(), 0.25);
          }
        }
      }
    }
    agree("after a write on one rank");
    const Tensor loss = run.loss(tokens(1));
    backward(loss);
    change_values(*run.model, 0.9, 0);
    agree("after backward and a write");
  });
}

TEST_CASE("gradients are those of the values that the last forward used") {
  in_all_groupings([](Planned& run, const std::string& what) {
    run.loss(tokens(1));
    change_values(*run.model, 0.5, 0.1);
    backward(run.loss(tokens(2)));
    parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
    const auto expected = plain(std::make_shared<Net>());
    write_values(*expected, values_of(*run.model));
    backward(plain_loss(*expected, tokens(2)));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < tolerance, what);
  });
}

TEST_CASE("parameters written between forward and backward are an error, as on one device") {
  const auto expected = plain(std::make_shared<Net>());
  const Tensor loss = plain_loss(*expected, tokens(1));
  change_values(*expected, 0.5, 0.1);
  CHECK(error_of([&] { backward(loss); }).find("changed in place") != std::string::npos);

  in_all_groupings([](Planned& run, const std::string& what) {
    const Tensor written = run.loss(tokens(1));
    change_values(*run.model, 0.5, 0.1);
    const std::string error = error_of([&] { backward(written); });
    check(error.find("changed in place") != std::string::npos, what + ": " + error);
    // The backward that failed leaves nothing behind.
    clear_gradients(*run.model);
    backward(run.loss(tokens(2)));
    const auto plain_model = plain(std::make_shared<Net>());
    write_values(*plain_model, values_of(*run.model));
    backward(plain_loss(*plain_model, tokens(2)));
    check(difference(gradients_of(*run.model), gradients_of(*plain_model)) < tolerance, what);
  });
}

TEST_CASE(
    "a write to one block between forward and backward is an error in that block's backward") {
  in_all_groupings([](Planned& run, const std::string& what) {
    const Tensor loss = run.loss(tokens(1));
    {
      const NoGrad no_grad;
      ops::fill_(run.model->children()[2].second->children()[2].second->parameter("weight")->value,
                 0.5);
    }
    const std::string error = error_of([&] { backward(loss); });
    check(error.find("changed in place") != std::string::npos, what + ": " + error);
  });
}

TEST_CASE("a parameter that is replaced by another tensor is an error") {
  on_ranks(2, [](int) {
    Planned run(std::make_shared<Net>(), shard_mesh(2), {fsdp({"blocks.*", "."})});
    nn::Parameter& p = *nn::all_parameters(*run.model)[0];
    p.value = deep_copy(p.value);
    const std::string error = error_of([&] { run.loss(tokens(1)); });
    check(
        error.find("parameter 'embed.weight' was replaced by another tensor") != std::string::npos,
        error);
  });
}

namespace {

/// What a program does with the gradients between two backwards of one step.
struct Between {
  const char* what;
  std::function<void(nn::Module& model)> change;
};

void clear(nn::Module& model, const std::string& name) {
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    if (p->name == name) {
      p->value.grad() = Tensor();
    }
  }
}

void set(nn::Module& model, const std::string& name) {
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    if (p->name == name) {
      const Tensor ones = full(p->value.shape(), 0.75, DType::f64);
      p->value.grad() =
          p->value.is_distributed() ? distribute(ones, p->value.layout()) : deep_copy(ones);
    }
  }
}

const std::vector<Between> betweens = {
    {"kept", [](nn::Module&) {}},
    {"all cleared", [](nn::Module& model) { clear_gradients(model); }},
    {"the first of a group cleared",
     [](nn::Module& model) { clear(model, "blocks.0.norm.weight"); }},
    {"another of a group cleared", [](nn::Module& model) { clear(model, "blocks.0.up.bias"); }},
    {"all but one cleared",
     [](nn::Module& model) {
       const Named all = gradients_of(model);
       for (const auto& [name, values] : all) {
         if (name != "blocks.1.up.weight") {
           clear(model, name);
         }
       }
     }},
    {"the first of a group set", [](nn::Module& model) { set(model, "blocks.0.norm.weight"); }},
    {"another of a group set", [](nn::Module& model) { set(model, "embed.weight"); }},
    {"one scaled", [](nn::Module& model) {
       const NoGrad no_grad;
       for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
         if (p->name == "blocks.1.down.weight" && p->value.grad()) {
           p->value.grad() = ops::mul_scalar(p->value.grad(), 3);
         }
       }
     }}};

}  // namespace

TEST_CASE("a second backward adds to whatever gradients there are") {
  std::vector<Named> wanted;
  for (const Between& between : betweens) {
    const auto expected = plain(std::make_shared<Net>());
    backward(plain_loss(*expected, tokens(1)));
    between.change(*expected);
    backward(plain_loss(*expected, tokens(2)));
    wanted.push_back(gradients_of(*expected));
  }
  on_ranks(2, [&](int) {
    for (const Grouping& grouping : groupings) {
      for (std::size_t i = 0; i < betweens.size(); ++i) {
        for (const bool synced : {true, false}) {  // the first backward
          for (const bool finished : {false, true}) {
            Planned run(std::make_shared<Net>(), shard_mesh(2),
                        {fsdp(grouping.on, grouping.reshard)});
            const std::string what = betweens[i].what + std::string(", first group ") +
                                     grouping.on[0] + ", first synced " + std::to_string(synced) +
                                     ", finished " + std::to_string(finished);
            const auto parameters = nn::all_parameters(*run.model);
            parallel::GradientFinisher finisher;
            {
              const StepScope scope([&](StepContext& step) { step.sums_gradients = synced; });
              backward(run.loss(tokens(1)));
            }
            if (finished) {
              finisher.finish(parameters);
            }
            betweens[i].change(*run.model);
            backward(run.loss(tokens(2)));
            finisher.finish(parameters);
            check(difference(gradients_of(*run.model), wanted[i]) < tolerance, what);
            for (const nn::ParameterPointer& p : parameters) {
              check(p->value.grad().layout() == p->value.layout(), what + ": " + p->name);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("a backward without sync after one with sync is not lost") {
  const auto expected = plain(std::make_shared<Net>());
  for (const int seed : {1, 2, 3}) {
    backward(plain_loss(*expected, tokens(seed)));
  }
  in_all_groupings([&](Planned& run, const std::string& what) {
    for (const int seed : {1, 2, 3}) {
      const StepScope scope([&](StepContext& step) { step.sums_gradients = seed != 2; });
      backward(run.loss(tokens(seed)));
    }
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < tolerance, what);
  });
}

TEST_CASE("gradients without sync are whole sums that the finisher reduces") {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, tokens(1)));
  in_all_groupings([&](Planned& run, const std::string& what) {
    {
      const StepScope scope([&](StepContext& step) { step.sums_gradients = false; });
      const CommunicationReport report;
      backward(run.loss(tokens(1)));
      check(report.count("reduce_scatter") == 0, what + ": nothing is reduced without sync");
    }
    parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < tolerance, what);
  });
}

TEST_CASE("a backward that throws leaves no gradient for the next step") {
  in_all_groupings([](Planned& run, const std::string& what) {
    bool fails = true;
    run.model->children()[1].second->add_hook([&](nn::Module&, const Tensors&, Tensors& outputs) {
      if (outputs[0].requires_grad()) {
        add_gradient_hook(outputs[0], [&](const Tensor&) {
          if (fails) {
            fail("planted");
          }
          return Tensor();
        });
      }
    });
    const Tensor second = run.loss(tokens(2));
    const std::string error = error_of([&] { backward(run.loss(tokens(1))); });
    check(error.find("planted") != std::string::npos, error);
    fails = false;
    clear_gradients(*run.model);
    backward(second);  // no forward between the two
    const auto expected = plain(std::make_shared<Net>());
    backward(plain_loss(*expected, tokens(2)));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < tolerance, what);
  });
}

namespace {

/// An f64 and an f32 layer in one module.
class TwoTypes final : public nn::Module {
 public:
  TwoTypes() {
    embed_ = add_child<nn::Embedding>("embed", 11, 4, 0.5, DType::f64);
    head_ = add_child<nn::Linear>("head", 4, 3, true, 0.5, DType::f32);
    set_names();
  }
  std::string_view kind() const override { return "TwoTypes"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*head_)(ops::cast((*embed_)(inputs[0]), DType::f32))};
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::shared_ptr<nn::Linear> head_;
};

/// Uses one of two equal layers, whichever the rank is told.
class Either final : public nn::Module {
 public:
  Either() {
    embed_ = add_child<nn::Embedding>("embed", 11, 4, 0.5, DType::f64);
    for (const char* name : {"expert.0", "expert.1"}) {
      experts_.push_back(add_child<nn::Linear>(name, 4, 4, false, 0.5, DType::f64));
    }
    set_names();
  }
  std::string_view kind() const override { return "Either"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*experts_[chosen])((*embed_)(inputs[0]))};
  }
  std::size_t chosen = 0;

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::vector<std::shared_ptr<nn::Linear>> experts_;
};

}  // namespace

TEST_CASE("parameters of several types in one module make a group each") {
  for (const bool reshard : {true, false}) {
    const auto expected = plain(std::make_shared<TwoTypes>());
    for (const int seed : {1, 2}) {
      backward(plain_loss(*expected, tokens(seed)));
    }
    on_ranks(3, [&](int) {
      Planned run(std::make_shared<TwoTypes>(), shard_mesh(3), {fsdp({"."}, reshard)});
      for (const int seed : {1, 2}) {
        backward(run.loss(tokens(seed)));
      }
      for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
        check(p->value.grad().dtype() == p->value.dtype(), "type of " + p->name);
      }
      check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-5, "gradients");
    });
  }
}

TEST_CASE("ranks that use different modules of one shape are an error, not an exchange") {
  const std::string error = error_of([] {
    on_ranks(2, [](int rank) {
      const auto model = std::make_shared<Either>();
      model->chosen = static_cast<std::size_t>(rank);
      Planned run(model, shard_mesh(2), {fsdp({"expert.*", "."})});
      run.loss(tokens(1));
    });
  });
  CHECK(error.find("all_gather") != std::string::npos);
}

TEST_CASE("a gradient that arrives on some ranks only is an error that names the parameter") {
  const std::string error = error_of([] {
    on_ranks(2, [](int rank) {
      const auto model = std::make_shared<Either>();
      model->chosen = static_cast<std::size_t>(rank);
      Planned run(model, DeviceMesh::make({"data"}, {2}), {{"Replicate", "data", {"."}, "{}", ""}});
      backward(run.loss(tokens(1)));
      parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
    });
  });
  CHECK(error.find("parameter 'expert.0.weight' has a gradient on 1 of 2 ranks") !=
        std::string::npos);
}

TEST_CASE("a member of a group without a gradient is an error that names it") {
  const std::string error = error_of([] {
    on_ranks(2, [](int) {
      Planned run(std::make_shared<Either>(), shard_mesh(2), {fsdp({"."})});
      backward(run.loss(tokens(1)));
    });
  });
  CHECK(error.find("FSDP: parameter 'expert.1.weight' of group '.' has no gradient on rank") !=
        std::string::npos);
}

TEST_CASE("a tied parameter in a group of one of its modules is refused, with what makes it work") {
  const auto refused = [](const std::vector<std::string>& on, const std::string& options) {
    return error_of([&] {
      on_ranks(2, [&](int) {
        Planned run(std::make_shared<Net>(NetOptions{.tied = true}), shard_mesh(2),
                    {{"FSDP", "shard", on, options, ""}});
        backward(run.loss(tokens(1)));
        run.loss(tokens(2));
      });
    });
  };
  const std::string together = R"([{ on = ["embed", "head"] }])";
  for (const std::vector<std::string>& on : std::vector<std::vector<std::string>>{
           {"embed", "."}, {"head", "."}, {"embed", "blocks.*", "head", "."}}) {
    for (const char* reshard : {"true", "false"}) {
      const std::string error =
          refused(on, std::string(R"({"reshard_after_forward": )") + reshard + "}");
      INFO(error);
      CHECK(error.find("tied parameter 'embed.weight', 'head.weight' is gathered while '" +
                       (on[0] == "head" ? std::string("head") : "embed") + "' runs") !=
            std::string::npos);
      CHECK(error.find(on[0] == "head" ? R"(together = [{ on = ["embed", "head"] }])"
                                       : "together = " + together) != std::string::npos);
    }
  }
  // What the error says, and groups around both modules.
  CHECK(refused({"embed", "blocks.*", "head", "."},
                R"({"together": [{"on": ["embed", "head"]}]})") == "no error");
  CHECK(refused({"blocks.*", "."}, "{}") == "no error");
}

TEST_CASE("the graph of a gradient that FSDP reduces is an error") {
  on_ranks(2, [](int) {
    Planned run(std::make_shared<Net>(), shard_mesh(2), {fsdp({"blocks.*", "."})});
    const std::string error =
        error_of([&] { backward(run.loss(tokens(1)), {.create_graph = true}); });
    check(error.find("create_graph") != std::string::npos, error);
  });
}

TEST_CASE("gradients of earlier steps are kept by the finisher's sums") {
  // Replicate: all gradients are summed in one buffer, which must not be written while an earlier
  // step's gradients are in it.
  const auto expected = std::make_shared<Either>();
  plain(expected);
  const auto step = [](Either& model, std::size_t chosen, const std::function<Tensor()>& loss) {
    model.chosen = chosen;
    backward(loss());
  };
  step(*expected, 0, [&] { return plain_loss(*expected, tokens(1)); });
  const Named first = gradients_of(*expected);
  step(*expected, 1, [&] { return plain_loss(*expected, tokens(2)); });
  on_ranks(2, [&](int) {
    const auto model = std::make_shared<Either>();
    Planned run(model, DeviceMesh::make({"data"}, {2}), {{"Replicate", "data", {"."}, "{}", ""}});
    const auto parameters = nn::all_parameters(*model);
    parallel::GradientFinisher finisher;
    step(*model, 0, [&] { return run.loss(tokens(1)); });
    finisher.finish(parameters);
    const Tensor kept = parameters[1]->value.grad();
    check(difference(gradients_of(*model), first) < tolerance, "the first step");
    step(*model, 1, [&] { return run.loss(tokens(2)); });
    finisher.finish(parameters);
    check(difference(gradients_of(*model), gradients_of(*expected)) < tolerance, "both steps");
    check(difference(to_doubles(kept.local()), first.at("expert.0.weight")) < tolerance,
          "a gradient that the program kept");
    clear_gradients(*model);
    step(*model, 0, [&] { return run.loss(tokens(1)); });
    finisher.finish(parameters);
    check(difference(gradients_of(*model), first) < tolerance, "after clearing");
    check(difference(to_doubles(kept.local()), first.at("expert.0.weight")) < tolerance,
          "still kept");
  });
}
