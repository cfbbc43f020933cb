// The emulator itself: that right programs get right results, in every order, and that each kind of
// fault is found, with an error that says where.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "control.hpp"
#include "driver_api.hpp"
#include "probe.hpp"
#include "watched_by_hand.hpp"

using namespace tessera::cuda;

namespace {

const WatchedThread& watched = WatchedByHand::nobody();

const DriverApi& api() {
  static const DriverApi all = [] {
    setenv("TESSERA_EMULATOR_KERNELS", PROBE_KERNELS, 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    DriverApi found = {};
    each_function(found, [](auto& function, const char* name) {
      function.set(dlsym(RTLD_DEFAULT, name));
      REQUIRE(function.address() != nullptr);
    });
    return found;
  }();
  return all;
}

#define OK(call) REQUIRE((call) == Result::success)

/// Device 0, as it is after an error was forgotten; work runs only where somebody waits for it.
class Emulated {
 public:
  explicit Emulated(std::uint64_t seed = 0) {
    OK(api().init(watched, 0));
    OK(api().device_primary_ctx_retain(watched, &context_, 0));
    OK(api().ctx_set_current(context_));
    emulator_restart();
    emulator_set_seed(seed);
    emulator_set_idle(0);
    OK(api().module_load_data(watched, &module_, "by name"));
  }
  ~Emulated() {
    emulator_restart();
    emulator_set_copies_block(copies_block_);
  }
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;

  StreamHandle stream() {
    StreamHandle made = nullptr;
    OK(api().stream_create(watched, &made, stream_non_blocking, 0));
    return made;
  }
  EventHandle event() {
    EventHandle made = nullptr;
    OK(api().event_create(&made, event_disable_timing));
    return made;
  }
  float* memory(std::size_t count) {
    DevicePointer made = 0;
    OK(api().mem_alloc(watched, &made, count * sizeof(float)));
    return reinterpret_cast<float*>(made);
  }
  float* memory(const std::vector<float>& values, StreamHandle in) {
    float* made = memory(values.size());
    OK(api().memcpy_htod_async(at(made), values.data(), values.size() * sizeof(float), in));
    return made;
  }
  static DevicePointer at(const void* data) { return reinterpret_cast<DevicePointer>(data); }

  template <class Structure>
  void launch(const char* kernel, unsigned blocks, unsigned threads, Structure structure,
              StreamHandle in, unsigned memory = 0) {
    OK(launch(function(kernel), blocks, threads, structure, in, memory));
  }
  Function function(const char* kernel) {
    Function found = nullptr;
    OK(api().module_get_function(watched, &found, module_, kernel));
    return found;
  }
  template <class Structure>
  Result launch(Function function, unsigned blocks, unsigned threads, Structure structure,
                StreamHandle in, unsigned memory) {
    std::size_t bytes = sizeof(structure);
    void* extra[] = {launch_buffer_pointer, &structure, launch_buffer_size, &bytes, nullptr};
    return api().launch_kernel(function, blocks, 1, 1, threads, 1, 1, memory, in, nullptr, extra);
  }
  std::vector<float> read(const float* data, std::size_t count, StreamHandle in) {
    std::vector<float> values(count);
    OK(api().memcpy_dtoh_async(values.data(), at(data), count * sizeof(float), in));
    OK(api().stream_synchronize(watched, in));
    return values;
  }
  /// The error that the stream's work has; empty: none.
  std::string error(StreamHandle in) {
    const Result result = api().stream_synchronize(watched, in);
    if (result == Result::success) return "";
    const char* text = nullptr;
    OK(api().get_error_string(result, &text));
    return text;
  }

 private:
  bool copies_block_ = emulator_set_copies_block(true);  // these tests pass memory that goes away
  Context context_ = nullptr;
  Module module_ = nullptr;
};

std::vector<float> numbers(std::size_t count) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<float>(i) - 40;
  return all;
}

/// The error of one launch on 128 elements.
std::string launch_error(const char* kernel, unsigned blocks, unsigned threads,
                         unsigned memory = 0) {
  Emulated device(2);
  StreamHandle stream = device.stream();
  const float* from = device.memory(numbers(128), stream);
  device.launch(kernel, blocks, threads, Probe{from, device.memory(128), 128}, stream, memory);
  return device.error(stream);
}

}  // namespace

