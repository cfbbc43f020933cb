module tessera.app.server:stop_signals;

import tessera.app.base;

// How servers end.

namespace tessera::app {

/// While it exists, SIGINT and SIGTERM are requests to stop.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Whether one of them has come.
  static bool requested();

 private:
  struct Before;
  std::unique_ptr<const Before> before_;
};

}  // namespace tessera::app
