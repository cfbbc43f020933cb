module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.stores;

import tessera.base;
import :opened_state;

namespace tessera::stores {
namespace {

constexpr std::uint64_t usual_part = std::uint64_t{16} << 20;

}  // namespace

class Upload::State {
 public:
  State(std::shared_ptr<OpenStore::State> store, std::string name, std::uint64_t bytes);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { abort(); }

  void add(std::span<const std::byte> bytes);
  ObjectFacts complete();

 private:
  std::uint64_t part_size() const;
  void send_part();
  ObjectFacts complete_parts();
  void abort() noexcept;
  const RequestLimits& limits() const { return store_->rules().limits; }

  std::shared_ptr<OpenStore::State> store_;
  std::string name_;
  PartLimits parts_allowed_;
  std::uint64_t first_size_;
  std::vector<std::byte> part_;
  std::vector<UploadedPart> sent_;
  std::uint64_t total_ = 0;
  std::optional<std::string> id_;
  bool done_ = false;
};

Upload::State::State(std::shared_ptr<OpenStore::State> store, std::string name, std::uint64_t bytes)
    : store_(std::move(store)),
      name_(std::move(name)),
      parts_allowed_(store_->writer()->part_limits()),
      first_size_(
          std::max({usual_part, parts_allowed_.smallest,
                    bytes / static_cast<std::uint64_t>(std::max(parts_allowed_.count, 1)) + 1})) {
  static_cast<void>(store_->name_of(name_));
}

/// Of the part that is being filled. Where nobody said how many bytes follow, parts become larger
/// before their number is used up.
std::uint64_t Upload::State::part_size() const {
  constexpr std::size_t parts_of_a_size = 1000;
  const std::size_t doubled = std::min<std::size_t>(sent_.size() / parts_of_a_size, 16);
  return std::min(first_size_ << doubled, parts_allowed_.largest);
}

void Upload::State::add(std::span<const std::byte> bytes) {
  require(!done_, "stores: bytes are added to an upload that is complete");
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(part_size() - part_.size(), bytes.size());
    part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (part_.size() == part_size() && !bytes.empty()) {
      send_part();
    }
  }
}

void Upload::State::send_part() {
  if (!id_) {
    id_ = store_->call(name_, [&](StoreReader&, const std::string& object) {
      return store_->writer()->begin_upload(object, limits());
    });
  }
  const int number = static_cast<int>(sent_.size()) + 1;
  if (number > parts_allowed_.count) {
    store_->fail_with(
        StoreFailure::no_space, name_,
        fmt::format("it has more parts than the store takes (at most {})", parts_allowed_.count));
  }
  sent_.push_back(store_->call(name_, [&](StoreReader&, const std::string& object) {
    return store_->writer()->put_part(object, *id_, number, part_, limits());
  }));
  store_->count_written(part_.size());
  total_ += part_.size();
  part_.clear();
}

ObjectFacts Upload::State::complete_parts() {
  Attempts attempts(store_->rules());
  const std::string object = store_->name_of(name_);
  for (;;) {
    try {
      store_->count_request(attempts);
      return store_->writer()->complete_upload(object, *id_, sent_, limits());
    } catch (const StoreError& failure) {
      // The answer to the first try was lost, and it has completed the upload.
      if (failure.failure() == StoreFailure::not_there && attempts.failures() > 0) {
        ObjectFacts facts = store_->call(name_, [&](StoreReader& reader, const std::string& there) {
          return reader.facts(there, limits());
        });
        if (facts.size == total_) {
          return facts;
        }
      }
      store_->retry(attempts, name_, failure);
    }
  }
}

ObjectFacts Upload::State::complete() {
  require(!done_, "stores: an upload is completed twice");
  ObjectFacts facts;
  if (!id_) {
    facts = store_->call(name_, [&](StoreReader&, const std::string& object) {
      return store_->writer()->put(object, part_, limits());
    });
    store_->count_written(part_.size());
    total_ = part_.size();
  } else {
    if (!part_.empty()) {
      send_part();
    }
    facts = complete_parts();
  }
  done_ = true;
  if (facts.size != total_) {
    store_->fail_with(StoreFailure::changed, name_,
                      fmt::format("it has another size than what was written (expected {}, got {})",
                                  total_, facts.size));
  }
  return facts;
}

void Upload::State::abort() noexcept {
  if (done_ || !id_) {
    return;
  }
  try {
    store_->writer()->abort_upload(store_->name_of(name_), *id_, limits());
  } catch (const std::exception& error) {
    log(LogLevel::warning,
        fmt::format("stores: an upload could not be aborted, and its parts may take room: {}",
                    error.what()));
  }
}

Upload::Upload(std::unique_ptr<State> state) : state_(std::move(state)) {}
Upload::Upload(Upload&&) noexcept = default;
Upload::~Upload() = default;
void Upload::add(std::span<const std::byte> bytes) { state_->add(bytes); }
ObjectFacts Upload::complete() { return state_->complete(); }

OpenWritableStore::OpenWritableStore(Address address, StoreRules rules)
    : OpenStore(std::move(address), std::move(rules)) {
  if (state_->writer() == nullptr) {
    state_->fail_with(
        StoreFailure::wrong_address, "",
        fmt::format("stores of the scheme '{}' can only be read", this->address().scheme()));
  }
}

ObjectFacts OpenWritableStore::put(const std::string& name, std::span<const std::byte> bytes) {
  ObjectFacts facts = state_->call(name, [&](StoreReader&, const std::string& object) {
    return state_->writer()->put(object, bytes, rules().limits);
  });
  state_->count_written(bytes.size());
  return facts;
}

Upload OpenWritableStore::upload(const std::string& name, std::uint64_t bytes) {
  return Upload(std::make_unique<Upload::State>(state_, name, bytes));
}

std::size_t OpenWritableStore::abort_pending(const std::string& folder, double seconds) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::size_t count = 0;
  for (const PendingUpload& pending :
       state_->call(folder, [&](StoreReader&, const std::string& below) {
         return state_->writer()->pending_uploads(below, rules().limits);
       })) {
    if (pending.begun > 0 && now - pending.begun > seconds) {
      state_->call(folder, [&](StoreReader&, const std::string&) {
        state_->writer()->abort_upload(pending.name, pending.id, rules().limits);
      });
      ++count;
    }
  }
  return count;
}

void OpenWritableStore::remove(const std::string& name) {
  state_->call(name, [&](StoreReader&, const std::string& object) {
    state_->writer()->remove(object, rules().limits);
  });
}

}  // namespace tessera::stores
