// The adversarial device: the host cannot touch its memory, its queues run late and in odd orders,
// and what streams and events order is right all the same. A missing event and an access by the
// host are seen.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;

#include "devices.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Whether the kernel of the operating system can read the byte for this process.
bool host_can_read(const void* data) {
  int ends[2];
  if (pipe(ends) != 0) {
    return true;
  }
  const bool readable = write(ends[1], data, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

/// 1, 2, 3, ... on the device.
Tensor counted(std::int64_t count, Device device) {
  const Tensor x = empty({count});
  for (std::int64_t i = 0; i < count; ++i) {
    x.data<float>()[i] = static_cast<float>(i + 1);
  }
  return ops::to_device(x, device);
}

}  // namespace

TEST_CASE("the device's memory is closed to the host") {
  const Device device = adversary();
  const Tensor x = counted(4, device);
  synchronize(device);
  const int own = 1;
  CHECK(host_can_read(&own));
  CHECK_FALSE(host_can_read(x.device_address()));
  CHECK(errno == EFAULT);
  CHECK(to_doubles(x) == Values{1, 2, 3, 4});  // the named way
}

TEST_CASE("a planted access of the host is an error that says what to do") {
  const Tensor x = counted(4, adversary());
  const std::string text = error_of([&] { x.data<float>()[0] = 1; });
  CHECK(text ==
        "data: the host cannot access the memory of adversary:0; copy the tensor to the host "
        "(to_device(x, cpu)), or read it by item() or to_doubles()");
  CHECK(error_of([&] { x.raw_data(); }) == text);
}

TEST_CASE("nothing runs before somebody waits") {
  const Device device = adversary();
  const Stream stream = Stream::make(device);
  bool ran = false;
  stream.launch([&] { ran = true; });
  const Event event = record_event(stream);
  synchronize(cpu);
  CHECK_FALSE(ran);
  CHECK_FALSE(event.reached());
  event.synchronize();
  CHECK(ran);
  CHECK(event.reached());
}

TEST_CASE("a poll returns while a function waits for what comes after it") {
  const Stream stream = Stream::make(adversary());
  std::atomic<bool> polled = false;
  bool in_time = false;
  stream.launch([&] {
    wait_until([&] { return polled.load(); });
    in_time = polled;
  });
  CHECK(poll_devices());  // the function is left
  polled = true;
  stream.synchronize();
  CHECK(in_time);
}

TEST_CASE("queues without events run in an odd order, and in the order of their events with them") {
  const Device lazy = adversary(0);
  const Device eager = adversary(1);
  for (const bool with_event : {false, true}) {
    for (const Device device : {lazy, eager}) {
      const Stream first = Stream::make(device);
      const Stream second = Stream::make(device);
      std::string order;
      first.launch([&] { order += "a"; });
      if (with_event) {
        second.wait(record_event(first));
      }
      second.launch([&] { order += "b"; });
      (device == lazy ? second : first).synchronize();
      synchronize(device);
      // The lazy one runs what is waited for first, the eager one everything else first.
      CHECK(order == (with_event ? "ab" : "ba"));
    }
  }
}

TEST_CASE("a missing event is seen: the reader finds what is not written yet") {
  for (const bool with_event : {false, true}) {
    const Device device = adversary(0);
    full({3}, -1, DType::f32, device);  // what x's memory holds before
    synchronize(device);
    const Tensor x = counted(3, device);
    const Stream other = Stream::make(device);
    const StreamScope scope(other);
    if (with_event) {
      other.wait(record_event(Stream::default_of(device)));
    }
    const Values found = to_doubles(ops::mul(x, x));
    CHECK((found == Values{1, 4, 9}) == with_event);
    synchronize(device);
  }
}

TEST_CASE("a missing event before an overwrite is seen: the reader finds what is written later") {
  for (const bool with_event : {false, true}) {
    const Device device = adversary(0);
    const Tensor x = counted(3, device);
    synchronize(device);
    const Stream reader = Stream::make(device);
    Tensor y;
    {
      const StreamScope scope(reader);
      y = ops::mul_scalar(x, 10);
    }
    const Stream usual = Stream::default_of(device);
    if (with_event) {
      usual.wait(record_event(reader));
    }
    ops::fill_(x, 5);
    usual.synchronize();
    const StreamScope scope(reader);
    CHECK((to_doubles(y) == Values{10, 20, 30}) == with_event);
  }
}

TEST_CASE("memory is reused in its stream's order while the stream still uses it") {
  const Device device = adversary(0);
  std::vector<Tensor> kept;
  for (int i = 0; i < 20; ++i) {
    const Tensor x = full({1000}, i, DType::f32, device);
    kept.push_back(ops::sum(ops::mul(x, x)));  // the products' memory is free at once
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(kept[static_cast<std::size_t>(i)].item() == 1000.0 * i * i);
  }
}

TEST_CASE("memory that another stream uses is not overwritten before that") {
  for (const int index : {0, 1, 2, 3, 4, 5}) {
    const Device device = adversary(index);
    const Stream usual = Stream::default_of(device);
    const Stream other = Stream::make(device);
    const std::size_t reserved = allocator_of(device).reserved();
    Tensor x = counted(1000, device);
    const void* address = x.device_address();
    other.wait(record_event(usual));
    Tensor y;
    {
      const StreamScope scope(other);
      y = ops::sum(x);
    }
    x = Tensor();  // the other stream has not read it
    const Tensor z = full({1000}, -1, DType::f32, device);
    CHECK(z.device_address() == address);
    usual.synchronize();
    CHECK(to_doubles(z)[999] == -1);
    {
      const StreamScope scope(other);
      CHECK(y.item() == 500500);
    }
    CHECK(allocator_of(device).reserved() >= reserved);
  }
}

TEST_CASE("a long program on several streams gives the CPU's values in every order") {
  const auto program = [](Device device, std::vector<Stream> streams) {
    Tensor x = counted(64, device);
    std::vector<Tensor> parts;
    for (int i = 0; i < 12; ++i) {
      if (device == cpu) {
        parts.push_back(ops::mul_scalar(ops::add(x, x), i));
      } else {
        const Stream& stream = streams[static_cast<std::size_t>(i) % streams.size()];
        stream.wait(record_event(Stream::default_of(device)));
        {
          const StreamScope scope(stream);
          parts.push_back(ops::mul_scalar(ops::add(x, x), i));
        }
        Stream::default_of(device).wait(record_event(stream));
      }
      x = ops::sub(parts.back(), x);
    }
    Values all = to_doubles(x);
    for (const Tensor& part : parts) {
      const Values more = to_doubles(part);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  const Values wanted = program(cpu, {});
  for (int index = 0; index < 12; ++index) {
    const Device device = adversary(index);
    CHECK(program(device, {Stream::make(device), Stream::make(device), Stream::make(device)}) ==
          wanted);
  }
}

TEST_CASE("an error in a kernel is raised where the host waits") {
  const Device device = adversary();
  const Stream stream = Stream::make(device);
  stream.launch([] { fail("kernel: it failed"); });
  CHECK(error_of([&] { stream.synchronize(); }) == "kernel: it failed");
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
}

TEST_CASE("events of one kind of device order streams of several; of another kind they do not") {
  const Stream first = Stream::make(adversary(0));
  const Stream second = Stream::make(adversary(1));
  std::string order;
  first.launch([&] { order += "a"; });
  second.wait(record_event(first));
  second.launch([&] { order += "b"; });
  second.synchronize();
  CHECK(order == "ab");
  CHECK(contains(error_of([&] { Stream::make(cpu).wait(record_event(first)); }),
                 "stream of cpu: it cannot wait for an event of adversary:0"));
  Event event = record_event(first);
  CHECK(contains(error_of([&] { event.record(Stream::make(cpu)); }), "event of adversary:0"));
}

TEST_CASE("a device's memory has a cap, and its error names the tensor and who holds what") {
  const Device device = adversary(9);
  allocator_of(device).set_cap(std::size_t{8} << 20);
  const MemoryScope scope(MemoryCategory::activation);
  const Tensor x = empty({1 << 20}, DType::f32, device);
  const std::string text = error_of([&] { empty({2 << 20}, DType::f32, device); });
  CHECK(contains(text,
                 "empty: there is not enough memory for a tensor of f32[2097152] (8388608 "
                 "bytes)\nadversary:9: there is not enough memory for 8.0 MiB (activation)"));
  CHECK(contains(text, "the cap is 8.0 MiB"));
  CHECK(contains(text, "activation          4.0 MiB        1  -"));
  CHECK(memory_statistics(device).bytes[static_cast<int>(MemoryCategory::activation)] == 4 << 20);
  allocator_of(device).set_cap(0);
  CHECK(empty({2 << 20}, DType::f32, device).device() == device);
}
