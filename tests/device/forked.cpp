// Devices of ranks that are processes: counted before the fork, and waited for when another rank
// has died. In a process of its own: in that of the other tests devices are open already.

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

#include "devices.hpp"
#include "shared_object.hpp"

using namespace tessera;
using tessera::testing::adversary;

namespace {

/// Whether this process has the memory of the adversarial devices.
bool has_device_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:adversary") != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("devices are counted before ranks are forked, and opened in each rank", "[.forked]") {
  const Device first = adversary();
  CHECK(device_count(first.type) == 64);
  CHECK_FALSE(has_device_memory());
  const int code = collective::launch({.ranks = 3}, [&](collective::World& world) {
    const Device own = adversary(world.number_here());
    const std::vector<float> values(5, static_cast<float>(1 + world.rank()));
    const Tensor x = ops::to_device(from_values(std::span<const float>(values), {5}), own);
    const Tensor sum = ops::all_reduce(ops::mul_scalar(x, 2), ReduceOp::sum, world.everyone());
    const bool right = to_doubles(sum) == std::vector<double>(5, 12.0);  // 2 (1 + 2 + 3)
    return right && has_device_memory() ? 0 : 3;
  });
  CHECK(code == 0);
  CHECK_FALSE(has_device_memory());
}

TEST_CASE("a wait for a device ends when another rank is killed, and names that rank",
          "[.forked]") {
  using Text = std::array<char, 1000>;
  auto* const told = tessera::testing::shared_object<Text>();
  adversary();
  const int code =
      collective::launch({.ranks = 2, .print_error = false}, [&](collective::World& world) {
        const Tensor x = full({5}, 1, DType::f32, adversary(world.number_here()));
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 waits by then
          std::raise(SIGKILL);
        }
        try {
          const Tensor sum = ops::all_reduce(x, ReduceOp::sum, world.everyone());
          to_doubles(sum);  // the host waits for the device, which waits for rank 1
        } catch (const std::exception& error) {
          std::strncpy(told->data(), error.what(), told->size() - 1);
          throw;
        }
        return 0;
      });
  CHECK(code == 1);
  const std::string text = told->data();
  INFO(text);
  CHECK(text.find("rank 1") != std::string::npos);
}
