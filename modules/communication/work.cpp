module;
#include <cstdint>
#include <utility>
module tessera.communication;

import tessera.base;
import :engine;
import :work;

namespace tessera::collective {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work finished(std::move(*this));
    engine_ = std::exchange(other.engine_, nullptr);
    ticket_ = other.ticket_;
  }
  return *this;
}

Work::~Work() {
  try {
    wait();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): published to the world, seen by the
                            // next call
  }
}

void Work::wait() {
  if (Engine* engine = std::exchange(engine_, nullptr)) {
    engine->wait(ticket_);
  }
}

bool Work::done() {
  if (engine_ != nullptr && engine_->done(ticket_)) {
    engine_ = nullptr;
  }
  return engine_ == nullptr;
}

}  // namespace tessera::collective
