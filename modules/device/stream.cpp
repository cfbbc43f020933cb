module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;

namespace tessera {
namespace {

/// The streams that exist, so that all of a device can be waited for.
struct Streams {
  std::mutex mutex;
  std::vector<std::pair<Device, std::weak_ptr<const void>>> made;
};

Streams& streams() {
  static auto* instance = new Streams;
  return *instance;
}

/// Streams that StreamScopes set, the innermost last.
std::vector<Stream>& scopes() {
  thread_local std::vector<Stream> instance;
  return instance;
}

std::unique_ptr<DeviceWait> (*make_device_wait)() = nullptr;

/// Calls wait(check) for a wait of the calling thread for the device. An error of the world comes
/// before one of the device, which may be its consequence.
template <class Wait>
void watched(Device device, const Wait& wait) {
  const std::unique_ptr<DeviceWait> watch =
      device == cpu || make_device_wait == nullptr ? nullptr : make_device_wait();
  if (watch == nullptr) {
    wait([] {});
    return;
  }
  try {
    wait([&] { watch->look(); });
  } catch (...) {
    watch->look();
    throw;
  }
  watch->look();
}

/// Pinned memory through which a device copies the host's ordinary memory. A driver copies such
/// memory itself, too, but it may block until the stream's earlier work is done, while nobody looks
/// whether another rank has died; or it may read the memory later. Here every wait is watched.
class Staging {
 public:
  static Staging& of(Device device) {
    static std::mutex mutex;
    static auto* made = new std::vector<std::unique_ptr<Staging>>;  // never destroyed, as streams
    const std::lock_guard lock(mutex);
    const auto found =
        std::ranges::find(*made, device, [](const auto& one) { return one->device_; });
    return found != made->end() ? **found : *made->emplace_back(new Staging(device));
  }

  void to_device(const Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += piece_bytes) {
      const std::size_t part = std::min(piece_bytes, bytes - done);
      const Use use(*this);
      std::memcpy(use.data(), from + done, part);
      driver_of(device_).copy(stream.native(), to + done, use.data(), part, CopyKind::from_pinned);
      use.record(stream);
    }
  }

  /// Returns when the bytes are there.
  void to_host(const Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
    std::array<std::optional<Use>, 2> uses;  // one is read while the next one travels
    const auto finish = [&](std::size_t piece) {
      std::optional<Use>& use = uses[piece % 2];
      use->wait();
      const std::size_t begin = piece * piece_bytes;
      std::memcpy(to + begin, use->data(), std::min(piece_bytes, bytes - begin));
      use.reset();
    };
    const std::size_t count = (bytes + piece_bytes - 1) / piece_bytes;
    for (std::size_t piece = 0; piece < count; ++piece) {
      const std::size_t begin = piece * piece_bytes;
      const Use& use = uses[piece % 2].emplace(*this);
      driver_of(device_).copy(stream.native(), use.data(), from + begin,
                              std::min(piece_bytes, bytes - begin), CopyKind::to_host);
      use.record(stream);
      if (piece > 0) {
        finish(piece - 1);
      }
    }
    finish(count - 1);
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 18;
  static constexpr std::size_t pieces = 64;

  struct Piece {
    std::byte* data = nullptr;
    Event used;  // by the copy that was queued last
    bool held = false;
  };

  /// A piece that no other thread and no queued copy uses.
  class Use {
   public:
    explicit Use(Staging& staging) : staging_(staging), piece_(staging.take()) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      const std::lock_guard lock(staging_.mutex_);
      piece_.held = false;
    }
    std::byte* data() const { return piece_.data; }
    void record(const Stream& stream) const { piece_.used.record(stream); }
    void wait() const { piece_.used.synchronize(); }

   private:
    Staging& staging_;
    Piece& piece_;
  };

  explicit Staging(Device device)
      : device_(device), memory_(Stream::default_of(device), pieces * piece_bytes) {
    for (std::size_t i = 0; i < pieces; ++i) {
      pieces_[i].data = static_cast<std::byte*>(memory_.data()) + i * piece_bytes;
    }
  }

  Piece& take() {
    while (true) {
      Event oldest;
      {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < pieces; ++i) {
          Piece& piece = pieces_[next_];
          next_ = (next_ + 1) % pieces;
          if (!piece.held && piece.used.reached()) {
            piece.held = true;
            return piece;
          }
        }
        oldest = pieces_[next_].used;
      }
      oldest.synchronize();
      std::this_thread::yield();  // it may be held by another thread
    }
  }

  Device device_;
  PinnedMemory memory_;
  std::mutex mutex_;  // of who holds a piece
  std::array<Piece, pieces> pieces_;
  std::size_t next_ = 0;
};

}  // namespace

DeviceWait::~DeviceWait() = default;

void set_device_wait(std::unique_ptr<DeviceWait> (*make)()) { make_device_wait = make; }

Stream::State::~State() {
  if (queue != nullptr) {
    driver_of(device).free_queue(queue);
  }
}

Stream Stream::make(Device device) {
  Stream stream;
  stream.state_ = std::make_shared<const State>(device, driver_of(device).make_queue());
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.made, [](const auto& entry) { return entry.second.expired(); });
  all.made.emplace_back(device, stream.state_);
  return stream;
}

