// Tensors on a device: factories, copies, operators, gradients, errors, and the fallback to the
// host.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "adamw_step.hpp"
#include "devices.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

void add_one(const Call& call, std::span<Tensor> out) {
  for (std::int64_t i = 0; i < out[0].numel(); ++i) {
    out[0].data<float>()[i] = operands::contiguous(call.in[0]).data<float>()[i] + 1;
  }
}

/// Adds 1; the adversary has no kernel for it.
const Op& uncomputed() {
  static const Op& op = register_op({
      .schema = "no_kernel_add_one(x)",
      .infer = [](const Call& call,
                  ResultShapes& out) { out.push_back({call.in[0].shape(), DType::f32}); },
      .cpu = add_one,
  });
  return op;
}

/// Adds 1 in place, which the adversary cannot do either.
const Op& uncomputed_in_place() {
  static const Op& op = register_op({
      .schema = "no_kernel_add_one_(x)",
      .infer = [](const Call& call,
                  ResultShapes& out) { out.push_back({call.in[0].shape(), DType::f32}); },
      .cpu =
          [](const Call&, std::span<Tensor> out) {
            const Tensor& x = out[0];
            for (std::int64_t i = 0; i < x.shape()[0]; ++i) {
              x.data<float>()[i * x.strides()[0]] += 1;
            }
          },
      .in_place = true,
  });
  return op;
}

/// The size of the kernel's workspace: 64 bytes on the CPU; the adversary's kernel takes 4096.
const Op& workspace_size() {
  static const Op& op = register_op({
      .schema = "own_workspace_size(x)",
      .infer = [](const Call&, ResultShapes& out) { out.push_back({{}, DType::f32}); },
      .cpu =
          [](const Call& call, std::span<Tensor> out) {
            out[0].data<float>()[0] = static_cast<float>(call.workspace.size());
          },
      .workspace = [](const Call&, std::span<const Tensor>) { return std::size_t{64}; },
  });
  return op;
}

}  // namespace

TEST_CASE("devices are found by name; the plugin of a kind is loaded when it is named") {
  CHECK(find_device("cpu") == cpu);
  CHECK(find_device("meta") == meta);
  const Device device = adversary(3);
  CHECK(device.index == 3);
  CHECK(to_string(device) == "adversary:3");
  CHECK(find_device("adversary") == adversary(0));
  CHECK(driver_of(device).properties().description == "adversary 3");
  CHECK(contains(error_of([] { find_device("adversary:64"); }), "there are 64 of this kind"));
  CHECK(contains(error_of([] { find_device("adversary:x"); }), "the number is wrong"));
  CHECK(contains(error_of([] { find_device("cpu:1"); }), "there is no such device"));
  CHECK(contains(error_of([] { find_device("adversery"); }), "did you mean 'adversary'"));
}

TEST_CASE("tensors go to a device and back, whatever their strides") {
  const Device device = adversary();
  const Tensor x = from_values<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor there = ops::to_device(x, device);
  CHECK(there.device() == device);
  CHECK(there.storage().device() == device);
  CHECK(ops::to_device(there, device).same_as(there));
  CHECK(to_doubles(there) == Values{1, 2, 3, 4, 5, 6});
  CHECK(to_doubles(ops::transpose(there, 0, 1)) == Values{1, 4, 2, 5, 3, 6});
  CHECK(to_doubles(ops::to_device(ops::transpose(x, 0, 1), device)) == Values{1, 4, 2, 5, 3, 6});
  const Tensor back = ops::to_device(ops::narrow(there, 1, 1, 2), cpu);
  CHECK(back.device() == cpu);
  CHECK(back.is_contiguous());
  CHECK(to_doubles(back) == Values{2, 3, 5, 6});
  CHECK(to_doubles(ops::to_device(there, adversary(1))) == Values{1, 2, 3, 4, 5, 6});
  CHECK(ops::select(ops::select(there, 0, 1), 0, 2).item() == 6);
  CHECK(to_doubles(ops::contiguous(ops::transpose(there, 0, 1))) == Values{1, 4, 2, 5, 3, 6});
  CHECK(to_doubles(ops::reshape(ops::transpose(there, 0, 1), {6})) == Values{1, 4, 2, 5, 3, 6});
  CHECK(ops::to_device(there, meta).is_meta());
  CHECK(to_doubles(ops::to_device(empty({0, 3}), device)).empty());
  CHECK(contains(to_string(there), "f32[2, 3] adversary:0 {1, 2, 3"));
}

