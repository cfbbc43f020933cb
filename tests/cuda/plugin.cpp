// The plugin on the emulator: its driver, and that each kernel computes what the CPU does.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "control.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.parallel;
import tessera.conformance;

#include "conformance.hpp"
#include "device.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace tessera::testing {

namespace {

/// What the emulated NVRTC compiles depends on the emulator, which no key of the cache knows.
void use_own_cache() {
  static std::string folder = (std::filesystem::temp_directory_path() / "loops-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  setenv("TESSERA_KERNEL_CACHE", folder.c_str(), 1);
  std::atexit([] { std::filesystem::remove_all(folder); });
}

}  // namespace

Device cuda(int index) {
  static const bool loaded = [] {
    setenv("TESSERA_EMULATOR_KERNELS", CUDA_KERNELS, 1);
    setenv("TESSERA_CUDA_ATTENTION", "own", 1);
    unsetenv("CUDA_MODULE_LOADING");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
    use_own_cache();
    plugin::host().load(CUDA_PLUGIN);
    return true;
  }();
  (void)loaded;
  return find_device("cuda:" + std::to_string(index));
}

Tensor counted(std::int64_t count) {
  const Tensor x = empty({count});
  for (std::int64_t i = 0; i < count; ++i) x.data<float>()[i] = static_cast<float>(i);
  return x;
}

void next_order() {
  static std::uint64_t seed = 0;
  emulator_set_seed(seed++ % 16);
}

}  // namespace tessera::testing

namespace {

/// Runs a check in a child process, in which no device is open yet. Its error; empty: none.
std::string in_child(const std::function<void()>& check) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    try {
      check();
    } catch (const std::exception& error) {
      text = error.what();
    }
    const auto written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof(part))) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return text;
}

void check(const DeviceAccount& count) {
  std::string text;
  for (std::size_t i = 0; i < count.findings.size() && i < 12; ++i) {
    text += "\n  " + count.findings[i];
  }
  INFO(count.findings.size() << " findings:" << text);
  CHECK(count.findings.empty());
}

/// Samples of the operators that have a kernel.
const std::vector<CallSample>& samples() {
  static const std::vector<CallSample> all = [] {
    std::vector<CallSample> kept = call_samples(4);
    std::erase_if(kept, [](const CallSample& s) {
      return !kernel_of(*s.op, cuda().type) || s.op->name.starts_with("wrong_");
    });
    return kept;
  }();
  return all;
}

}  // namespace

// These come first: no device is open yet.

TEST_CASE("GPUs are counted without the driver, so that each rank can open its own") {
  CHECK(device_count(cuda().type) == 2);
  CHECK(in_child([] {
          const Tensor x = ops::to_device(counted(4), cuda(1));
          require(to_doubles(ops::mul_scalar(x, 2))[3] == 6, "the result is wrong");
        }).empty());
}

TEST_CASE("tensors can have what NVML says is free, less what a context and libraries take") {
  const std::optional<DeviceCapacity> memory = device_memory(cuda());
  REQUIRE(memory.has_value());
  CHECK(memory->total == std::size_t{4} << 30);
  CHECK(memory->free == std::size_t{3} << 30);
}

TEST_CASE("a driver that is too old or missing, and a device that does not exist, are refused") {
  const auto opened = [] { driver_of(cuda()); };
  CHECK_THAT(in_child([&] {
               setenv("TESSERA_EMULATOR_DRIVER", "12020", 1);
               opened();
             }),
             Catch::Contains("the driver is too old (expected CUDA 12.8 or later, got 12.2)"));
  CHECK_THAT(in_child([&] {
               setenv("TESSERA_EMULATOR_DEVICES", "0", 1);
               opened();
             }),
             Catch::Contains("there is no GPU"));
  CHECK_THAT(in_child([] { cuda(2); }), Catch::Contains("there is no such device (there are 2"));
}

