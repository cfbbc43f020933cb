export module tessera.communication:work;

import tessera.base;

export namespace tessera::collective {

class Engine;

/// A collective call in flight. A communicator's calls complete in the order in which they were
/// issued, so waiting for one also completes the earlier ones. The destination must stay alive and
/// untouched until wait() has returned. The destructor waits, and swallows errors (they are
/// published to the world all the same).
class Work {
 public:
  /// A call that is complete.
  Work() = default;
  inline Work(Engine* engine, std::uint64_t ticket) : engine_(engine), ticket_(ticket) {}
  inline Work(Work&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), ticket_(other.ticket_) {}
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work();

  /// Returns when the destination holds the result. The source may then be overwritten, except
  /// for calls over segments: see Communicator::wait_sources_free. Throws PeerFailed when another
  /// rank failed, Error when calls do not match or the time-out has passed.
  void wait();
  /// Whether wait() would return at once. Moves the call forward when it can; never blocks.
  bool done();

 private:
  Engine* engine_ = nullptr;
  std::uint64_t ticket_ = 0;
};

}  // namespace tessera::collective