TEST_CASE("a copy between two devices waits for what the first one computes") {
  // Who waits for device 0 runs nothing else that it need not.
  const Tensor x = full({4}, 1, DType::f32, adversary(1));
  const Tensor there = ops::to_device(ops::add(x, x), adversary(0));
  CHECK(to_doubles(there) == Values{2, 2, 2, 2});
}

TEST_CASE("the values that are copied to a device are those of the call") {
  const Tensor x = from_values<float>({1, 2}, {2});
  const Tensor there = ops::to_device(x, adversary());
  x.data<float>()[0] = 9;  // the device has not run yet
  CHECK(to_doubles(there) == Values{1, 2});
}

TEST_CASE("factories make tensors on a device") {
  const Device device = adversary();
  CHECK(to_doubles(zeros({3}, DType::f32, device)) == Values{0, 0, 0});
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    CHECK(to_doubles(full({2}, 3, dtype, device)) == Values{3, 3});
  }
  CHECK(to_doubles(full({2}, 1, DType::boolean, device)) == Values{1, 1});
  CHECK(empty({0}, DType::f32, device).numel() == 0);
}

TEST_CASE("operands on several devices are an error that names them") {
  const Tensor there = full({2}, 1, DType::f32, adversary());
  CHECK(error_of([&] { ops::add(there, full({2}, 1)); }) ==
        "add: the operands are on several devices (expected one, got 'a' on adversary:0 and 'b' on "
        "cpu); copy one of them by to_device()");
  CHECK(contains(error_of([&] { ops::add(there, full({2}, 1, DType::f32, adversary(1))); }),
                 "'b' on adversary:1"));
  const Tensor list[] = {full({2}, 1), there};
  CHECK(contains(error_of([&] { ops::cat(list, 0); }), "[1]' on adversary:0"));
  ops::copy_(there, full({2}, 4));  // the one operator whose purpose it is
  CHECK(to_doubles(there) == Values{4, 4});
}

TEST_CASE("gradients return to the device that their values came from") {
  const Device device = adversary();
  Tensor x = from_values<float>({1, 2, 3}, {3});
  x.set_requires_grad();
  Tensor w = full({3}, 2, DType::f32, device);
  w.set_requires_grad();
  const Tensor there = ops::to_device(x, device);
  CHECK(there.requires_grad());
  backward(ops::sum(ops::mul(ops::mul(there, there), w)));
  CHECK(x.grad().device() == cpu);
  CHECK(to_doubles(x.grad()) == Values{4, 8, 12});
  CHECK(w.grad().device() == device);
  CHECK(to_doubles(w.grad()) == Values{1, 4, 9});
  CHECK(w.grad().storage().owns_memory());
}

TEST_CASE("a gradient that crossed to a device can be differentiated again") {
  Tensor x = from_values<double>({1, 2, 3}, {3});
  x.set_requires_grad();
  const Tensor y = ops::to_device(x, adversary());
  const Tensor cube = ops::sum(ops::mul(ops::mul(y, y), y));
  const Tensor roots[] = {cube};
  const Tensor leaves[] = {x};
  const Tensor ones[] = {Tensor()};
  const Tensor first = gradients(roots, ones, leaves, {.create_graph = true})[0];
  CHECK(to_doubles(detached(first)) == Values{3, 12, 27});
  const Tensor sums[] = {ops::sum(first)};
  const Tensor second = gradients(sums, ones, leaves)[0];
  CHECK(second.device() == cpu);
  CHECK(to_doubles(second) == Values{6, 12, 18});
}