TEST_CASE("a driver that cannot use the plugin's kernels is an error that says what to do") {
  const std::map<const char*, const char*> texts = {
      {"200",
       "no kernels for emulated device; build Tessera where nvcc 12.8 or later is found (./dev "
       "setup cuda), and compile the kernels ahead (-D TESSERA_CUDA_ARCHITECTURES=90)"},
      {"218", "refuses the plugin's PTX for emulated device; build Tessera again"},
      {"221", "libnvidia-ptxjitcompiler.so.1) is not found; install it with the driver"},
      {"222", "older than the nvcc that compiled the plugin, and cannot read its PTX; install a"},
      {"223",
       "must not compile PTX; unset CUDA_DISABLE_PTX_JIT, or compile the kernels ahead "
       "(-D TESSERA_CUDA_ARCHITECTURES=90)"}};
  for (const auto& entry : texts) {
    CHECK_THAT(in_child([&] {
                 setenv("TESSERA_EMULATOR_IMAGE", entry.first, 1);
                 driver_of(cuda());
               }),
               Catch::Contains(entry.second));
  }
}

TEST_CASE("functions of the host run though the stream's queue is full while they are queued") {
  CHECK(in_child([] {
          alarm(30);  // ends what would hang
          const Stream stream = Stream::make(cuda());
          for (const std::uint64_t places : {3U, 12U, 40U}) {
            emulator_set_places(places);
            std::atomic<int> ran = 0;
            for (int i = 0; i < 100; ++i) stream.launch([&] { ++ran; });
            stream.synchronize();
            require(ran == 100, "not all functions have run");
          }
        }).empty());
}

TEST_CASE("a copy that waits for its stream keeps no other thread from using the device") {
  CHECK(in_child([] {
          alarm(30);
          DeviceDriver& driver = driver_of(cuda());
          DeviceDriver::Queue const busy = driver.make_queue();
          void* const pinned = driver.allocate_pinned(4);
          void* const there = driver.allocate(4);
          std::atomic<bool> may_end = false;
          driver.launch(busy, [&] {
            while (!may_end) std::this_thread::yield();
          });
          std::thread copies([&] { driver.copy(busy, there, pinned, 4, CopyKind::to_device); });
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          driver.free_pinned(driver.allocate_pinned(4), 4);
          may_end = true;
          copies.join();
        }).empty());
}

TEST_CASE("kernels are loaded with the plugin's modules, unless the user wants it otherwise") {
  cuda();
  CHECK(std::getenv("CUDA_MODULE_LOADING") == std::string("EAGER"));
  CHECK(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == std::string("8"));  // that of the user
  CHECK(in_child([] {
          alarm(30);
          const Stream busy = Stream::make(cuda());
          const Tensor x = full({4}, 1, DType::f32, cuda());
          std::atomic<bool> may_end = false;
          busy.launch([&] {
            while (!may_end) std::this_thread::yield();
          });
          ops::mul_scalar(x, 2);  // a first launch, which waits for no other stream
          may_end = true;
          busy.synchronize();
        }).empty());
}

TEST_CASE("a GPU that was used before a fork is refused after it") {
  REQUIRE(to_doubles(ops::to_device(counted(2), cuda()))[1] == 1);
  CHECK_THAT(in_child([] { ops::to_device(counted(2), cuda()); }),
             Catch::Contains("initialised before this process was forked"));
}

TEST_CASE("streams of a GPU are ordered by events only") {
  emulator_set_idle(0);  // nothing runs only because the host is slow
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U, 4U, 5U}) {
    emulator_set_seed(seed);
    const Stream side = Stream::make(cuda());
    Tensor x = ops::to_device(counted(100), cuda());
    Tensor y;
    side.wait(record_event(current_stream(cuda())));
    {
      const StreamScope scope(side);
      // Another value each time: y may have the memory of an earlier one.
      y = ops::mul_scalar(x, static_cast<double>(seed + 3));
    }
    current_stream(cuda()).wait(record_event(side));
    CHECK(to_doubles(ops::add(x, y))[99] == static_cast<double>(seed + 4) * 99);
  }
  emulator_set_idle(2000);
}