TEST_CASE("kernels compute each thread of each block, in any order") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
    Emulated device(seed);
    StreamHandle stream = device.stream();
    const std::vector<float> values = numbers(1000);
    const float* from = device.memory(values, stream);
    float* to = device.memory(1000);
    device.launch("probe_double", 8, 128, Probe{from, to, 1000}, stream);
    const std::vector<float> found = device.read(to, 1000, stream);
    for (std::size_t i = 0; i < 1000; ++i) REQUIRE(found[i] == 2 * values[i]);
  }
}

TEST_CASE("barriers, shuffles and ballots pass values between threads") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
    Emulated device(seed);
    StreamHandle stream = device.stream();
    const std::vector<float> values = numbers(128);
    const float* from = device.memory(values, stream);
    float* to = device.memory(128);
    device.launch("probe_reverse", 2, 64, Probe{from, to, 128}, stream);
    const std::vector<float> reversed = device.read(to, 128, stream);
    for (std::size_t i = 0; i < 128; ++i) {
      REQUIRE(reversed[i] == values[i / 64 * 64 + 63 - i % 64]);
    }
    device.launch("probe_warp_sum", 2, 64, Probe{from, to, 128}, stream);
    const std::vector<float> sums = device.read(to, 8, stream);
    for (std::size_t warp = 0; warp < 4; ++warp) {
      float sum = 0;
      unsigned positive = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        sum += values[warp * 32 + i];
        if (values[warp * 32 + i] > 0) positive |= 1U << i;
      }
      CHECK(sums[2 * warp] == sum);
      CHECK(sums[2 * warp + 1] == static_cast<float>(positive >> 16));
    }
    device.launch("probe_warp_order", 1, 32, Probe{from, to, 32}, stream);
    const std::vector<float> shifted = device.read(to, 32, stream);
    for (std::size_t i = 0; i < 32; ++i) REQUIRE(shifted[i] == values[(i + 1) % 32]);
  }
}

TEST_CASE("tensor cores multiply fragments as PTX defines them") {
  Emulated device(2);
  StreamHandle stream = device.stream();
  std::vector<float> values(256 + 128);  // small integers, so that sums are exact
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 7 + i / 16 * 5) % 13) - 6;
  }
  float* to = device.memory(128);
  device.launch("probe_product", 1, 32, Probe{device.memory(values, stream), to, 128}, stream);
  const std::vector<float> found = device.read(to, 128, stream);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        sum += values[16 * row + k] * values[256 + 8 * k + column];
      }
      REQUIRE(found[8 * row + column] == sum);
    }
  }
}

TEST_CASE("a warp loads matrices into fragments, as they are and transposed") {
  Emulated device(3);
  StreamHandle stream = device.stream();
  std::vector<float> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  float* to = device.memory(512);
  device.launch("probe_matrices", 1, 32, Probe{device.memory(values, stream), to, 512}, stream);
  const std::vector<float> found = device.read(to, 512, stream);
  for (std::size_t i = 0; i < 512; ++i) REQUIRE(found[i] == values[i % 256]);
}

TEST_CASE("copies to shared memory arrive where they are waited for") {
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    Emulated device(seed);
    StreamHandle stream = device.stream();
    float* to = device.memory(128);
    device.launch("probe_copies", 1, 32, Probe{device.memory(numbers(128), stream), to, 100},
                  stream);
    const std::vector<float> found = device.read(to, 128, stream);
    for (std::size_t i = 0; i < 128; ++i) {
      REQUIRE(found[127 - i] == (i < 100 ? static_cast<float>(i) - 40 : 0));
    }
  }
}