TEST_CASE("writes on a device move the version, so autograd sees them") {
  const Device device = adversary();
  Tensor x = full({3}, 2, DType::f32, device);
  x.set_requires_grad();
  const Tensor y = ops::mul_scalar(x, 1);
  const Tensor z = ops::mul(y, y);
  const std::uint64_t before = y.storage().version();
  {
    const NoGrad constant;
    ops::fill_(y, 5);
  }
  CHECK(y.storage().version() == before + 1);
  CHECK(contains(error_of([&] { backward(ops::sum(z)); }), "in place"));
  const std::vector<Tensor> parameters{full({2}, 1, DType::f32, device)};
  const std::vector<Tensor> gradients{full({2}, 1, DType::f32, device)};
  const std::vector<Tensor> average{zeros({2}, DType::f32, device)};
  const std::vector<Tensor> square{zeros({2}, DType::f32, device)};
  ops::adamw_(parameters, gradients, average, square, std::vector<Tensor>(parameters.size()),
              some_adamw_step);
  for (const Tensor& x_written : {parameters[0], average[0], square[0]}) {
    CHECK(x_written.storage().version() == 1);
  }
  CHECK(gradients[0].storage().version() == 0);
}

TEST_CASE("a kernel gets the workspace that its device says, and plans count it") {
  const Device device = adversary();
  const Tensor x = full({2}, 1);
  CHECK(call_one(workspace_size(), {x}).item() == 64);
  CHECK(call_one(workspace_size(), {ops::to_device(x, device)}).item() == 4096);
  const auto planned_on = [&](DeviceType type) {
    const PlannedMemoryScope memory;
    const StepScope kernels([&](StepContext& step) { step.planned_device = type; });
    reset_memory_peaks();
    const auto place = static_cast<std::size_t>(MemoryCategory::workspace);
    const std::int64_t before = memory_statistics().bytes[place];
    call_one(workspace_size(), {empty({2}, DType::f32, meta)});
    return memory_statistics().peak[place] - before;
  };
  CHECK(planned_on(DeviceType::cpu) == 64);
  CHECK(planned_on(device.type) == 4096);
  CHECK(step_context().planned_device == DeviceType::cpu);
}

TEST_CASE("ranks of a machine have the devices of their numbers, and no more ranks than devices") {
  const DeviceType type = register_device_kind(
      {.name = "few", .count = 2, .open = [](int) { return std::unique_ptr<DeviceDriver>(); }});
  CHECK(device_for_rank(type, 0, 2) == Device{type, 0});
  CHECK(device_for_rank(type, 1, 2) == Device{type, 1});
  CHECK(
      error_of([&] { device_for_rank(type, 0, 3); }) ==
      "device 'few': there are more ranks than devices on this machine (expected at most 2 ranks, "
      "got 3); start fewer ranks, or write 'few:0' for all to share one device");
  CHECK(device_for_rank(adversary().type, 65, 70) == adversary(1));  // it says that they may share
  CHECK(device_for_rank(DeviceType::cpu, 3, 8) == cpu);
}

TEST_CASE("a missing kernel is an error that names the operator and the device") {
  const Tensor x = full({2}, 1, DType::f32, adversary());
  CHECK(kernel_of(uncomputed(), DeviceType::cpu).run == add_one);
  CHECK_FALSE(kernel_of(uncomputed(), x.device().type));
  CHECK(
      error_of([&] { call_one(uncomputed(), {x}); }) ==
      "no_kernel_add_one: the operator has no kernel on adversary:0; use others, copy the operands "
      "to the host (to_device(x, cpu)), or allow the host to compute it within a HostFallback "
      "scope");
}