TEST_CASE("functions of the host run in a stream's order, and may wait for those of another") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
    emulator_set_seed(seed);
    const Stream first = Stream::make(cuda());
    const Stream second = Stream::make(cuda());
    std::atomic<bool> reached = false;
    std::vector<int> order;
    first.launch([&] {
      order.push_back(1);
      while (!reached) std::this_thread::yield();
    });
    first.launch([&] { order.push_back(2); });
    second.launch([&] { reached = true; });
    const Event done = record_event(first);
    done.synchronize();
    CHECK(order == std::vector<int>{1, 2});
    second.synchronize();
  }
}

TEST_CASE("streams that are made come before the one in which operators run") {
  const Tensor x = full({4}, 1, DType::f32, cuda());
  ops::mul_scalar(x, 2);
  CHECK(emulator_last_priority() == 0);
  const StreamScope scope(Stream::make(cuda()));
  ops::mul_scalar(x, 2);
  CHECK(emulator_last_priority() == -5);
}

TEST_CASE("an error of a function of the host is raised by the next wait") {
  const Stream stream = Stream::make(cuda());
  stream.launch([] { fail("no luck"); });
  CHECK_THROWS_WITH(stream.synchronize(), Catch::Contains("no luck"));
  stream.synchronize();
  stream.launch([] { fail("again"); });
  const Event event = record_event(stream);
  CHECK_THROWS_WITH(event.synchronize(), Catch::Contains("again"));
}

TEST_CASE("what is copied to a GPU has been read when the copy returns") {
  emulator_set_seed(0);
  DeviceDriver& driver = driver_of(cuda());
  auto* pinned = static_cast<float*>(driver.allocate_pinned(sizeof(float)));
  void* there = driver.allocate(sizeof(float));
  float back = 0;
  *pinned = 1;
  driver.copy(nullptr, there, pinned, sizeof(float), CopyKind::to_device);
  *pinned = 2;
  driver.copy(nullptr, &back, there, sizeof(float), CopyKind::to_host);
  driver.synchronize(nullptr, [] {});
  CHECK(back == 1);
  driver.free(there, sizeof(float));
  driver.free_pinned(pinned, sizeof(float));
}

TEST_CASE("a copy of many pieces arrives whole, also behind work that nobody waits for") {
  constexpr std::int64_t count = 5'000'003;  // more than are staged at once
  const Tensor x = counted(count);
  emulator_set_idle(0);
  const bool block_else = emulator_set_copies_block(true);
  for (const bool block : {true, false}) {
    emulator_set_copies_block(block);
    next_order();
    const Tensor back = ops::to_device(ops::to_device(x, cuda()), cpu);
    CHECK(std::memcmp(back.data<float>(), x.data<float>(), count * sizeof(float)) == 0);
  }
  emulator_set_idle(2000);
  emulator_set_copies_block(block_else);
}

TEST_CASE("memory of the host is pinned or not, and so is what is kept there for a device") {
  const Stream stream = Stream::default_of(cuda());
  const PinnedMemory pinned(stream, 5000);
  CHECK(is_pinned(cuda(), pinned.data()));
  CHECK(is_pinned(cuda(), static_cast<const std::byte*>(pinned.data()) + 4999));
  const Tensor ordinary = counted(5000);
  CHECK_FALSE(is_pinned(cuda(), ordinary.raw_data()));
  CHECK_FALSE(is_pinned(cpu, pinned.data()));

  plugin::host().load(OFFLOAD_PLUGIN);
  parallel::Options none("{}", "Offload");
  const auto style = plugin::host().find<parallel::ParallelStyle>("Offload")(none);
  MemoryPlace& place = *style->memory_place();
  CHECK_FALSE(is_pinned(cuda(), allocate_in(place, {100}, DType::f32, cpu).raw_data()));
  CHECK(is_pinned(cuda(), allocate_in(place, {100}, DType::f32, cuda()).raw_data()));
  // Gradients and state of what is kept there.
  CHECK(is_pinned(cuda(), allocate_in(place, {100}, DType::f32, cpu).raw_data()));
}

TEST_CASE("memory is filled with elements of each width") {
  for (const DType type : {DType::u8, DType::bf16, DType::f32, DType::f64, DType::i64}) {
    CHECK(to_doubles(full({1025}, 3, type, cuda())) == std::vector<double>(1025, 3));
  }
}