TEST_CASE("single numbers are copied to shared memory too") {
  Emulated device(2);
  StreamHandle stream = device.stream();
  float* to = device.memory(32);
  device.launch("probe_copied_numbers", 1, 32, Probe{device.memory(numbers(20), stream), to, 20},
                stream, 128);
  const std::vector<float> found = device.read(to, 32, stream);
  for (std::size_t i = 0; i < 32; ++i) {
    REQUIRE(found[31 - i] == (i < 20 ? static_cast<float>(i) - 40 : 0));
  }
}

TEST_CASE("groups of copies arrive one after the other") {
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    Emulated device(seed);
    StreamHandle stream = device.stream();
    float* to = device.memory(64);
    device.launch("probe_groups_of_copies", 1, 32,
                  Probe{device.memory(numbers(256), stream), to, 256}, stream, 1024);
    const std::vector<float> found = device.read(to, 64, stream);
    for (std::size_t i = 0; i < 64; ++i) {
      REQUIRE(found[i] == static_cast<float>(4 * (i / 32 * 32 + 31 - i % 32)) - 40);
    }
  }
}

TEST_CASE("a launch gives as much shared memory as the kernel was allowed") {
  Emulated device(2);
  StreamHandle stream = device.stream();
  const Probe structure{device.memory(numbers(256), stream), device.memory(64), 256};
  const auto launch = [&](Function function, unsigned memory) {
    return device.launch(function, 1, 32, structure, stream, memory);
  };
  const Function probe = device.function("probe_groups_of_copies");
  OK(launch(probe, usual_launched_memory));
  CHECK(launch(probe, usual_launched_memory + 16) == Result::invalid_value);
  CHECK(api().func_set_attribute(watched, probe, most_launched_memory, 99 * 1024 + 1) ==
        Result::invalid_value);
  CHECK(api().func_set_attribute(watched, probe, most_launched_memory + 1, 0) ==
        Result::invalid_value);
  OK(api().func_set_attribute(watched, probe, most_launched_memory, 99 * 1024));
  OK(launch(probe, 99 * 1024));
  CHECK(launch(probe, 99 * 1024 + 16) == Result::invalid_value);
  CHECK(launch(device.function("probe_reverse"), usual_launched_memory + 16) ==
        Result::invalid_value);
  CHECK(device.error(stream).empty());
}

TEST_CASE("atomic operations are no races") {
  Emulated device;
  StreamHandle stream = device.stream();
  float* to = device.memory({0.0F}, stream);
  device.launch("probe_count", 4, 64, Probe{to, to, 1}, stream);
  CHECK(device.read(to, 1, stream) == std::vector<float>{256});
}

TEST_CASE("addresses in a list in the structure reach their arrays") {
  Emulated device;
  StreamHandle stream = device.stream();
  ProbeList list = {};
  list.arrays = 64;
  list.count = 10;
  for (auto& from : list.from) from = device.memory(numbers(10), stream);
  list.to = device.memory(10);
  device.launch("probe_list", 1, 32, list, stream);
  const std::vector<float> found = device.read(list.to, 10, stream);
  for (std::size_t i = 0; i < 10; ++i) CHECK(found[i] == 64 * (static_cast<float>(i) - 40));
}

TEST_CASE("nothing runs before somebody waits, and events order streams") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U, 4U, 5U}) {
    Emulated device(seed);
    StreamHandle first = device.stream();
    StreamHandle second = device.stream();
    EventHandle done = device.event();
    CHECK(api().event_query(done) == Result::success);  // never recorded
    float* data = device.memory(numbers(64), first);
    float* doubled = device.memory(64);
    device.launch("probe_increment", 1, 64, Probe{data, data, 64}, first);
    OK(api().event_record(done, first));
    CHECK(api().event_query(done) == Result::not_ready);
    CHECK(api().stream_query(first) == Result::not_ready);
    OK(api().stream_wait_event(second, done, 0));
    device.launch("probe_double", 1, 64, Probe{data, doubled, 64}, second);
    const std::vector<float> found = device.read(doubled, 64, second);
    for (std::size_t i = 0; i < 64; ++i) REQUIRE(found[i] == 2 * (static_cast<float>(i) - 39));
    CHECK(api().event_query(done) == Result::success);
  }
}

