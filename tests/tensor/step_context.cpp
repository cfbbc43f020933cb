// What a thread computes of a step: scopes change it, and what is within a scope is undone.
#include <cstdint>
#include <string>
#include <thread>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;

using namespace tessera;
using tessera::testing::error_of;

TEST_CASE("a scope changes what it names, and a scope within it nothing else") {
  const StepScope outer([](StepContext& step) {
    step.feature_blocks = 4;
    step.sums_gradients = false;
  });
  {
    const StepScope inner([](StepContext& step) {
      step.sums_gradients = true;
      step.planned_device = DeviceType::meta;
    });
    CHECK(step_context().feature_blocks == 4);
    CHECK(step_context().sums_gradients);
    CHECK(step_context().planned_device == DeviceType::meta);
  }
  CHECK(step_context().feature_blocks == 4);
  CHECK_FALSE(step_context().sums_gradients);
  CHECK(step_context().planned_device == DeviceType::cpu);
}

TEST_CASE("an error while a scope is made leaves the context as it is") {
  const StepScope outer([](StepContext& step) { step.order = new_order(); });
  const std::uint64_t order = step_context().order;
  CHECK(error_of([] {
          const StepScope none([](StepContext& step) { step.feature_blocks = 6; });
        }).find("must be a power of two") != std::string::npos);
  CHECK(error_of([] {
          const StepScope none([](StepContext& step) {
            step.order = 0;
            begin_micro_batch(step, random_position(), {.batch = 4, .parts = 3, .rows = 1});
          });
        }).find("are not rows of a step") != std::string::npos);
  CHECK(step_context().order == order);
  CHECK(step_context().feature_blocks == 1);
  CHECK_FALSE(step_context().micro_batch.has_value());
}

TEST_CASE("each thread has a context of its own, and each order a number of its own") {
  const StepScope scope([](StepContext& step) { step.order = new_order(); });
  std::uint64_t other = 0;
  std::uint64_t before = 1;
  std::thread([&] {
    before = step_context().order;
    const StepScope own([](StepContext& step) { step.order = new_order(); });
    other = step_context().order;
  }).join();
  CHECK(before == 0);
  CHECK(other != 0);
  CHECK(other != step_context().order);
}
