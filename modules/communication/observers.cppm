module tessera.communication:observers;

import tessera.base;
import :observer;

namespace tessera::collective {

/// The chain of observers of the calling thread, for engines and scopes.
struct Observers {
  /// Carries the activity out, through the observers.
  static void perform(const Activity& activity, const std::function<void()>& run);
  /// A call was issued. `pending`: it is not complete.
  static void issued(const Engine* engine, std::uint64_t ticket, Activity activity, bool pending);
  static void completed(const Engine* engine, std::uint64_t ticket);
  static void streamed(const StreamedActivity& activity);
  /// The call that was issued with this ticket under an observer; `otherwise` if none was.
  static Activity waited(const Engine* engine, std::uint64_t ticket, Activity otherwise);

 private:
  static void perform(Observer* observer, const Activity& activity,
                      const std::function<void()>& run);
};

}  // namespace tessera::collective
