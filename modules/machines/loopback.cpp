module;
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import :loopback;
import :transport;

namespace tessera::collective {
namespace {

struct LoopbackMessage {
  int from = -1;
  std::vector<std::byte> head;
  std::vector<MessageTransport::Part> parts;
  std::shared_ptr<std::atomic<bool>> taken;
};

struct Mailbox {
  std::mutex mutex;
  std::deque<LoopbackMessage> parcels;
};

}  // namespace

class LoopbackHub {
 public:
  explicit LoopbackHub(int size)
      : boxes(static_cast<std::size_t>(size)), texts(static_cast<std::size_t>(size)) {}
  std::vector<Mailbox> boxes;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> texts;
  std::size_t met = 0;
};

namespace {

class Loopback final : public MessageTransport {
 public:
  explicit Loopback(std::shared_ptr<LoopbackHub> hub) : hub_(std::move(hub)) {}

  std::vector<std::string> exchange(int rank, int /*size*/, std::string_view text) override {
    rank_ = rank;
    std::unique_lock lock(hub_->mutex);
    hub_->texts[static_cast<std::size_t>(rank)] = text;
    ++hub_->met;
    hub_->changed.notify_all();
    hub_->changed.wait(lock, [&] { return hub_->met == hub_->texts.size(); });
    return hub_->texts;
  }

  void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
            std::uint64_t token) override {
    auto taken = std::make_shared<std::atomic<bool>>(parts.empty());
    leaving_.emplace_back(token, taken);
    Mailbox& box = hub_->boxes[static_cast<std::size_t>(to)];
    const std::lock_guard guard(box.mutex);
    box.parcels.push_back({rank_, std::move(head), {parts.begin(), parts.end()}, taken});
  }

  bool progress(Receiver& receiver) override {
    bool moved = false;
    std::deque<LoopbackMessage> parcels;
    Mailbox& box = hub_->boxes[static_cast<std::size_t>(rank_)];
    {
      const std::lock_guard guard(box.mutex);
      parcels.swap(box.parcels);
    }
    for (const LoopbackMessage& parcel : parcels) {
      std::uint64_t token = 0;
      const std::vector<Part> places = receiver.arrive(parcel.from, parcel.head, token);
      require(places.size() == parcel.parts.size(), "loopback: other parts are expected");
      for (std::size_t i = 0; i < places.size(); ++i) {
        require(places[i].bytes == parcel.parts[i].bytes, "loopback: a part has another size");
        std::memcpy(places[i].data, parcel.parts[i].data, places[i].bytes);
      }
      arriving_.push_back(token);
      parcel.taken->store(true);
      moved = true;
    }
    // The last data to come arrives first, as it may over a network.
    for (; !arriving_.empty(); arriving_.pop_back()) {
      receiver.arrived(arriving_.back());
    }
    std::erase_if(leaving_, [&](const auto& message) {
      const bool taken = message.second->load();
      if (taken) {
        receiver.sent(message.first);
        moved = true;
      }
      return taken;
    });
    return moved;
  }

  void finish(bool /*orderly*/) override {}

 private:
  std::shared_ptr<LoopbackHub> hub_;
  int rank_ = -1;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<std::atomic<bool>>>> leaving_;
  std::vector<std::uint64_t> arriving_;
};

}  // namespace

std::shared_ptr<LoopbackHub> make_loopback_hub(int size) {
  return std::make_shared<LoopbackHub>(size);
}

std::unique_ptr<MessageTransport> make_loopback(std::shared_ptr<LoopbackHub> hub) {
  return std::make_unique<Loopback>(std::move(hub));
}

}  // namespace tessera::collective
