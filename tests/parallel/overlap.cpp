// When FSDP gathers and reduces: how often, how early, and what it waits for.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
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

DeviceMesh pair() { return DeviceMesh::make({"shard"}, {2}); }

/// How often a group's collective ran, in one direction.
int count(const std::vector<Communication>& entries, const std::string& operation,
          const std::string& group, bool backward) {
  int times = 0;
  for (const Communication& one : entries) {
    times += one.operation == operation && one.where == "FSDP " + group && one.backward == backward
                 ? 1
                 : 0;
  }
  return times;
}

nn::Module& block(nn::Module& model, std::size_t i) { return *model.children()[1 + i].second; }

}  // namespace

TEST_CASE("each group is gathered as often as its options say, and reduced once") {
  for (const bool reshard : {true, false}) {
    for (const bool checkpointing : {false, true}) {
      INFO("reshard " << reshard << ", checkpointing " << checkpointing);
      on_ranks(2, [&](int) {
        Planned run(
            std::make_shared<Net>(parallel_test::NetOptions{.checkpointing = checkpointing}),
            pair(), {fsdp({"blocks.*", "."}, reshard)});
        for (int step = 0; step < 3; ++step) {
          const CommunicationReport report;
          const Tensor loss = run.loss(net_tokens(4, step));
          const std::size_t forward = report.entries().size();
          backward(loss);
          const std::vector<Communication>& all = report.entries();
          const auto middle = all.begin() + static_cast<std::ptrdiff_t>(forward);
          const std::vector<Communication> before(all.begin(), middle);
          const std::vector<Communication> after(middle, all.end());
          for (const char* group : {"blocks.0", "blocks.1", "."}) {
            // Backward begins with the last block, whose values stay once the order is known.
            const bool begins = std::string(group) == "blocks.1" && step > 0;
            const int again = reshard && std::string(group) != "." && !begins ? 1 : 0;
            const std::string where = std::string("group ") + group + "\n" + report.to_string();
            check(count(before, "all_gather", group, false) == 1, "forward, " + where);
            check(count(after, "all_gather", group, true) +
                          count(after, "all_gather", group, false) ==
                      again,
                  "backward, " + where);
            check(count(after, "reduce_scatter", group, true) +
                          count(after, "reduce_scatter", group, false) ==
                      1,
                  "reduced once, " + where);
            check(count(all, "all_reduce", group, false) == 0, "no agreement, " + where);
          }
        }
      });
    }
  }
}

TEST_CASE("the next module's values are requested while one computes, in both directions") {
  on_ranks(2, [](int rank) {
    Planned run(std::make_shared<Net>(), pair(), {fsdp({"blocks.*", "."})});
    backward(run.loss(net_tokens(4, 1)));  // the order is known from here on
    std::vector<std::string> seen;
    const auto look = [&](const std::string& where) {
      const std::string mine = "rank " + std::to_string(rank) + ": ";
      std::string line = collective::World::current().recent_calls(1);
      line = line.substr(line.find(mine));
      line = line.substr(0, line.find('\n'));
      const bool in_flight = line.find("all_gather") != std::string::npos &&
                             line.find("(not complete)") != std::string::npos;
      seen.push_back(where + (in_flight ? ": gathering" : ": idle"));
    };
    for (const std::size_t i : {0, 1}) {
      const std::string name = "block " + std::to_string(i);
      nn::Module& down = *block(*run.model, i).children()[3].second;
      down.add_hook([&look, name](nn::Module&, const Tensors& inputs, Tensors&) {
        look(name);
        add_gradient_hook(inputs[0], [&look, name](const Tensor&) {
          look(name + ", backward");
          return Tensor();
        });
      });
    }
    backward(run.loss(net_tokens(4, 2)));
    std::string all;
    for (const std::string& one : seen) {
      all += one + "\n";
    }
    check(all ==
              "block 0: gathering\nblock 1: idle\n"
              "block 1, backward: gathering\nblock 0, backward: idle\n",
          all);
  });
}

TEST_CASE("parameters may be written as soon as a forward or a backward has returned") {
  for (const bool with_backward : {false, true}) {
    INFO("backward: " << with_backward);
    const auto expected = plain(std::make_shared<Net>());
    const double wanted = plain_loss(*expected, net_tokens(4, 2)).item();
    on_ranks(2, [&](int rank) {
      Planned run(std::make_shared<Net>(), pair(), {fsdp({"blocks.*", "."})});
      {
        const NoGrad no_grad;
        run.loss(net_tokens(4, 1));
      }
      bool slow = false;
      const auto rest = [&] {
        if (slow && rank == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
        }
      };
      // Rank 1 is slow in block 0, where the gather of block 1 is in flight.
      block(*run.model, 0).add_pre_hook([&](nn::Module&, Tensors&) { rest(); });
      block(*run.model, 1)
          .children()[3]
          .second->add_hook([&](nn::Module&, const Tensors& inputs, Tensors&) {
            if (with_backward) {
              add_gradient_hook(inputs[0], [&](const Tensor&) {
                rest();
                return Tensor();
              });
            }
          });
      slow = true;
      const Tensor loss = run.loss(net_tokens(4, 2));
      if (with_backward) {
        backward(loss);
      }
      const NoGrad no_grad;
      const double got = ops::mul_scalar(loss.local(), 1).item();
      change_values(*run.model, 0, 7);  // no before_optimizer
      slow = false;
      const double sum = full_tensor(from_local(full({}, got, DType::f64), loss.layout())).item();
      check(difference({sum}, {wanted}) < 1e-11, "the loss of the values before");
    });
  }
}