TEST_CASE("a missing event gives another result in some order") {
  std::size_t wrong = 0;
  for (const std::uint64_t seed : {0U, 1U}) {
    Emulated device(seed);
    StreamHandle first = device.stream();
    StreamHandle second = device.stream();
    float* data = device.memory(numbers(64), first);
    float* doubled = device.memory(64);
    device.launch("probe_double", 1, 64, Probe{data, doubled, 64}, second);
    wrong += device.read(doubled, 64, second)[1] == -78 ? 0 : 1;
  }
  CHECK(wrong >= 1);
}

/// A number in pinned memory that a stream waits for.
class Gate {
 public:
  explicit Gate(StreamHandle closed) {
    void* pinned = nullptr;
    OK(api().mem_host_alloc(watched, &pinned, 4, host_alloc_portable | host_alloc_device_map));
    number_ = new (pinned) std::atomic<std::uint32_t>(0);
    OK(api().stream_wait_value(closed, Emulated::at(number_), 1, wait_value_geq));
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { api().mem_free_host(watched, number_); }
  void open() { number_->store(1); }

  /// Whether the call returns only when the gate is open. `call` uses device 0.
  bool holds(const std::function<void()>& call) {
    std::atomic<bool> returned = false;
    std::thread caller([&] {
      Context context = nullptr;
      api().device_primary_ctx_retain(watched, &context, 0);
      api().ctx_set_current(context);
      call();
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool held = !returned;
    open();
    caller.join();
    return held;
  }

 private:
  std::atomic<std::uint32_t>* number_ = nullptr;
};

TEST_CASE("who adds to a full queue waits until there is room") {
  for (const std::size_t calls : {3U, 4U}) {
    Emulated device(2);
    const std::uint64_t places = emulator_set_places(4);
    StreamHandle stream = device.stream();
    EventHandle event = device.event();
    Gate gate(stream);
    const bool held = gate.holds([&] {
      for (std::size_t i = 0; i < calls; ++i) api().event_record(event, stream);
    });
    CHECK(held == (calls == 4));
    OK(api().stream_synchronize(watched, stream));
    emulator_set_places(places);
  }
}

TEST_CASE("a copy of ordinary memory waits for all work of its stream, or is late") {
  for (const bool blocks : {true, false}) {
    Emulated device(2);
    StreamHandle stream = device.stream();
    float* data = device.memory({7.0F}, stream);
    OK(api().stream_synchronize(watched, stream));
    emulator_set_copies_block(blocks);
    float found = 0;
    Gate gate(stream);
    CHECK(gate.holds([&] {
      api().memcpy_dtoh_async(&found, Emulated::at(data), sizeof(float), stream);
    }) == blocks);
    OK(api().stream_synchronize(watched, stream));
    CHECK(found == 7);
    float source = 1;
    OK(api().memcpy_htod_async(Emulated::at(data), &source, sizeof(float), stream));
    source = 2;
    CHECK(device.read(data, 1, stream)[0] == (blocks ? 1 : 2));
  }
}

TEST_CASE("a kernel that is loaded when it is first launched waits for all streams") {
  for (const bool lazy : {true, false}) {
    Emulated device(2);
    emulator_set_lazy_loading(lazy);
    StreamHandle busy = device.stream();
    StreamHandle other = device.stream();
    float* data = device.memory(numbers(64), other);
    Gate gate(busy);
    const char* const kernel = lazy ? "probe_first" : "probe_increment";
    CHECK(gate.holds([&] { device.launch(kernel, 1, 64, Probe{data, data, 64}, other); }) == lazy);
    OK(api().stream_synchronize(watched, other));
    emulator_set_lazy_loading(false);
  }
}

TEST_CASE("a copy from pinned memory reads it late, another copy at once") {
  Emulated device;
  StreamHandle stream = device.stream();
  void* pinned = nullptr;
  OK(api().mem_host_alloc(watched, &pinned, sizeof(float), host_alloc_portable));
  float pageable = 1;
  std::memcpy(pinned, &pageable, sizeof(float));
  float* a = device.memory(1);
  float* b = device.memory(1);
  OK(api().memcpy_htod_async(Emulated::at(a), pinned, sizeof(float), stream));
  OK(api().memcpy_htod_async(Emulated::at(b), &pageable, sizeof(float), stream));
  pageable = 2;
  std::memcpy(pinned, &pageable, sizeof(float));
  CHECK(device.read(a, 1, stream) == std::vector<float>{2});
  CHECK(device.read(b, 1, stream) == std::vector<float>{1});
  OK(api().mem_free_host(watched, pinned));
}

TEST_CASE("a stream waits for a number in memory, and other streams run meanwhile") {
  Emulated device;
  StreamHandle waiting = device.stream();
  StreamHandle other = device.stream();
  void* pinned = nullptr;
  OK(api().mem_host_alloc(watched, &pinned, 4, host_alloc_portable | host_alloc_device_map));
  auto* flag = new (pinned) std::atomic<std::uint32_t>(0);
  float* data = device.memory(numbers(64), waiting);
  OK(api().stream_wait_value(waiting, Emulated::at(flag), 1, wait_value_geq));
  device.launch("probe_increment", 1, 64, Probe{data, data, 64}, waiting);
  CHECK(device.read(device.memory(numbers(4), other), 4, other)[0] == -40);
  CHECK(api().stream_query(waiting) == Result::not_ready);
  OK(api().launch_host_func(
      other, [](void* at) { static_cast<std::atomic<std::uint32_t>*>(at)->store(1); }, flag));
  CHECK(device.read(data, 64, waiting)[0] == -39);
  OK(api().mem_free_host(watched, pinned));
}

TEST_CASE("the host cannot touch a device's memory") {
  Emulated device;
  const volatile float* data = device.memory(4);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(data[0] == 0 ? 1 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("a driver that was initialised refuses its use after a fork") {
  Emulated device;
  const pid_t child = fork();
  if (child == 0) {
    DevicePointer data = 0;
    const Result result = api().mem_alloc(watched, &data, 4);
    const char* text = nullptr;
    api().get_error_string(result, &text);
    const bool named =
        std::string(text).find("before this process was forked") != std::string::npos;
    _exit(result == Result::not_initialized && api().init(watched, 0) == result && named ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("faults of kernels are found and say where") {
  using Catch::Contains;
  CHECK(launch_error("probe_double", 1, 128).empty());
  CHECK_THAT(launch_error("probe_missing_barrier", 2, 64),
             Contains("kernel probe_missing_barrier, block ") && Contains("of device 0") &&
                 Contains("shared memory") && Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_second_missing_barrier", 2, 64), Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_missing_warp_barrier", 1, 32), Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_divergent_barrier", 2, 64),
             Contains("threads 0-31 wait at a barrier") && Contains("threads 32-63 have ended"));
  CHECK_THAT(launch_error("probe_two_barriers", 2, 64),
             Contains("threads 0-31 are at another barrier than threads 32-63"));
  CHECK_THAT(launch_error("probe_missing_limit", 3, 64),
             Contains("past the end of the allocation of 512 bytes"));
  CHECK_THAT(launch_error("probe_wrong_stride", 2, 64),
             Contains("race") && Contains("of the same launch has written"));
  CHECK_THAT(launch_error("probe_wrong_mask", 1, 32), Contains("the mask ffffffff"));
  CHECK_THAT(launch_error("probe_foreign_mask", 1, 32), Contains("is not in the mask ffff"));
  CHECK_THAT(launch_error("probe_copies_without_wait", 1, 32), Contains("has not waited for"));
  CHECK_THAT(launch_error("probe_copies_without_barrier", 1, 32), Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_group_without_wait", 1, 32, 1024), Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_launched_memory_without_barrier", 1, 32, 128),
             Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_launched_memory_without_barrier", 1, 32, 64),
             Contains("of shared memory, of which its launch gives 64"));
  CHECK_THAT(launch_error("probe_groups_of_copies", 1, 32, 512),
             Contains("not a multiple of 16 in shared memory"));
  CHECK_THAT(launch_error("probe_matrices_without_barrier", 1, 32), Contains("missing barrier"));
  CHECK_THAT(launch_error("probe_product_of_half_a_warp", 1, 32),
             Contains("which has ended") || Contains("never reach"));
  CHECK_THAT(launch_error("probe_two_operations_on_matrices", 1, 32),
             Contains("in another operation on matrices"));
  CHECK_THAT(launch_error("probe_unaligned_row", 1, 32), Contains("not a multiple of 16"));
  CHECK_THAT(launch_error("probe_unaligned_word", 1, 32),
             Contains("it reads 16 bytes at an address that is no multiple of 16"));
  CHECK_THAT(launch_error("probe_unordered_sum", 1, 64), Contains("race"));
  CHECK_THAT(launch_error("probe_unordered_sum", 4, 1), Contains("race"));
  // The order of threads is drawn: in some launches only one has read before it is written.
  bool several = false;
  for (int i = 0; i < 8; ++i) {
    const std::string error = launch_error("probe_read_and_written", 1, 64);
    CHECK_THAT(error, Contains("race: it"));
    several = several || (error.find("race: it writes") != std::string::npos &&
                          error.find("several threads have read since") != std::string::npos);
  }
  CHECK(several);
}

TEST_CASE("memory that another stream still uses is not freed unnoticed") {
  using Catch::Contains;
  Emulated device;
  StreamHandle stream = device.stream();
  float* data = device.memory(numbers(64), stream);
  OK(api().stream_synchronize(watched, stream));
  float* to = device.memory(64);
  device.launch("probe_double", 1, 64, Probe{data, to, 64}, stream);
  OK(api().mem_free(watched, Emulated::at(data)));
  CHECK_THAT(device.error(stream), Contains("kernel probe_double") && Contains("was freed"));
  // Until then nothing else works, as with a GPU.
  DevicePointer more = 0;
  CHECK(api().mem_alloc(watched, &more, 4) == Result::launch_failed);
}

TEST_CASE("kernels get addresses in their structure only, and of memory of devices") {
  using Catch::Contains;
  {
    Emulated device;
    StreamHandle stream = device.stream();
    float* data = device.memory(numbers(4), stream);
    const float* list[] = {data};
    float* addresses = device.memory(2);
    OK(api().memcpy_htod_async(Emulated::at(addresses), list, sizeof(list), stream));
    device.launch("probe_address_in_memory", 1, 1, Probe{addresses, data, 1}, stream);
    CHECK_THAT(device.error(stream), Contains("from memory"));
  }
  Emulated device;
  StreamHandle stream = device.stream();
  const std::vector<float> of_host(64);
  device.launch("probe_double", 1, 64, Probe{of_host.data(), device.memory(64), 64}, stream);
  CHECK_THAT(device.error(stream), Contains("neither memory of a device nor pinned"));
}

TEST_CASE("copies and fills stay within allocations") {
  using Catch::Contains;
  Emulated device;
  StreamHandle stream = device.stream();
  float* data = device.memory(4);
  OK(api().memset_d32_async(Emulated::at(data), 0, 5, stream));
  CHECK_THAT(device.error(stream),
             Contains("a fill in stream") && Contains("4 bytes past the end"));
}

TEST_CASE("a thread that has set no context is refused") {
  Emulated device;
  OK(api().ctx_set_current(nullptr));
  DevicePointer data = 0;
  CHECK(api().mem_alloc(watched, &data, 4) == Result::invalid_context);
}

TEST_CASE("what a kernel did not write is not a number") {
  Emulated device;
  StreamHandle stream = device.stream();
  const float* data = device.memory(4);
  for (const float value : device.read(data, 4, stream)) CHECK(value != value);
}