TEST_CASE("each function of elements has its kernel") {
  std::size_t with_kernel = 0;
  std::string missing;
  for (const Op* op : all_ops()) {
    const bool of_elements = op->element != nullptr && op->cpu != nullptr;
    const bool has = static_cast<bool>(kernel_of(*op, cuda().type));
    with_kernel += of_elements && has ? 1 : 0;
    missing += of_elements && !has ? " " + op->name : "";
  }
  INFO("without:" << missing);
  CHECK(with_kernel > 150);
}

TEST_CASE("the page lists the operators that have no kernel") {
  std::ifstream file(CUDA_PAGE);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const std::size_t title = page.find("## Operators without a kernel");
  const std::size_t end = page.find("\n## ", title);
  REQUIRE(end != std::string::npos);
  std::set<std::string> listed, missing;
  for (std::size_t at = title; (at = page.find('`', at)) < end; ++at) {
    const std::size_t begin = at + 1;
    at = page.find('`', begin);
    listed.insert(page.substr(begin, at - begin));
  }
  for (const Op* op : all_ops()) {
    // The conformance suite registers operators of its own.
    if (op->cpu != nullptr && !kernel_of(*op, cuda().type) && !op->name.starts_with("wrong_")) {
      missing.insert(op->name);
    }
  }
  CHECK(listed == missing);
}

TEST_CASE("kernels of a GPU compute what the CPU does, in any order") {
  DeviceAccount count;
  for (const CallSample& sample : samples()) {
    next_order();
    const HostFallback gradients;  // may call operators that have no kernel yet
    compare_on_device(sample, "", copies_of(sample.inputs), 1, cuda(), count);
    std::vector<Tensor> gaps;
    for (const Tensor& x : sample.inputs) gaps.push_back(x ? spaced(x) : x);
    compare_on_device(sample, "(spaced)", gaps, 1, cuda(), count);
  }
  check(count);
  CHECK(count.operators.size() > 150);
}

TEST_CASE("how far kernels are from the CPU is counted for each operator") {
  DeviceAccount count;
  double largest = 0;
  std::vector<CallSample> wanted;
  for (const CallSample& sample : samples()) {
    if (sample.op->name == "tanh" || sample.op->name == "neg") wanted.push_back(sample);
  }
  for (const CallSample& sample : in_type(wanted, DType::f32)) {
    compare_on_device(sample, "", copies_of(sample.inputs), 1, cuda(), count);
    if (sample.op->name == "neg") continue;
    const Tensor& x = sample.inputs[0];
    const std::vector<double> here = to_doubles(ops::tanh(x));
    const std::vector<double> there = to_doubles(ops::tanh(ops::to_device(x, cuda())));
    for (std::size_t i = 0; i < here.size(); ++i) {
      largest = std::max(largest, std::abs(there[i] - here[i]) / (1 + std::abs(here[i])) / 1e-5);
    }
  }
  check(count);
  REQUIRE(largest > 0);
  CHECK(count.deviations.at("tanh") >= largest * (1 - 1e-9));  // gradients count as well
  CHECK(count.deviations.at("tanh") <= 1);
  CHECK(count.deviations.at("neg") == 0);
}

TEST_CASE("kernels of a GPU compute what the CPU does in each floating type") {
  DeviceAccount count;
  std::map<const Op*, std::vector<CallSample>> by_op;
  for (const CallSample& sample : samples()) by_op[sample.op].push_back(sample);
  for (const auto& [op, of_op] : by_op) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::vector<CallSample> in = in_type(of_op, dtype);
      for (std::size_t i = 0; i < in.size() && i < 2; ++i) {
        next_order();
        const HostFallback gradients;
        compare_on_device(in[i], "in " + std::string(name_of(dtype)), copies_of(in[i].inputs), 1,
                          cuda(), count);
      }
    }
  }
  check(count);
  CHECK(count.operators.size() > 100);
}

