// Plain, as its header is: functions of a header belong to no module.
#include <memory>
#include <mutex>
#include <tessera/log_listener.hpp>
#include <utility>
#include <vector>

namespace tessera {
namespace {

struct Listeners {
  std::mutex mutex;
  std::vector<std::shared_ptr<const LogListener::Told>> all;
};

Listeners& listeners() {
  static auto* const instance = new Listeners;  // leaked: threads may end later than statics
  return *instance;
}

}  // namespace

LogListener::LogListener(Told told) : told_(std::make_shared<const Told>(std::move(told))) {
  const std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(told_);
}

LogListener::~LogListener() {
  const std::lock_guard lock(listeners().mutex);
  std::erase(listeners().all, told_);
}

void tell_log_listeners(const LogEntry& line) {
  std::vector<std::shared_ptr<const LogListener::Told>> all;
  {
    const std::lock_guard lock(listeners().mutex);
    all = listeners().all;
  }
  for (const auto& told : all) {  // without the lock: each may log
    (*told)(line);
  }
}

}  // namespace tessera
