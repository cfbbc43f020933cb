module;
#include <array>
#include <csignal>
#include <memory>
module tessera.app.server;

import :stop_signals;

namespace tessera::app {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
constexpr std::array<int, 2> watched = {SIGINT, SIGTERM};

}  // namespace

/// What the signals did before.
struct StopSignals::Before {
  std::array<struct sigaction, watched.size()> actions = {};
};

StopSignals::StopSignals() {
  stop_requested = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  auto before = std::make_unique<Before>();
  for (std::size_t i = 0; i < watched.size(); ++i) {
    sigaction(watched.at(i), &action, &before->actions.at(i));
  }
  before_ = std::move(before);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < watched.size(); ++i) {
    sigaction(watched.at(i), &before_->actions.at(i), nullptr);
  }
}

bool StopSignals::requested() { return stop_requested != 0; }

}  // namespace tessera::app