Stream Stream::default_of(Device device) {
  if (device == cpu) {
    return {};
  }
  static std::mutex mutex;
  static auto* made = new std::vector<Stream>;  // never destroyed: tensors may outlive statics
  const std::lock_guard lock(mutex);
  const auto found =
      std::ranges::find_if(*made, [&](const Stream& s) { return s.device() == device; });
  if (found != made->end()) {
    return *found;
  }
  Stream stream;
  stream.state_ = std::make_shared<const State>(device, nullptr);
  made->push_back(stream);
  return stream;
}

void Stream::launch(std::function<void()> function) const {
  driver_of(device()).launch(native(), std::move(function));
}

void Stream::wait(const Event& event) const {
  if (!event.state_) {
    return;
  }
  if (event.state_->device.type != device().type) {
    fail({.thing = fmt::format("stream of {}", to_string(device())),
          .wrong = fmt::format("it cannot wait for an event of {}, which is another kind of device",
                               to_string(event.state_->device)),
          .advice = "wait for the event on the host (Event::synchronize)"});
  }
  driver_of(device()).wait(native(), event.state_->mark);
}

void Stream::synchronize() const {
  watched(device(),
          [this](const WaitCheck& check) { driver_of(device()).synchronize(native(), check); });
}

void Stream::keep_forever(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

void Stream::copy(void* to, const void* from, std::size_t bytes, CopyKind kind) const {
  if (bytes == 0) {
    return;
  }
  const bool stages = !(device() == cpu);
  if (stages && kind == CopyKind::to_device) {
    Staging::of(device()).to_device(*this, static_cast<std::byte*>(to),
                                    static_cast<const std::byte*>(from), bytes);
  } else if (stages && kind == CopyKind::to_host && !is_pinned(device(), to)) {
    Staging::of(device()).to_host(*this, static_cast<std::byte*>(to),
                                  static_cast<const std::byte*>(from), bytes);
  } else {
    driver_of(device()).copy(native(), to, from, bytes, kind);
  }
}

void Stream::fill(void* to, const void* element, std::size_t width, std::int64_t count) const {
  if (count > 0) {
    driver_of(device()).fill(native(), to, element, width, count);
  }
}

Event::State::~State() { driver_of(device).free_mark(mark); }

void Event::record(const Stream& stream) {
  if (!state_) {
    state_ = std::make_shared<State>(stream.device());
  }
  if (state_->device.type != stream.device().type) {
    fail({.thing = fmt::format("event of {}", to_string(state_->device)),
          .wrong = fmt::format(
              "it cannot be recorded in a stream of {}, which is another kind of device",
              to_string(stream.device())),
          .advice = "use an event for each"});
  }
  driver_of(stream.device()).record(state_->mark, stream.native());
}

bool Event::reached() const { return !state_ || driver_of(state_->device).reached(state_->mark); }

void Event::synchronize() const {
  if (state_) {
    watched(state_->device, [this](const WaitCheck& check) {
      driver_of(state_->device).await(state_->mark, check);
    });
  }
}

DeviceGraph::State::~State() { driver_of(device).free_graph(graph); }

DeviceGraph DeviceGraph::record(const Stream& stream, const std::function<void()>& queue_work) {
  DeviceDriver& driver = driver_of(stream.device());
  if (!driver.has_graphs()) {
    fail({.thing = fmt::format("device '{}'", to_string(stream.device())),
          .wrong = "it has no graphs",
          .advice = "queue the work itself"});
  }
  driver.begin_graph(stream.native());
  try {
    queue_work();
  } catch (...) {
    try {
      driver.free_graph(driver.end_graph(stream.native()));
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error says more
    }
    throw;
  }
  DeviceGraph made;
  made.state_ = std::make_shared<const State>(stream.device(), driver.end_graph(stream.native()));
  return made;
}

void DeviceGraph::launch(const Stream& stream) const {
  require(state_ != nullptr && state_->device == stream.device(),
          "device graph: it is launched in a stream of the device that it was recorded on");
  driver_of(stream.device()).launch_graph(stream.native(), state_->graph);
}

Event record_event(const Stream& stream) {
  Event event;
  event.record(stream);
  return event;
}

Stream current_stream(Device device) {
  const std::vector<Stream>& set = scopes();
  const auto found =
      std::find_if(set.rbegin(), set.rend(), [&](const Stream& s) { return s.device() == device; });
  return found != set.rend() ? *found : Stream::default_of(device);
}

StreamScope::StreamScope(const Stream& stream) {
  if (stream.device() == cpu && !stream.is_default()) {
    fail({.thing = "stream scope",
          .wrong = "operators of the CPU run on the calling thread",
          .expected = "a stream of another device",
          .advice = "queue functions on a stream of the CPU by Stream::launch"});
  }
  scopes().push_back(stream);
}
StreamScope::~StreamScope() { scopes().pop_back(); }

void synchronize(Device device) {
  DeviceDriver& driver = driver_of(device);
  const auto finish = [&](DeviceDriver::Queue queue) {
    watched(device, [&](const WaitCheck& check) { driver.synchronize(queue, check); });
  };
  finish(nullptr);
  std::vector<std::shared_ptr<const void>> held;
  {
    Streams& all = streams();
    const std::lock_guard lock(all.mutex);
    for (const auto& [on, stream] : all.made) {
      if (on == device) {
        held.push_back(stream.lock());
      }
    }
  }
  for (const std::shared_ptr<const void>& stream : held) {
    if (stream) {
      finish(static_cast<const Stream::State*>(stream.get())->queue);
    }
  }
}

}  // namespace tessera