TEST_CASE("numbers are rounded before a GPU compares them") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    next_order();
    const Tensor x = full({3}, 0.1, dtype);  // which the type rounds
    const auto compared = [](const Tensor& of) {
      return std::vector{to_doubles(ops::eq(of, 0.1)), to_doubles(ops::ge(of, 0.1)),
                         to_doubles(ops::le(of, 0.1)), to_doubles(ops::lt(of, 0.1))};
    };
    CHECK(compared(ops::to_device(x, cuda())) == compared(x));
    CHECK(compared(x)[0] == std::vector<double>{1, 1, 1});
  }
}

TEST_CASE("products are cuBLASLt's where each matrix has a contiguous axis") {
  const auto numbers = [](const Dims& shape, DType type) {
    const Tensor counts = counted(empty(shape).numel());
    return ops::cast(ops::reshape(ops::sin(counts), shape), type);
  };
  /// How many of the library's products there are; the result is the CPU's.
  const auto queued = [](const std::function<Tensor(const std::function<Tensor(Tensor)>&)>& call) {
    const std::uint64_t before = emulator_products();
    next_order();
    const Tensor found = call([](const Tensor& x) { return copied_to(x, cuda()); });
    const Tensor wanted = call([](const Tensor& x) { return x; });
    const std::vector<double> a = to_doubles(found), b = to_doubles(wanted);
    REQUIRE(a.size() == b.size());
    const double tolerance = found.dtype() == DType::f64    ? 1e-12
                             : found.dtype() == DType::f32  ? 1e-5
                             : found.dtype() == DType::bf16 ? 8e-3
                                                            : 1e-3;
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i])));
    }
    return emulator_products() - before;
  };
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor x = numbers({2, 3, 5}, type), w = numbers({7, 5}, type), bias = numbers({7}, type);
    const Tensor dy = numbers({2, 3, 7}, type);
    CHECK(queued([&](const auto& on) { return ops::linear(on(x), on(w), on(bias)); }) == 1);
    CHECK(queued([&](const auto& on) { return ops::linear(on(x), on(w)); }) == 1);
    CHECK(queued([&](const auto& on) {
            return call(find_op("linear_grad_input"), {on(dy), on(w)})[0];
          }) == 1);
    CHECK(queued([&](const auto& on) {
            return call(find_op("linear_grad_weight"), {on(dy), on(x)})[0];
          }) == 1);
    const Tensor a = numbers({4, 3, 5}, type), b = numbers({4, 5, 2}, type);
    CHECK(queued([&](const auto& on) { return ops::matmul(on(a), on(b)); }) == 1);
    CHECK(queued([&](const auto& on) { return ops::matmul(on(a), on(numbers({5, 2}, type))); }) ==
          1);
    const auto turned = [](const Tensor& y) { return ops::transpose(y, 0, 1); };
    CHECK(queued([&](const auto& on) {
            return ops::matmul(turned(on(numbers({5, 3}, type))),
                               turned(on(numbers({2, 5}, type))));
          }) == 1);
    // The same sizes with other strides are another product to the library.
    const auto part = [&](const auto& on, std::int64_t width) {
      return ops::matmul(ops::narrow(on(numbers({3, width}, type)), 1, 0, 5),
                         on(numbers({5, 2}, type)));
    };
    CHECK(queued([&](const auto& on) { return part(on, 6); }) == 1);
    CHECK(queued([&](const auto& on) { return part(on, 9); }) == 1);
  }
  for (const DType type : {DType::bf16, DType::f16}) {  // gradients that are summed in f32
    CHECK(queued([&](const auto& on) {
            const Tensor sum = on(numbers({7, 5}, DType::f32));
            call(find_op("linear_grad_weight_"),
                 {sum, on(numbers({2, 3, 7}, type)), on(numbers({2, 3, 5}, type))});
            return sum;
          }) == 1);
  }
  // No library's: integers, and rows and columns with gaps.
  CHECK(queued([&](const auto& on) {
          return ops::matmul(on(numbers({3, 5}, DType::i64)), on(numbers({5, 2}, DType::i64)));
        }) == 0);
  CHECK(queued([&](const auto& on) {
          return ops::matmul(ops::select(on(numbers({3, 5, 2}, DType::f32)), 2, 0),
                             on(numbers({5, 2}, DType::f32)));
        }) == 0);
  emulator_refuse_products(true);
  CHECK(queued([&](const auto& on) {
          return ops::linear(on(numbers({11, 5}, DType::f32)), on(numbers({3, 5}, DType::f32)));
        }) == 0);
  emulator_refuse_products(false);
}

