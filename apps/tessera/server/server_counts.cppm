export module tessera.app.server:server_counts;

import tessera.app.base;
import tessera.text;

// What a server has done, as numbers for those who watch it.

export namespace tessera::app {

/// How a request for texts ended.
enum class RequestEnd : std::uint8_t { answered, failed, left, busy };

/// Numbers that only grow, counted by any thread.
class ServerCounts {
 public:
  void add_prompt(std::int64_t tokens) { prompt_tokens_ += tokens; }
  void add_generated(std::int64_t tokens) { generated_tokens_ += tokens; }
  /// A grammar of a request was kept from another one, or compiled.
  void add_grammar(bool kept) { ++(kept ? kept_grammars_ : compiled_grammars_); }
  void begin() { ++begun_; }
  /// A request that has begun, after this time.
  void end(RequestEnd how, double seconds);
  /// What the engine has done so far, and has now.
  void set_engine(const text::EngineCounts& counts);
  /// The first token of a request came after this time.
  void first_token(double seconds) { first_token_.add(seconds); }

  /// In the text format that Prometheus reads (version 0.0.4).
  std::string text() const;

 private:
  /// How often a time was at most each of some limits.
  class Histogram {
   public:
    void add(double seconds);
    std::string text(const char* name, const char* help) const;

   private:
    static constexpr std::array<double, 12> limits = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                      1,    2.5,   5,    10,  30,   60};
    std::array<std::atomic<std::int64_t>, limits.size()> counts_ = {};
    std::atomic<std::int64_t> all_ = 0;
    std::atomic<double> sum_ = 0;
  };

  std::atomic<std::int64_t> prompt_tokens_ = 0;
  std::atomic<std::int64_t> generated_tokens_ = 0;
  std::atomic<std::int64_t> kept_grammars_ = 0;
  std::atomic<std::int64_t> compiled_grammars_ = 0;
  std::atomic<std::int64_t> begun_ = 0;
  std::array<std::atomic<std::int64_t>, 4> ended_ = {};  // by RequestEnd
  Histogram first_token_;
  Histogram whole_;
  mutable std::mutex mutex_;
  text::EngineCounts engine_;
};

}  // namespace tessera::app
