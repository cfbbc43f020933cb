// The CPU as a device: its default stream is the calling thread, further streams are threads, and
// events order them.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;

using namespace tessera;
using tessera::testing::contains;
using tessera::testing::error_of;

namespace {

/// Holds a stream up until it is opened.
class Gate {
 public:
  std::function<void()> passage() {
    return [opened = opened_] { opened.wait(); };
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

}  // namespace

TEST_CASE("the CPU's default stream is the calling thread") {
  const Stream stream = current_stream(cpu);
  CHECK(stream.is_default());
  CHECK(stream == Stream());
  std::thread::id where;
  stream.launch([&] { where = std::this_thread::get_id(); });
  CHECK(where == std::this_thread::get_id());  // it has run already
  CHECK(record_event(stream).reached());
  CHECK(Event().reached());
}

TEST_CASE("a further stream of the CPU is one thread, which works in order") {
  const Stream stream = Stream::make(cpu);
  CHECK_FALSE(stream == Stream());
  Gate gate;
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  stream.launch(gate.passage());
  for (int i = 0; i < 5; ++i) {
    stream.launch([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  const Event event = record_event(stream);
  CHECK_FALSE(event.reached());
  gate.open();
  stream.synchronize();
  CHECK(event.reached());
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
  for (const std::thread::id id : threads) {
    CHECK(id == threads[0]);
    CHECK_FALSE(id == std::this_thread::get_id());
  }
}

TEST_CASE("a stream waits for another one's event, and nothing else does") {
  const Stream first = Stream::make(cpu);
  const Stream second = Stream::make(cpu);
  const Stream third = Stream::make(cpu);
  Gate gate;
  std::atomic<int> value = 0;
  int seen = -1;
  first.launch(gate.passage());
  first.launch([&] { value = 7; });
  second.wait(record_event(first));
  second.launch([&] { seen = value; });
  third.launch([] {});
  third.synchronize();  // is not held up
  const Event after = record_event(second);
  CHECK_FALSE(after.reached());
  CHECK(value == 0);
  gate.open();
  after.synchronize();
  CHECK(seen == 7);
}

TEST_CASE("the calling thread waits for an event where its own stream does") {
  const Stream worker = Stream::make(cpu);
  std::atomic<int> value = 0;
  worker.launch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 3;
  });
  Stream().wait(record_event(worker));
  CHECK(value == 3);
}

TEST_CASE("an event that is recorded again stands for its new place") {
  const Stream stream = Stream::make(cpu);
  Event event = record_event(stream);
  event.synchronize();
  Gate gate;
  stream.launch(gate.passage());
  event.record(stream);
  CHECK_FALSE(event.reached());
  gate.open();
  event.synchronize();
  CHECK(event.reached());
}

TEST_CASE("an error of queued work is raised by the next synchronisation, once") {
  const Stream stream = Stream::make(cpu);
  bool ran = false;
  stream.launch([] { fail("the disk: it is full"); });
  stream.launch([&] { ran = true; });
  CHECK(error_of([&] { stream.synchronize(); }) == "the disk: it is full");
  CHECK(ran);
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
}

TEST_CASE("work that is queued runs though its stream is gone") {
  std::promise<int> promise;
  {
    const Stream stream = Stream::make(cpu);
    stream.launch([] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
    stream.launch([&] { promise.set_value(4); });
  }
  CHECK(promise.get_future().get() == 4);
}

TEST_CASE("copies and fills of a CPU stream: the host's source may be overwritten at once") {
  const Stream stream = Stream::make(cpu);
  std::vector<float> from{1, 2, 3};
  std::vector<float> there(3);
  std::vector<float> back(3);
  std::vector<std::int64_t> filled(3);
  const std::int64_t number = -5;
  Gate gate;
  stream.launch(gate.passage());
  stream.copy(there.data(), from.data(), 12, CopyKind::to_device);
  from.assign(3, 0);
  stream.copy(back.data(), there.data(), 12, CopyKind::to_host);
  stream.fill(filled.data(), &number, sizeof(number), 3);
  CHECK(back == std::vector<float>(3));
  gate.open();
  synchronize(cpu);
  CHECK(back == std::vector<float>{1, 2, 3});
  CHECK(filled == std::vector<std::int64_t>{-5, -5, -5});
}

TEST_CASE("operators of the CPU stay on the calling thread") {
  const Stream stream = Stream::make(cpu);
  CHECK(contains(error_of([&] { const StreamScope scope(stream); }),
                 "operators of the CPU run on the calling thread"));
  const StreamScope usual{Stream()};
  CHECK(current_stream(cpu).is_default());
}

TEST_CASE("kinds of devices have names; what does not exist is refused by name") {
  CHECK(to_string(cpu) == "cpu");
  CHECK(to_string(meta) == "meta");
  CHECK(device_type("cpu").value() == DeviceType::cpu);
  CHECK_FALSE(device_type("none").has_value());
  CHECK(error_of([] { driver_of(meta); }) ==
        "device 'meta': it has no memory and runs nothing; use a device that does");
  CHECK(error_of([] { check_device({DeviceType::cpu, 1}); }) ==
        "device 'cpu:1': there is no such device (there are 1 of this kind)");
  CHECK(contains(error_of([] { register_device_kind({"cpu", 1, {}}); }), "exists already"));
  CHECK(contains(error_of([] { register_device_kind({"two words", 1, {}}); }), "letters"));
  CHECK(contains(error_of([] { register_device_kind({"hollow", 1, {}}); }), "has no devices"));
}