TEST_CASE("an error that a kernel finds in its place of the queue names the operator at the wait") {
  const Device device = adversary();
  const Tensor table = ops::to_device(zeros({3, 2}), device);
  const Tensor rows = ops::to_device(from_values<std::int64_t>({0, 7}, {2}), device);
  const Tensor late = ops::add_scalar(ops::index_select(table, rows, 0), 1);  // only queued
  const std::string error = error_of([&] { to_doubles(late); });
  INFO(error);
  CHECK(error.starts_with("index_select: "));
  CHECK(error_of([&] { synchronize(device); }) == "no error");
}

TEST_CASE("a fallback to the host happens in its scope only, and is counted and listed") {
  const Device device = adversary();
  const Tensor x = ops::to_device(from_values<float>({1, 2, 3, 4}, {2, 2}), device);
  {
    const HostFallback fallback;
    CHECK(fallback.entries().empty());
    ops::add(x, x);  // has a kernel
    CHECK(fallback.entries().empty());
    const Tensor y = call_one(uncomputed(), {ops::transpose(x, 0, 1)});
    CHECK(y.device() == device);
    CHECK(to_doubles(y) == Values{2, 4, 3, 5});
    // A column: what is beside it stays.
    call_one(uncomputed_in_place(), {ops::select(x, 1, 1)});
    call_one(uncomputed_in_place(), {ops::select(x, 1, 1)});
    CHECK(to_doubles(x) == Values{1, 4, 3, 6});
    REQUIRE(fallback.entries().size() == 2);
    CHECK(fallback.entries()[0].op == "no_kernel_add_one_");
    CHECK(fallback.entries()[0].calls == 2);
    CHECK(fallback.entries()[0].bytes == 64);
    CHECK(fallback.entries()[0].device == device);
    CHECK(fallback.entries()[1].op == "no_kernel_add_one");
    CHECK(fallback.entries()[1].bytes == 32);
  }
  CHECK(contains(error_of([&] { call_one(uncomputed(), {x}); }), "has no kernel"));
}

TEST_CASE("memory of a device is released and restored like the CPU's") {
  const Device device = adversary(7);
  const Tensor x = full({1 << 20}, 1, DType::f32, device);
  const std::int64_t used = memory_statistics(device).total;
  CHECK(used == 4 << 20);
  x.storage().release_memory();
  CHECK_FALSE(x.storage().has_memory());
  CHECK(memory_statistics(device).total == 0);
  x.storage().restore_memory();
  CHECK(memory_statistics(device).total == used);
  x.storage().move_to(MemoryCategory::gradient);
  CHECK(memory_statistics(device).bytes[static_cast<int>(MemoryCategory::gradient)] == used);
}

TEST_CASE("what depends on values is read from the device, and its result is there") {
  const Device device = adversary();
  const Tensor x = ops::to_device(from_values<float>({0, 5, 0, 7}, {4}), device);
  const Tensor places = ops::nonzero(x);
  CHECK(places.device() == device);
  CHECK(to_doubles(places) == Values{1, 3});
  CHECK(to_doubles(ops::masked_select(x, ops::gt(x, zeros({}, DType::f32, device)))) ==
        Values{5, 7});
}

TEST_CASE("modes see a copy to a device as one call, and a read of its values as one action") {
  class Names final : public Mode {
   public:
    Tensors call(const Call& heard, NextCall& next) override {
      names.push_back(heard.op.name);
      return next(heard);
    }
    void perform(Action& action, NextAction& next) override {
      names.emplace_back(name_of(action.kind));
      next(action);
    }
    std::vector<std::string> names;
  };
  Names names;
  const Tensor x = from_values<float>({1, 2}, {2});
  {
    const ModeScope scope(ModeLevel::below_distribution, names);
    const Tensor there = ops::to_device(x, adversary());
    CHECK(to_doubles(ops::transpose(ops::reshape(there, {1, 2}), 0, 1)) == Values{1, 2});
  }
  CHECK(names.names == std::vector<std::string>{"to_device", "reshape", "transpose", "read"});
}