TEST_CASE("algorithms of products are those that the library advises, or the fastest by measure") {
  emulator_set_seed(0);
  const auto product_of = [](std::int64_t rows) {
    const std::uint64_t before = emulator_products();
    const auto on = [&](Device device) {
      return ops::matmul(copied_to(ops::reshape(counted(rows * 5), {rows, 5}), device),
                         copied_to(ops::reshape(counted(10), {5, 2}), device));
    };
    CHECK(to_doubles(on(cuda())) == to_doubles(on(cpu)));
    return emulator_products() - before;
  };
  emulator_set_fastest_algorithm(2);
  CHECK(product_of(31) == 1);
  CHECK(emulator_last_algorithm() == 0);
  setenv("TESSERA_CUDA_PRODUCTS", "measured", 1);
  CHECK(product_of(31) == 1);  // chosen before
  CHECK(emulator_last_algorithm() == 0);
  CHECK(product_of(32) == 4 * 6 + 1);  // each of 4: once for its kernel, 5 times for its rate
  CHECK(emulator_last_algorithm() == 2);
  CHECK(product_of(32) == 1);
  CHECK(emulator_last_algorithm() == 2);
  // What adds to its result would add several times: it waits for a product of the form that does
  // not.
  const auto added = [](Device device) {
    const auto numbers = [&](std::int64_t rows, std::int64_t columns) {
      return copied_to(ops::reshape(counted(rows * columns), {rows, columns}), device);
    };
    const Tensor y = numbers(7, 3);
    call(find_op("linear_grad_weight_"), {y, numbers(4, 7), numbers(4, 3)});
    return to_doubles(y);
  };
  CHECK(added(cuda()) == added(cpu));
  CHECK(emulator_last_algorithm() == 0);
  setenv("TESSERA_CUDA_PRODUCTS", "fast", 1);
  const Tensor x = copied_to(ops::reshape(counted(33), {33, 1}), cuda());
  CHECK_THROWS_WITH(ops::matmul(x, copied_to(full({1, 1}, 2), cuda())),
                    Catch::Contains("TESSERA_CUDA_PRODUCTS: is not a way to choose "
                                    "algorithms of products (expected advised or "
                                    "measured, got fast)"));
  unsetenv("TESSERA_CUDA_PRODUCTS");
  emulator_set_fastest_algorithm(0);
}

TEST_CASE("each product of a form has its own bias") {
  const Tensor ones = ops::to_device(full({8, 8}, 1), cuda());
  const Tensor first = ops::to_device(full({8}, 1), cuda());
  const Tensor second = ops::to_device(full({8}, 2), cuda());
  CHECK(to_doubles(ops::linear(ones, ones, first)) == std::vector<double>(64, 9));
  CHECK(to_doubles(ops::linear(ones, ones, second)) == std::vector<double>(64, 10));
}

TEST_CASE("products in two streams do not share a workspace") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U}) {
    emulator_set_seed(seed);
    const Tensor ones = ops::to_device(full({8, 8}, 1), cuda());
    const Tensor twos = ops::to_device(full({8, 8}, 2), cuda());
    const Stream side = Stream::make(cuda());
    side.wait(record_event(current_stream(cuda())));
    Tensor there;
    {
      const StreamScope scope(side);
      there = ops::matmul(twos, twos);
    }
    const Tensor here = ops::matmul(ones, ones);
    current_stream(cuda()).wait(record_event(side));
    CHECK(to_doubles(here) == std::vector<double>(64, 8));
    CHECK(to_doubles(there) == std::vector<double>(64, 32));
  }
}

