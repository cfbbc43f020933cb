module tessera.stores:attempts;

import tessera.base;
import :opened;
import :store;
import :store_error;

namespace tessera::stores {

/// The tries of one operation.
class Attempts {
 public:
  explicit Attempts(const StoreRules& rules) : rules_(rules) {}
  /// Returns after the pause when the operation is to be tried again; throws otherwise: the failure
  /// may not pass, was the last one, or was cancelled meanwhile.
  void after(const StoreError& failure);
  /// Something has arrived: the count begins again.
  void progress() {
    failures_ = 0;
    watch_.reset();
  }
  int failures() const { return failures_; }

 private:
  const StoreRules& rules_;
  int failures_ = 0;
  std::optional<Stopwatch> watch_ = {};  // since the first failure
};

/// Waits, and throws StoreError (cancelled) within a fraction of a second where that is asked for.
void sleep_unless_cancelled(double seconds, const RequestLimits& limits);

}  // namespace tessera::stores
