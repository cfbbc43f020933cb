// A checkpoint has the buffers that are to be saved, whatever their layout.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.plugin;
import tessera.parallel;
import tessera.train;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using parallel_test::check;
using parallel_test::on_ranks;
using parallel_test::Planned;

namespace {

/// A layer with a statistic that is saved and a table that is not.
class Counting final : public nn::Module {
 public:
  Counting() {
    linear_ = add_child<nn::Linear>("linear", 3, 5, false, 0.5, DType::f64);
    const Tensor zeros = full({5}, 0, DType::f64);
    add_buffer("mean", std::make_shared<nn::Buffer>(zeros));
    add_buffer("table", std::make_shared<nn::Buffer>(zeros, false));
    set_names("net");
  }
  std::string_view kind() const override { return "Counting"; }
  Tensors forward(const Tensors& inputs) override { return {(*linear_)(inputs[0])}; }

 private:
  nn::Child linear_;
};

/// Splits the buffers.
class Split final : public parallel::ParallelStyle {
 public:
  parallel::StyleFacts facts() const override { return {}; }
  void apply(const parallel::StyleTarget& target) override {
    for (const auto& [name, buffer] : target.module.buffers()) {
      target.place(*buffer, Shard(0));
    }
  }
};

}  // namespace

TEST_CASE("buffers are saved and loaded in any layout, but for those that are not to be saved") {
  const testing::Folder own;
  const std::string folder = own / "step-1";
  const auto run = [&](int ranks, bool split, bool load) {
    on_ranks(ranks, [&](int) {
      parallel::StyleEntry entry{"NoParallel", "tensor", {"net"}};
      if (split) {
        entry = {.style = "Split", .axis = "tensor", .on = {"net"}};
        entry.make = [](parallel::Options&) { return std::make_unique<Split>(); };
      }
      Planned net(std::make_shared<Counting>(), DeviceMesh::make({"tensor"}, {ranks}), {entry});
      Training training(*net.model, net.plan, optim::adamw(nn::all_parameters(*net.model), {}, {}),
                        {});
      const Tensor& mean = net.model->buffer("mean")->value;
      const Tensor& table = net.model->buffer("table")->value;
      const Tensor values = distributed_arange(1, 6, 1, mean.layout(), DType::f64);
      if (!load) {
        ops::copy_(mean, values);
        ops::copy_(table, values);
        training.checkpoints().save(folder);
        return;
      }
      training.checkpoints().load(folder);
      check(to_doubles(full_tensor(mean)) == std::vector<double>{1, 2, 3, 4, 5}, "mean");
      check(to_doubles(full_tensor(table)) == std::vector<double>(5), "table");
    });
  };
  run(2, true, false);
  run(3, true, true);
  run(2, false, true);
}
