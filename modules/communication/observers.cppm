module tessera.communication:observers;

import tessera.base;
import :observer;

namespace tessera::collective {

/// What engines and scopes do with the chain of observers of the calling thread.
struct Observers {
  /// Carries the activity out, through the observers.
  static void perform(const Activity& activity, const std::function<void()>& run);
  /// A call was issued. `pending`: it is not complete.
  static void issued(const Engine* engine, std::uint64_t ticket, Activity activity, bool pending);
  static void completed(const Engine* engine, std::uint64_t ticket);
  static void streamed(const StreamedActivity& activity);
  /// What was issued with this ticket under an observer; `otherwise` if nothing was.
  static Activity waited(const Engine* engine, std::uint64_t ticket, Activity otherwise);

 private:
  static void perform(Observer* observer, const Activity& activity,
                      const std::function<void()>& run);
};

}  // namespace tessera::collective