TEST_CASE("an index that is out of range is an error in the CPU's words, where the host waits") {
  emulator_set_seed(2);
  const Tensor table = ops::to_device(full({5, 3}, 1), cuda());
  const std::vector<std::int64_t> values = {4, 7, -1};
  const Tensor wrong = from_values(std::span<const std::int64_t>(values), {3});
  const Tensor indices = ops::to_device(wrong, cuda());
  const Tensor rows = ops::embedding(table, indices);
  CHECK_THROWS_WITH(to_doubles(rows),
                    Catch::Contains("embedding: index 7 is out of range (expected 0 to 4)"));
  CHECK(to_doubles(table) == std::vector<double>(15, 1));  // it is raised once
  const Tensor loss = ops::cross_entropy(ops::to_device(full({3, 5}, 1), cuda()), indices);
  CHECK_THROWS_WITH(loss.item(), Catch::Contains("target 7 of row 1 is out of range"));
  const Tensor x = ops::to_device(full({1, 3, 1, 4}, 1), cuda());
  CHECK_THROWS_WITH(to_doubles(ops::rotary(x, indices, 100)),
                    Catch::Contains("rotary_at: position -1 is below 0 (number 2)"));
  const std::vector<std::int64_t> far = {4, 1 << 26, 0};
  const Tensor positions = ops::to_device(from_values(std::span(far), {3}), cuda());
  CHECK_THROWS_WITH(to_doubles(ops::rotary(x, positions, 100)),
                    Catch::Contains("rotary_at: position 67108864 is too far"));
}

TEST_CASE("a step of AdamW has the CPU's numbers for many parameters of odd lengths") {
  const auto step = [](Device device) {
    std::vector<Tensor> lists[4];
    for (std::int64_t i = 0; i < 40; ++i) {
      const Tensor p = counted(1 + 37 * i);
      lists[0].push_back(copied_to(p, device));
      lists[1].push_back(copied_to(ops::sin(p), device));
      lists[2].push_back(copied_to(ops::mul_scalar(p, 0.01), device));
      lists[3].push_back(copied_to(ops::mul_scalar(p, 0.02), device));
    }
    const std::vector<Tensor> none(40);
    ops::adamw_(lists[0], lists[1], lists[2], lists[3], none,
                {.lr = 0.1,
                 .beta1 = 0.9,
                 .beta2 = 0.99,
                 .eps = 1e-8,
                 .weight_decay = 0.1,
                 .grad_scale = 0.5,
                 .step = 3});
    std::vector<double> all;
    for (const auto& list : lists) {
      for (const Tensor& x : list) {
        for (const double value : to_doubles(x)) all.push_back(value);
      }
    }
    return all;
  };
  emulator_set_seed(3);
  const std::vector<double> wanted = step(cpu);
  const std::vector<double> found = step(cuda());
  REQUIRE(wanted.size() == found.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    REQUIRE(std::abs(found[i] - wanted[i]) <= 2e-6 * (1 + std::abs(wanted[i])));
  }
}

TEST_CASE("casts of a GPU have the CPU's bits between all types") {
  const NoGrad constant;
  std::vector<float> values = {0,     -0.0F, 1,   -1,  0.5F,  2.5F,   -3.5F,
                               1e-3F, 255,   256, 300, 1e10F, -1e10F, 1e-40F,
                               65504, 65520, 448, 465, 57344, 61440};
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  const Tensor x =
      from_values(std::span<const float>(values), {static_cast<std::int64_t>(values.size())});
  for (int from = 0; from < dtype_count; ++from) {
    const Tensor a = ops::cast(x, static_cast<DType>(from));
    const Tensor there = ops::to_device(a, cuda());
    for (int to = 0; to < dtype_count; ++to) {
      const auto type = static_cast<DType>(to);
      const Tensor wanted = ops::cast(a, type);
      const Tensor found = ops::to_device(ops::cast(there, type), cpu);
      INFO(name_of(a.dtype()) << " to " << name_of(type));
      CHECK(std::memcmp(wanted.raw_data(), found.raw_data(),
                        static_cast<std::size_t>(wanted.numel()) * size_of(type)) == 0);
    }
  }
}
